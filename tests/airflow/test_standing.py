"""What Airflow's answers say of a job's owner, and what the reaper's task makes of its round."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from ffdl_airflow.core.errors import InfrastructureError
from ffdl_airflow.hooks.standing import Standing, TaskRef, run_is_missing, standing_of_owner
from ffdl_airflow.stages.reap import Reaped

OWNER = {"dag_id": "nightly", "run_id": "r1", "map_index": -1, "task_id": "train"}
REF = TaskRef(dag_id="nightly", run_id="r1", task_id="train")


def refusal(status: int, body: Any) -> AirflowRuntimeError:
    """As the supervisor sends it on (Airflow 3.3.2, ``supervisor.py``)."""
    detail = {"status_code": status, "message": "Server returned error", "detail": body}
    return AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail))


NOT_FOUND = {"detail": {"reason": "not_found", "message": "Dag run … was not found"}}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("running", Standing.WANTED),
        ("failed", Standing.TAKEN),
        (refusal(404, NOT_FOUND), Standing.MISSING),
        (refusal(404, {"detail": "Not Found"}), Standing.UNKNOWN),  # of a proxy
        (refusal(404, None), Standing.UNKNOWN),
        (refusal(503, NOT_FOUND), Standing.UNKNOWN),
        (AirflowRuntimeError(ErrorResponse(error=ErrorType.GENERIC_ERROR)), Standing.UNKNOWN),
        (ConnectionError("away"), Standing.UNKNOWN),
    ],
)
def test_a_missing_run_is_not_one_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, answer: Any, says: Standing
) -> None:
    def state(dag_id: str, run_id: str) -> str:
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(RuntimeTaskInstance, "get_dagrun_state", staticmethod(state))
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states",
                        staticmethod(lambda **_: {"r1": {"train": "deferred"}}))  # fmt: skip
    assert standing_of_owner(OWNER) is says
    assert standing_of_owner({"key": "command line"}) is Standing.WANTED
    if says is Standing.UNKNOWN:
        with pytest.raises(type(answer)):
            run_is_missing(REF)
    else:
        assert run_is_missing(REF) is (says is Standing.MISSING)


GOOD = Reaped(placement_id="a-1/1", why="its job has ended (Failed)", killed=2)
BAD = Reaped(placement_id="b-2/1", why="", error="ValueError: torn")


@pytest.mark.parametrize("found", [[], [GOOD], [GOOD, BAD]])
def test_the_reapers_task_tells_what_could_not_be_ended(
    monkeypatch: pytest.MonkeyPatch, found: list[Reaped]
) -> None:
    told = reaping(monkeypatch, found)
    assert [one["placement"] for one in told] == [one.placement_id for one in found]
    assert [one["error"] for one in told] == [one.error for one in found]


def test_the_reapers_task_fails_where_nothing_could_be_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InfrastructureError, match="b-2/1 could not be looked at or ended: ValueE"):
        reaping(monkeypatch, [BAD])


def reaping(monkeypatch: pytest.MonkeyPatch, found: list[Reaped]) -> list[dict[str, Any]]:
    from ffdl_airflow import ReapOperator
    from ffdl_airflow.hooks.ffdl import FfdlHook

    monkeypatch.setattr(FfdlHook, "deps", lambda self, source: None)
    monkeypatch.setattr("ffdl_airflow.stages.reap.reap", lambda deps, standing: found)
    return ReapOperator(task_id="reap").execute({})
