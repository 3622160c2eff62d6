"""Reading a job without driving it: the log, and what its gang has written down since."""

from collections.abc import Sequence

from ffdl_airflow.core.events import Event, recorded
from ffdl_airflow.core.lifecycle import apply, fold
from ffdl_airflow.stages.deps import Deps


def story(deps: Deps, job_id: str) -> list[Event]:
    """The events of a job, and after them those of its gang's journal that no driver has taken yet.

    Nothing is appended: what is shown so is in the log as soon as somebody drives the job. Empty
    for a job that there is not.
    """
    events = deps.ledger.read(job_id)
    return [*events, *_not_taken_yet(deps, job_id, events)]


def _not_taken_yet(deps: Deps, job_id: str, events: Sequence[Event]) -> list[Event]:
    state = fold(job_id, events)
    if not state.placed:
        return []
    found = []
    seen = deps.engine.observe(state.placement_id, state.journal_seq)
    for fact in seen.facts:
        event = recorded(job_id, state.seq + 1, fact, deps.clock())
        state = apply(state, event)
        found.append(event)
    return found
