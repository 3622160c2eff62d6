"""What the pages and the API show and hide. Fakes below, the real app and its real templates."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.core.events import Kind
from ffdl_airflow.settings import from_environment
from ffdl_airflow.web import pages, reading
from tests.web.seeds import SHA, STATUS, Site, log_of, running

RUNS, DONE, MINE = "runs-1111111111", "done-2222222222", "mine-3333333333"
EVIL = """<script>alert(1)</script>'"><img src=x onerror=alert(2)>{{ 7 * 7 }}"""


class Page(HTMLParser):
    """Tags and visible text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)


def page(site: Site, path: str) -> Page:
    answer = site.get(path)
    assert answer.status_code == 200, answer.text
    return Page(answer.text)


def test_the_installation_is_made_once(ffdl_home: Path) -> None:
    """For all requests, from settings that are the same."""
    assert reading._deps(from_environment()) is reading._deps(from_environment())


def test_the_list_has_what_get_wide_has(three: Site) -> None:
    text = page(three, "/ffdl/jobs").text
    for word in (RUNS, "DAG nightly", "Running", "2 / 0", DONE, "Succeeded", "bert-base:7",
                 SHA[:12], MINE, "command line", "Submitted", "nlp", "corpus g-12ab"):  # fmt: skip
        assert word in text


def test_the_list_can_be_narrowed_to_a_phase(three: Site) -> None:
    text = page(three, "/ffdl/jobs?phase=Running").text
    assert RUNS in text
    assert DONE not in text
    assert "All 3 Submitted 1 Running 1 Succeeded 1" in text, "the counts stay those of all"
    assert "No job is Failed now" in page(three, "/ffdl/jobs?phase=Failed").text


def test_many_jobs_come_in_pages(site: Site) -> None:
    for number in range(120):
        site.put(f"job-{number:010}", log_of(f"job-{number:010}").events)
    seen = []
    path = "/ffdl/jobs?phase=Submitted"
    for _ in range(3):
        shown = page(site, path)
        links = [attrs for tag, attrs in shown.tags if tag == "a"]
        seen += [a["href"] for a in links if re.match(r"/ffdl/jobs/job-\d+$", a["href"] or "")]
        path = next((a["href"] for a in links if a.get("rel") == "next"), "")
    assert path == "", "the third page is the last one"
    assert len(seen) == len(set(seen)) == 120
    assert "Page 3 of 3 · 120 jobs" in page(site, "/ffdl/jobs?page=99").text


def test_a_new_installation_says_what_to_do(site: Site) -> None:
    assert "TrainingJobOperator" in page(site, "/ffdl/jobs").text


def test_the_page_of_a_job_tells_its_whole_story(three: Site) -> None:
    text = page(three, f"/ffdl/jobs/{DONE}").text
    for words in (
        "done Succeeded", "Prefetching", "3.0s", "1 placement 1 failed", "USER_CODE",
        "rank 1 ended with exit code 3", "Next: see the tail of rank 1", "checkpoint of step 40",
        "1 to 57", "41 to 100", "generation g-12ab", "3 files, 2.0 KiB", "bert-base version 7",
        "accuracy 0.9871", f"SHA-256 {SHA}", "step 40 /checkpoints/step-000000000040",
        "held", "training", "lost", "secret", "task train", "ModelRegistered",
    ):  # fmt: skip
        assert words in text, words
    assert "data-every" not in three.get(f"/ffdl/jobs/{DONE}").text, "an end does not change"


def test_the_parts_of_the_cost_add_up(three: Site) -> None:
    told = three.get(f"/ffdl/api/v1/jobs/{DONE}").json()["slot_seconds"]
    assert told.pop("total") == pytest.approx(sum(told.values()))
    assert told["lost"] == 20.0, "10 s on two slots after the checkpoint"


def test_the_parts_of_the_cost_add_up_as_they_are_shown() -> None:
    parts = {"held": 0.04, "starting": 0.04, "training": 10.04, "total": 10.12}
    shown = pages.tenths(parts)
    assert shown.pop("total") == 10.1
    assert round(sum(shown.values()), 1) == 10.1


def test_what_runs_shows_its_ranks_and_loads_itself_anew(three: Site) -> None:
    three.ledger.put_status(RUNS, STATUS)
    answer = three.get(f"/ffdl/jobs/{RUNS}").text
    text = Page(answer).text
    for words in ("worker-0", "running, training", "93%", "88%", "256.0 MiB", "step=57 loss=0.25",
                  "loss 0.25", "now at 57"):  # fmt: skip
        assert words in text, words
    assert 'data-every="2"' in answer
    assert '<noscript><meta http-equiv="refresh"' in answer


def test_warnings_stand_above(site: Site) -> None:
    log = running(log_of("warned-1"))
    log.add(Kind.WATCHDOG_WARNED, 80, 1, placement=1, reason="CPU 2 % for 60 s, threshold 30 %")
    site.put("warned-1", log.events)
    text = page(site, "/ffdl/jobs/warned-1").text
    warned = "WatchdogWarned in attempt 1: CPU 2 % for 60 s, threshold 30 %"
    assert text.index(warned) < text.index("Phases")
    assert site.get("/ffdl/api/v1/jobs/warned-1").json()["warnings"][0]["kind"] == "WatchdogWarned"


def test_nothing_that_a_user_wrote_is_markup(site: Site) -> None:
    """Names are checked when a job is read; everything else that reaches a page may be anything."""
    log = running(log_of("evil-1"))
    log.add(Kind.CHECKPOINT_REFUSED, 20, 1, placement=1, step=1, reason=EVIL)
    log.add(Kind.ATTEMPT_ENDED, 30, 1, placement=1, ok=False, cause={"kind": "exit", "text": EVIL})
    log.add(Kind.VERDICT, 31, 1, cause=EVIL, costs=True, next_step=EVIL, **{"class": EVIL})
    log.events[0].body["owner"]["task_id"] = EVIL
    site.put("evil-1", log.events)
    site.engine.write("evil-1", 0, EVIL)
    plain = page(site, "/ffdl/jobs")
    answer = site.get("/ffdl/jobs/evil-1").text
    shown = Page(answer)
    assert "49" not in shown.words
    assert shown.text.count("<script>alert(1)</script>") >= 5, "told as it is, as text"
    for found in (plain, shown):
        assert not [tag for tag, _ in found.tags if tag == "img"]
        scripts = [attrs for tag, attrs in found.tags if tag == "script"]
        assert scripts == [{"src": "/ffdl/static/ffdl.js"}]
        assert not [a for _, attrs in found.tags for a in attrs if a == "style" or a[:2] == "on"]


@pytest.mark.parametrize("path", ["/ffdl/jobs", "/ffdl/jobs/none", "/ffdl/api/v1/jobs",
                                  "/ffdl/static/ffdl.js", "/ffdl/nowhere"])  # fmt: skip
def test_every_answer_carries_the_policy(site: Site, path: str) -> None:
    headers = site.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'self'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_nothing_comes_from_elsewhere(three: Site) -> None:
    for path in ("/ffdl/jobs", f"/ffdl/jobs/{DONE}"):
        for tag, attrs in page(three, path).tags:
            source = attrs.get("src") or (attrs.get("href") if tag == "link" else None)
            assert source is None or source.startswith("/ffdl/static/")


def test_a_log_is_plain_text_and_its_end_only(three: Site) -> None:
    from ffdl_airflow.web.reading import LOG_BYTES, SHOWN_BYTES

    lines = "".join(f"<b>line {number}</b>\n" for number in range(20_000))
    three.engine.write(RUNS, 0, lines)
    three.engine.write(RUNS, 1, "of rank 1")
    answer = three.get(f"/ffdl/api/v1/jobs/{RUNS}/log")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert len(answer.content) == LOG_BYTES
    assert answer.text.endswith("<b>line 19999</b>\n")
    assert three.get(f"/ffdl/api/v1/jobs/{RUNS}/log?rank=1").text == "of rank 1"
    shown = three.get(f"/ffdl/jobs/{RUNS}").text
    assert "&lt;b&gt;line 19999&lt;/b&gt;" in shown
    assert len(shown) < 8 * SHOWN_BYTES
    assert three.get(f"/ffdl/api/v1/jobs/{RUNS}/log?rank=7").status_code == 404


def test_a_log_that_is_no_text_is_shown_all_the_same(three: Site) -> None:
    (three.engine.folder / f"{RUNS}.1.0.log").write_bytes(b"\xff\x00 after")
    assert "after" in three.get(f"/ffdl/api/v1/jobs/{RUNS}/log").text
    assert "after" in three.get(f"/ffdl/jobs/{RUNS}").text


def test_the_newest_attempt_is_the_one_shown(three: Site) -> None:
    three.engine.write(DONE, 0, "first", attempt=1)
    three.engine.write(DONE, 0, "second", attempt=10)
    assert three.get(f"/ffdl/api/v1/jobs/{DONE}/log").text == "second"
    assert three.get(f"/ffdl/api/v1/jobs/{DONE}/log?attempt=1").text == "first"
    text = page(three, f"/ffdl/jobs/{DONE}").text
    assert "second" in text
    assert "first" not in text.split("Logs")[1].replace("newest first", "")
    assert "All logs: attempt 10 rank 0 , attempt 1 rank 0" in text, (
        "the older ones are a link away"
    )


def test_a_log_that_has_gone_does_not_hide_its_job(three: Site) -> None:
    (three.engine.folder / f"{RUNS}.1.0.log").symlink_to("nowhere")
    assert "(the log cannot be read: No such file or directory)" in three.get(
        f"/ffdl/jobs/{RUNS}").text  # fmt: skip
    assert three.get(f"/ffdl/api/v1/jobs/{RUNS}/log").status_code == 404


def test_the_api_answers_what_the_pages_show(three: Site) -> None:
    status = three.get("/ffdl/api/v1/status").json()
    assert status["jobs"] == {"Running": 1, "Succeeded": 1, "Submitted": 1}
    assert status["slots"] == {"total": 4, "free": 4}
    listed = three.get("/ffdl/api/v1/jobs?limit=2").json()
    assert (listed["total"], listed["pages"], len(listed["jobs"])) == (3, 2, 2)
    told = three.get(f"/ffdl/api/v1/jobs/{DONE}").json()
    assert [a["result"] for a in told["attempts"]] == ["failed", "ok"]
    assert "spec" not in told, "its environment is not for all eyes"


@pytest.mark.parametrize(
    ("path", "code"),
    [("/jobs/none", 404), ("/jobs?page=0", 400), ("/jobs?page=x", 400), ("/jobs?phase=Happy", 400),
     ("/jobs/x/log", 404), ("/api/v1/jobs/none", 404), ("/api/v1/jobs/none/log", 404),
     ("/api/v1/jobs?limit=501", 400), ("/api/v1/jobs?phase=x", 400), ("/nowhere", 404),
     ("/api/v1/nowhere", 404), ("/jobs/..%2f..%2fetc", 404), ("/static/../app.py", 404)],
)  # fmt: skip
def test_wrong_addresses_are_answered_with_words(three: Site, path: str, code: int) -> None:
    answer = three.get(f"/ffdl{path}")
    assert answer.status_code == code
    if "/api/" in path:
        assert answer.json()["detail"]
    elif "static" not in path:
        assert "All training jobs" in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_can_be_changed(three: Site, method: str) -> None:
    for path in ("jobs", f"jobs/{RUNS}", f"api/v1/jobs/{RUNS}", "api/v1/status"):
        assert three.client.request(method, f"/ffdl/{path}").status_code == 405


def test_a_ledger_that_is_away_is_told(site: Site, tmp_path: Path) -> None:
    from ffdl_airflow.core.errors import InfrastructureError
    from ffdl_airflow.web import reading

    def away() -> Any:
        raise InfrastructureError("the ledger cannot be used: disk I/O error", evidence="/secret")

    site.app.dependency_overrides[reading.installation] = away
    answer = site.get("/ffdl/jobs")
    assert answer.status_code == 503
    assert "disk I/O error" in answer.text
    assert "/secret" not in answer.text
    assert site.get("/ffdl/api/v1/status").json()["detail"].startswith("the ledger cannot be used")


def test_a_gang_that_cannot_be_reached_does_not_hide_its_job(
    three: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ffdl_airflow.core.errors import InfrastructureError

    def away(*_: Any) -> Any:
        raise InfrastructureError("no host answers")

    monkeypatch.setattr(three.engine, "observe", away)
    assert "no host answers" in page(three, f"/ffdl/jobs/{RUNS}").text
    assert RUNS in page(three, "/ffdl/jobs").text
