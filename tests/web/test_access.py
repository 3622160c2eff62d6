"""Who gets in: Airflow's own login and roles; a DAG's job only for those who may read the DAG."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute

from ffdl_airflow.core.events import Kind
from tests.web.seeds import Site, log_of, running

RUNS, DONE, MINE = "runs-1111111111", "done-2222222222", "mine-3333333333"
PAGES = ("/ffdl/jobs", f"/ffdl/jobs/{RUNS}")
CALLS = ("/ffdl/api/v1/status", "/ffdl/api/v1/jobs", f"/ffdl/api/v1/jobs/{RUNS}",
         f"/ffdl/api/v1/jobs/{RUNS}/log")  # fmt: skip


def test_every_route_asks_for_the_rights_of_the_reader(site: Site) -> None:
    from ffdl_airflow.web import access

    def asks(dependant: Any) -> bool:
        return dependant.call is access.entered or any(map(asks, dependant.dependencies))

    routes = [route for route in site.app.routes if isinstance(route, APIRoute)]
    assert len(routes) >= 7
    assert [route.path for route in routes if not asks(route.dependant)] == []
    assert {method for route in routes for method in route.methods} == {"GET"}
    others = {route.path for route in site.app.routes} - {route.path for route in routes}
    assert others == {"/static"}, "style and script, the same for everybody"


def test_the_list_has_only_what_the_reader_may_open(three: Site) -> None:
    three.allow("nightly")
    text = three.get("/ffdl/jobs").text
    assert RUNS in text
    assert DONE not in text
    assert MINE not in text
    assert ">All <b>1</b>" in text, "not even counted"
    assert three.get("/ffdl/api/v1/status").json()["jobs"] == {"Running": 1}
    listed = three.get("/ffdl/api/v1/jobs").json()
    assert [row["job"] for row in listed["jobs"]] == [RUNS]


@pytest.mark.parametrize("job", [DONE, MINE])
def test_a_job_of_another_dag_is_refused(three: Site, job: str) -> None:
    three.allow("nightly")
    three.engine.write(job, 0, "what it prints")
    for path in (f"jobs/{job}", f"api/v1/jobs/{job}", f"api/v1/jobs/{job}/log"):
        answer = three.get(f"/ffdl/{path}")
        assert answer.status_code == 403
        assert "what it prints" not in answer.text
        assert "bert-base" not in answer.text


def test_logs_are_a_right_of_their_own(three: Site) -> None:
    from tests.web.seeds import STATUS

    three.allow("nightly", logs=False)
    three.engine.write(RUNS, 0, "what it prints")
    three.ledger.put_status(RUNS, STATUS)
    page = three.get(f"/ffdl/jobs/{RUNS}")
    assert page.status_code == 200
    told = three.get(f"/ffdl/api/v1/jobs/{RUNS}")
    for shown in (page.text, told.text):
        assert "what it prints" not in shown
        assert "step=57" not in shown, "the last line of a rank is a log line"
    assert told.json()["logs"] == []
    assert three.get(f"/ffdl/api/v1/jobs/{RUNS}/log").status_code == 403


PRIVATE = "ValueError: patient 4711 has no label"
SAID = "rank 1 ended with exit code 1"


@pytest.mark.parametrize("cause", [PRIVATE, f"{SAID}; its last line: {PRIVATE}"])
@pytest.mark.parametrize("over", [True, False])
def test_a_cause_from_a_log_is_a_log_line(site: Site, cause: str, over: bool) -> None:
    """In the verdict, the attempt, the job's reason, what was refused, events and lists alike."""
    log = running(log_of(RUNS, name="runs"))
    log.add(Kind.ATTEMPT_ENDED, 30, 1, placement=1, ok=False, first_step=1, last_step=57,
            cause={"kind": "exit", "text": SAID}, tail=f"{PRIVATE}\n")  # fmt: skip
    log.add(Kind.CHECKPOINT_REFUSED, 31, 1, step=40, reason=cause, chosen=None, lost_steps=40)
    log.add(Kind.VERDICT, 31, 1, cause=cause, costs=True, rank=1, next_step="look at rank 1",
            **{"class": "USER_ERROR"})  # fmt: skip
    if over:
        log.add(Kind.FAILED, 31, 1, reason=f"{cause} (another attempt would end in the same way)")
    else:
        log.add(Kind.RESTART_DECIDED, 31, to="Reserved", costs=True, delay_s=60, reason="goes on")
    site.put(RUNS, log.events)
    paths = ("jobs", f"jobs/{RUNS}", "api/v1/jobs", f"api/v1/jobs/{RUNS}")
    for path in paths:
        assert "4711" in site.get(f"/ffdl/{path}").text, path
    site.allow("nightly", logs=False)
    for path in paths:
        shown = site.get(f"/ffdl/{path}").text
        assert "4711" not in shown, path
        assert SAID in shown, path
        assert "log lines need the right to task logs" in shown, path
    told = site.get(f"/ffdl/api/v1/jobs/{RUNS}").json()
    assert told["attempts"][0]["class"] == "USER_ERROR"
    assert told["attempts"][0]["next_step"] == "look at rank 1"


