"""Reading a job without driving it: the log, and what its gang has written down since."""

from collections.abc import Sequence
from dataclasses import replace

from ffdl_airflow.core.events import Event, recorded
from ffdl_airflow.core.lifecycle import apply, fold
from ffdl_airflow.core.summary import summary
from ffdl_airflow.ledger.base import JobRow
from ffdl_airflow.stages.deps import Deps, Job


def story(deps: Deps, job_id: str) -> list[Event]:
    """The events of a job, and after them those of its gang's journal that no driver has taken yet.

    Nothing is appended: what is shown so is in the log as soon as somebody drives the job. Empty
    for a job that there is not.
    """
    events = deps.ledger.read(job_id)
    return [*events, *_not_taken_yet(deps, job_id, events)]


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


def _not_taken_yet(deps: Deps, job_id: str, events: Sequence[Event]) -> list[Event]:
    state = fold(job_id, events)
    if not state.placed:
        return []
    found = []
    seen = deps.engine.observe(state.placement_id, state.journal_seq)
    for fact in seen.facts:
        event = recorded(job_id, state.seq + 1, fact, recorded_at=deps.clock())
        state = apply(state, event)
        found.append(event)
    return found
