"""Reading a job without driving it: the log, and what its gang has written down since."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ffdl_airflow.core.events import Event, recorded
from ffdl_airflow.core.lifecycle import JobState, apply, fold
from ffdl_airflow.core.observation import Observation
from ffdl_airflow.core.summary import summary
from ffdl_airflow.ledger.base import JobRow, Ledger
from ffdl_airflow.stages.deps import Deps, Job


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where in Airflow a job comes from. ``scope``: its group, or its operator's task.

    ``run_id`` None: the newest run that has such a job. ``map_index`` -1: not mapped.
    """

    dag_id: str
    scope: str
    run_id: str | None = None
    map_index: int = -1

    @property
    def key(self) -> str:
        """What the owner of a job is known by; of a run that is named."""
        return f"{key_of_run(self.dag_id, str(self.run_id))}{self.scope}/{self.map_index}"


def key_of_run(dag_id: str, run_id: str) -> str:
    """What the keys of all owners in a DAG run begin with."""
    return f"airflow {dag_id}/{run_id}/"


@dataclass(frozen=True, kw_only=True)
class Glance:
    """One look. ``events``: those of the log that the look before had not seen."""

    state: JobState
    events: Sequence[Event]
    status: Mapping[str, Any] | None


class Reader:
    """Looks at one job again and again; each look costs what is new."""

    def __init__(self, deps: Deps, job_id: str) -> None:
        self._deps = deps
        self._state = JobState(job_id=job_id)

    def glance(self) -> Glance:
        """The state with what the gang has written down since, and the gang's live status."""
        state = self._state
        events = self._deps.ledger.read(state.job_id, after=state.seq)
        state = self._state = fold(state.job_id, events, state)
        if not state.placed:
            return Glance(state=state, events=events, status=None)
        seen = self._deps.engine.observe(state.placement_id, state.journal_seq)
        now = fold(state.job_id, _written_since(self._deps, state, seen), state)
        return Glance(state=now, events=events, status=seen.status)


def find_job(ledger: Ledger, address: Address) -> str | None:
    """Id of the newest job that comes from there; None where there is none yet."""
    head = f"airflow {address.dag_id}/"
    tail = f"/{address.scope}/{address.map_index}"
    whole = None if address.run_id is None else address.key
    for row in ledger.jobs():
        key = str((row.summary.get("owner") or {}).get("key"))
        if key == whole or (whole is None and key.startswith(head) and key.endswith(tail)):
            return row.job_id
    return None


def story(deps: Deps, job_id: str) -> list[Event]:
    """The events of a job, and after them those of its gang's journal that no driver has taken yet.

    Nothing is appended: what is shown so is in the log as soon as somebody drives the job. Empty
    for a job that there is not.
    """
    events = deps.ledger.read(job_id)
    state = fold(job_id, events)
    if not state.placed:
        return events
    seen = deps.engine.observe(state.placement_id, state.journal_seq)
    return [*events, *_written_since(deps, state, seen)]


def brought_up(deps: Deps, row: JobRow) -> JobRow:
    """The row as it will be once a driver has taken what the gang has written down since."""
    if not row.summary.get("placed"):
        return row
    events = story(deps, row.job_id)
    state = fold(row.job_id, events)
    if state.seq == row.seq:
        return row
    told = summary(state, Job.of(state).spec)
    if state.last_attempt_ok and not state.terminal:
        told["reason"] = f"attempt {state.attempt} has ended well; a driver goes on from here"
    return replace(row, phase=told["phase"], summary=told)


def _written_since(deps: Deps, state: JobState, seen: Observation) -> list[Event]:
    found = []
    for fact in seen.facts:
        event = recorded(state.job_id, state.seq + 1, fact, recorded_at=deps.clock())
        state = apply(state, event)
        found.append(event)
    return found