def test_what_no_log_says_stays_for_everybody(site: Site) -> None:
    """What agents and drivers have seen themselves: here that a gang was lost."""
    lost = "all agents of the gang are gone"
    log = running(log_of(RUNS, name="runs"))
    log.add(Kind.ATTEMPT_ENDED, 30, 1, placement=1, ok=False, cause={"kind": "x", "text": lost})
    log.add(Kind.VERDICT, 31, 1, cause=lost, costs=False, **{"class": "KILLED_OUTSIDE"})
    log.add(Kind.FAILED, 31, 1, reason=f"{lost} (too often)")
    site.put(RUNS, log.events)
    site.allow("nightly", logs=False)
    told = site.get(f"/ffdl/api/v1/jobs/{RUNS}").json()
    assert told["verdict"]["cause"] == lost
    assert told["reason"] == told["row"]["reason"] == f"{lost} (too often)"


def test_without_any_right_nothing_is_shown(three: Site) -> None:
    three.allow("nightly", enter=False)
    for path in (*PAGES, *CALLS):
        assert three.get(path).status_code == 403
        assert RUNS not in three.get("/ffdl/jobs").text


@pytest.fixture(scope="module")
def tokens() -> Iterator[dict[str, str]]:
    """Tokens of Airflow's simple auth manager: role → token. ``none`` has no role."""
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.utils.db import initdb

    patch = pytest.MonkeyPatch()
    patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a secret of this test " * 4)
    initdb()
    manager = create_auth_manager()
    roles = {"admin": "ADMIN", "viewer": "VIEWER", "none": ""}
    yield {
        name: manager.generate_jwt(SimpleAuthManagerUser(username=name, role=role, teams=[]))
        for name, role in roles.items()
    }
    patch.undo()


@pytest.fixture
def guarded(three: Site) -> Site:
    """The same with Airflow's own login and rights."""
    from ffdl_airflow.web import access

    del three.app.dependency_overrides[access.rights]
    return three


def bearer(token: str) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {token}"}}


def test_without_a_login_people_are_sent_to_it_and_programs_are_told(guarded: Site) -> None:
    for path in PAGES:
        answer = guarded.get(path)
        assert answer.status_code == 303
        target = answer.headers["location"]
        assert target.startswith("/api/v2/auth/login?next=http%3A%2F%2Ftestserver%2Fffdl%2Fjobs")
    for path in CALLS:
        assert guarded.get(path).status_code == 401
        assert guarded.get(path).json() == {"detail": "Not authenticated"}


def test_roles_of_airflow(guarded: Site, tokens: dict[str, str]) -> None:
    for role in ("admin", "viewer"):
        for path in (*PAGES, *CALLS[:3]):
            assert guarded.get(path, **bearer(tokens[role])).status_code == 200, (role, path)
    for path in (*PAGES, *CALLS):
        assert guarded.get(path, **bearer(tokens["none"])).status_code == 403


def test_the_cookie_of_the_browser_is_a_login(guarded: Site, tokens: dict[str, str]) -> None:
    guarded.client.cookies.set("_token", tokens["viewer"])
    assert RUNS in guarded.get("/ffdl/jobs").text
    guarded.client.cookies.set("_token", tokens["viewer"][:-4] + "AAAA")
    assert guarded.get("/ffdl/jobs").status_code == 403, "a token that was changed"


def test_airflow_is_asked_about_the_dag_that_owns_the_job(
    guarded: Site, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    asked: list[tuple[Any, ...]] = []

    def only_nightly(*, method: str, user: Any, access_entity: Any, details: Any) -> bool:
        asked.append((method, access_entity.value, details.id, user.username))
        return details.id == "nightly"

    monkeypatch.setattr(get_auth_manager(), "is_authorized_dag", only_nightly)
    text = guarded.get("/ffdl/jobs", **bearer(tokens["viewer"])).text
    assert RUNS in text
    assert DONE not in text
    assert set(asked) == {("GET", "TASK_INSTANCE", "nightly", "viewer"),
                          ("GET", "TASK_INSTANCE", "secret", "viewer")}  # fmt: skip
    assert guarded.get(f"/ffdl/jobs/{DONE}", **bearer(tokens["admin"])).status_code == 403
