"""Whether Airflow still wants a task or a run: its state, asked through the SDK.

For: telling a person's *mark failed* from a triggerer that lost a trigger, and finding owners that
will not come back. What cannot be read is never taken for gone; a run that Airflow says it does not
have is (somebody has deleted it or its DAG). Not for: deciding what follows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.text_enum import TextEnum

TAKEN = frozenset({"failed", "success", "skipped", "upstream_failed", "removed"})
"""States in which nobody of Airflow's works for a task. A cleared one has none, and comes back."""
RUN_OVER = frozenset({"failed", "success"})


class Standing(TextEnum):
    """What Airflow says of a task that has a job."""

    WANTED = "wanted"
    TAKEN = "taken"
    MISSING = "missing"  # there is no such run; also where it is another Airflow's
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class TaskRef:
    """One task instance. ``map_index`` -1: not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @classmethod
    def of(cls, ti: Any) -> "TaskRef":
        """From whatever Airflow calls a task instance."""
        return cls(dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id,
                   map_index=-1 if ti.map_index is None else ti.map_index)  # fmt: skip


GOES_ON = frozenset({Goal.PREFETCH, Goal.RESERVE})
"""Goals whose task may be marked as success: the job goes on, the next stage does the rest."""


def stops_job(state: str | None, goal: Goal) -> bool:
    """Whether a task of this goal in this state means that its job is to stop."""
    return state in TAKEN and not (state == "success" and goal in GOES_ON)


def task_state(ref: TaskRef) -> str | None:
    """State of the task now, None where it has none (it was cleared, or has not been scheduled).

    Raises whatever the SDK raises where Airflow cannot be asked.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    found = RuntimeTaskInstance.get_task_states(
        dag_id=ref.dag_id, run_ids=[ref.run_id], task_ids=[ref.task_id],
        map_index=ref.map_index if ref.map_index >= 0 else None,
    )  # fmt: skip
    states = found.get(ref.run_id, {})
    key = f"{ref.task_id}_{ref.map_index}" if ref.map_index >= 0 else ref.task_id
    state = states.get(key, states.get(ref.task_id))
    return None if state is None else str(state)


def is_missing(error: BaseException) -> bool:
    """Whether the error of a question to Airflow says that there is no such run.

    Airflow 3.3.2 has no error type for it: the API server's answer, 404 with the reason
    ``not_found``, comes as it is (tried). A 404 of something in between has no such reason.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError

    if not isinstance(error, AirflowRuntimeError):
        return False
    told = error.error.detail or {}
    answer = told.get("detail")
    detail = answer.get("detail") if isinstance(answer, Mapping) else None
    reason = detail.get("reason") if isinstance(detail, Mapping) else None
    return told.get("status_code") == HTTPStatus.NOT_FOUND and reason == "not_found"


def run_is_missing(ref: TaskRef) -> bool:
    """Whether Airflow says that there is no such run.

    Asked beside :func:`task_state`, which is None for a task of a missing run as for a cleared one.
    Raises whatever the SDK raises where Airflow cannot be asked.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    try:
        RuntimeTaskInstance.get_dagrun_state(ref.dag_id, ref.run_id)
    except Exception as error:
        if is_missing(error):
            return True
        raise
    return False


def standing_of_owner(owner: Mapping[str, Any]) -> Standing:
    """Whether the Airflow owner of a job still wants it.

    A job of the command line has none and is wanted. ``holder`` names the task after whose end
    nothing of the job holds a place: the operator's own, or the group's launch. MISSING is what is
    said of another Airflow's run, too: of two Airflows that share one ledger and engine at most one
    may ask here for all jobs.
    """
    if "dag_id" not in owner:
        return Standing.WANTED
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    ref = TaskRef(dag_id=owner["dag_id"], run_id=owner["run_id"], map_index=owner["map_index"],
                  task_id=owner.get("holder") or owner["task_id"])  # fmt: skip
    try:
        if str(RuntimeTaskInstance.get_dagrun_state(ref.dag_id, ref.run_id)) in RUN_OVER:
            return Standing.TAKEN
        return Standing.TAKEN if task_state(ref) in TAKEN else Standing.WANTED
    except Exception as error:  # noqa: BLE001 - whatever else the reason: it cannot be read now
        return Standing.MISSING if is_missing(error) else Standing.UNKNOWN
