"""The pages in a real Airflow, seen by a real browser: form, link, list, job while it runs.

With FFDL_SCREENSHOTS=FOLDER the pages are kept as pictures, to be looked at.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from ffdl_airflow.examples import prepare_examples
from ffdl_airflow.testing.airflow_server import AirflowServer, ServerSettings

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SOON_MS = 60_000
"""For a page under load; nothing here measures speed."""
JOB_MS = 180_000
DAG = "training_from_ui"
WIDTHS = (1280, 390)
VIOLATION = re.compile(r"Content.Security.Policy|Uncaught|TypeError|ReferenceError")

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on PATH: the browser tests did not run"
)


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowServer]:
    home = tmp_path_factory.mktemp("airflow")
    prepare_examples(home / "dags")
    users = {"admin": "admin", "vera": "viewer", "nora": ""}
    environ = {"AIRFLOW__FFDL__SLOTS": "2", "AIRFLOW__FFDL__STATE_DIR": str(home / "ffdl")}
    server = AirflowServer(
        ServerSettings(home=home, dags=home / "dags", users=users, environ=environ)
    )
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield made
        made.close()


Visit = Callable[..., Any]


@pytest.fixture
def visit(airflow: AirflowServer, browser: Browser) -> Visit:
    """``with visit("admin") as page``: a window of a user who has logged in."""

    @contextmanager
    def opened(user: str, *, width: int = 1280, **options: Any) -> Iterator[Page]:
        scheme = options.pop("scheme", "light")
        context = browser.new_context(
            base_url=airflow.url, viewport={"width": width, "height": 900}, color_scheme=scheme,
            **options,
        )  # fmt: skip
        cookie = {"name": "_token", "value": airflow.token(user), "url": airflow.url}
        context.add_cookies([cookie])
        page = context.new_page()
        page.set_default_timeout(SOON_MS)
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(f"Uncaught {error}"))
        yield page
        context.close()
        assert [text for text in said if VIOLATION.search(text)] == []

    return opened


@pytest.fixture(scope="module")
def job(airflow: AirflowServer, browser: Browser) -> str:
    """A job that was started with Airflow's own form, by a person who came from the list."""
    context = browser.new_context(base_url=airflow.url, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(SOON_MS)
    page.goto("/ffdl/jobs")
    page.wait_for_url("**/auth/login?next=**")
    page.fill("input[name=username]", "admin")
    page.fill("input[name=password]", "admin")
    page.click("button[type=submit]")
    page.wait_for_url("**/ffdl/jobs")
    expect(page.get_by_text("There are no training jobs yet")).to_be_visible()
    airflow.call("PATCH", f"/dags/{DAG}", json={"is_paused": False})
    page.goto(f"/dags/{DAG}")
    page.get_by_role("button", name="Trigger").first.click()
    form = page.get_by_role("dialog")
    form.locator("input[name=element_steps]").fill("300")
    form.locator("input[name=element_step_delay]").fill("0.1")
    form.locator("input[name=element_model]").fill("from-the-form")
    _picture(page, "form-light-1280")
    form.get_by_role("button", name="Trigger").click()
    page.wait_for_url("**/runs/**")
    page.goto("/ffdl/jobs")
    link = page.locator("td.head a").first
    link.wait_for(timeout=JOB_MS)
    found = str(link.get_attribute("href")).rsplit("/", 1)[1]
    context.close()
    return found


def _picture(page: Page, name: str) -> None:
    if folder := os.environ.get("FFDL_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def _fits(page: Page) -> None:
    """Nothing sticks out at the side, and no two texts of a row lie on one another."""
    wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0, f"{wide} pixels too wide"
    overlaps = page.evaluate(
        """[...document.querySelectorAll('main tr, .facts, .top')].filter(row => {
             const boxes = [...row.children].map(e => e.getBoundingClientRect())
               .filter(b => b.width && b.height);
             return boxes.some((a, i) => boxes.some((b, j) => i < j &&
               a.left < b.right - 1 && b.left < a.right - 1 &&
               a.top < b.bottom - 1 && b.top < a.bottom - 1));
           }).map(row => row.innerText)"""
    )
    assert overlaps == []


@needs_browser
def test_the_link_of_the_waiting_task_leads_to_the_page_of_the_running_job(
    visit: Visit, job: str, airflow: AirflowServer
) -> None:
    run_id = airflow.call("GET", f"/dags/{DAG}/dagRuns")["dag_runs"][0]["dag_run_id"]
    with visit("admin") as page:
        page.goto(f"/dags/{DAG}/runs/{run_id}/tasks/train/details")
        page.get_by_role("link", name="Training job", exact=True).click()
        page.wait_for_url(f"**/ffdl/jobs/{job}")
        expect(page.locator("h1 .phase")).to_have_text("Running", timeout=JOB_MS)
        page.evaluate("window.opened = true")
        step = page.locator(".facts div", has=page.get_by_text("Step", exact=True)).locator("dd")
        expect(step).to_have_text(re.compile(r"\d+"), timeout=SOON_MS)
        before = int(step.inner_text())
        page.wait_for_function(
            "n => Number(document.querySelectorAll('.facts dd')[2].innerText) > n", arg=before
        )
        log = page.locator("pre").first
        log.evaluate("e => { e.closest('details').open = false }")
        expect(log).to_contain_text(f"step={before}")
        assert page.evaluate("window.opened"), "it was refreshed in place, not loaded anew"
        assert log.evaluate("e => e.closest('details').open") is False, "what was closed stays so"
        states = airflow.call("GET", f"/dags/{DAG}/dagRuns/{run_id}/taskInstances")
        assert states["task_instances"][0]["state"] == "deferred"
    for scheme in ("light", "dark"):
        for width in WIDTHS:
            with visit("admin", width=width, scheme=scheme) as page:
                page.goto(f"/ffdl/jobs/{job}")
                _fits(page)
                _picture(page, f"job-running-{scheme}-{width}")


@needs_browser
def test_a_reader_who_is_no_admin_sees_the_job_to_its_end(visit: Visit, job: str) -> None:
    with visit("vera") as page:
        page.goto(f"/ffdl/jobs/{job}")
        expect(page.locator("h1 .phase")).to_have_text("Succeeded", timeout=JOB_MS)
        expect(page.locator("dd", has_text="from-the-form version 1")).to_be_visible()
        expect(page.locator("dd", has_text=re.compile("SHA-256 [0-9a-f]{64}"))).to_be_visible()
        page.get_by_text("events, newest first").click()
        expect(page.get_by_role("cell", name="ModelRegistered")).to_be_visible()


@needs_browser
def test_a_user_without_rights_is_refused(visit: Visit, job: str) -> None:
    with visit("nora") as page:
        for path in (f"/ffdl/jobs/{job}", "/ffdl/jobs"):
            answer = page.goto(path)
            assert answer.status == 403
            expect(page.get_by_role("heading", name="Not allowed")).to_be_visible()
            assert "from-the-form" not in page.content()


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_pages_fit(visit: Visit, job: str, scheme: str, width: int) -> None:
    with visit("admin", width=width, scheme=scheme) as page:
        for name, path in (("list", "/ffdl/jobs"), ("job", f"/ffdl/jobs/{job}"),
                           ("missing", "/ffdl/jobs/none")):  # fmt: skip
            page.goto(path)
            _fits(page)
            _picture(page, f"{name}-{scheme}-{width}")
        page.goto(f"/dags/{DAG}")
        page.get_by_role("button", name="Trigger").first.click()
        page.locator("input[name=element_entry_point]").wait_for()
        _picture(page, f"form-{scheme}-{width}")


@needs_browser
def test_airflow_shows_it_in_its_own_frame_and_theme(visit: Visit, job: str) -> None:
    with visit("admin", scheme="light") as page:
        page.goto("/")
        page.get_by_role("link", name="Training", exact=True).click()
        frame = page.frame_locator("iframe[title=Training]")
        frame.locator("td.head a").first.click()
        expect(frame.locator("h1")).to_contain_text("digits")
        expect(frame.get_by_role("link", name="Airflow")).to_be_hidden()
        page.evaluate("localStorage.setItem('theme', 'dark')")
        page.goto("/plugin/training")
        expect(frame.locator("html")).to_have_attribute("data-theme", "dark")
        color = frame.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
        assert max(map(int, re.findall(r"\d+", color)[:3])) < 64, f"{color} is not dark"
        _picture(page, "in-airflow-dark")


@needs_browser
def test_it_works_without_javascript(visit: Visit, job: str) -> None:
    with visit("vera", java_script_enabled=False) as page:
        page.goto("/ffdl/jobs")
        page.click("td.head a")
        expect(page.locator("h1")).to_contain_text("digits")


def test_a_bad_value_is_refused_with_the_words_of_the_schema(airflow: AirflowServer) -> None:
    bad = [({"replicas": 3}, "3 is not one of [1, 2, 4, 8]"),
           ({"learning_rate": 0}, "less than or equal to the minimum of 0"),
           ({"model": "Größe"}, "does not match"),
           ({"steps": "many"}, "is not of type 'integer'"),
           ({"engine": "cloud"}, "is not one of ['local']")]  # fmt: skip
    for conf, words in bad:
        body = {"logical_date": None, "conf": conf}
        answer = airflow.request("POST", f"/api/v2/dags/{DAG}/dagRuns", json=body)
        assert answer.status_code == httpx.codes.BAD_REQUEST, conf
        assert words in answer.json()["detail"]


def test_programs_get_json_with_a_token(airflow: AirflowServer) -> None:
    status = airflow.request("GET", "/ffdl/api/v1/status", user="vera").json()
    assert status["engine"] == "local"
    assert airflow.request("GET", "/ffdl/api/v1/status", user="nora").status_code == 403
    assert httpx.get(f"{airflow.url}/ffdl/api/v1/jobs").status_code == 401


def test_the_connection_overrides_the_section_as_it_does_for_tasks(airflow: AirflowServer) -> None:
    connection = {"connection_id": "ffdl_default", "conn_type": "ffdl", "extra": '{"slots": 7}'}
    airflow.call("POST", "/connections", json=connection)
    try:
        slots = airflow.request("GET", "/ffdl/api/v1/status").json()["slots"]
        assert slots["total"] == 7
    finally:
        airflow.call("DELETE", "/connections/ffdl_default")
