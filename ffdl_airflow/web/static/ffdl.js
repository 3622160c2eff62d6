// Theme of the surrounding Airflow, and a refresh that changes only what has changed.
// Without this file the pages work: they then load themselves anew.
"use strict";

const root = document.documentElement;
if (window.top !== window) root.classList.add("in-frame");

function theme() {
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* no storage: as the system wishes */ }
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  else delete root.dataset.theme;
}
theme();
window.addEventListener("storage", theme);

function patch(now, next) {
  if (now.isEqualNode(next)) return;
  if (now.nodeName !== next.nodeName || now.id !== next.id) { now.replaceWith(next); return; }
  if (now.nodeType !== Node.ELEMENT_NODE) { now.nodeValue = next.nodeValue; return; }
  for (const { name } of [...now.attributes])
    if (!next.hasAttribute(name) && name !== "open") now.removeAttribute(name);
  for (const { name, value } of next.attributes)
    if (name !== "open" && now.getAttribute(name) !== value) now.setAttribute(name, value);
  const old = [...now.childNodes], fresh = [...next.childNodes];
  const atEnd = now.scrollTop + now.clientHeight >= now.scrollHeight - 4;
  fresh.forEach((node, i) => i < old.length ? patch(old[i], node) : now.append(node));
  old.slice(fresh.length).forEach((node) => node.remove());
  if (now.nodeName === "PRE" && atEnd) now.scrollTop = now.scrollHeight;
}

async function refresh() {
  const live = document.getElementById("live");
  if (!live || !live.dataset.every) return;
  if (!document.hidden && !String(window.getSelection())) {
    try {
      const answer = await fetch(location.href, { credentials: "same-origin" });
      if (answer.redirected) { location.reload(); return; }
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        patch(live, document.adoptNode(page.getElementById("live")));
        document.title = page.title;
      }
    } catch { /* the server is away: the next look may find it */ }
  }
  setTimeout(refresh, 1000 * Number(live.dataset.every || 0) || 60000);
}

document.addEventListener("DOMContentLoaded", () => {
  for (const pre of document.querySelectorAll("pre")) pre.scrollTop = pre.scrollHeight;
  const live = document.getElementById("live");
  if (live && live.dataset.every) setTimeout(refresh, 1000 * Number(live.dataset.every));
});
