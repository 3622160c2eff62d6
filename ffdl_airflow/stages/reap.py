"""Reap: end what is left of placements that nobody will come back for."""

from dataclasses import dataclass

from ffdl_airflow.core.lifecycle import JobState, fold
from ffdl_airflow.engines.base import Ending, EndRequest, SupportsPlacements
from ffdl_airflow.stages.deps import Deps


@dataclass(frozen=True, kw_only=True)
class Reaped:
    """One placement that was ended, and why. ``killed``: processes that were left of it."""

    placement_id: str
    why: str
    killed: int


def reap(deps: Deps) -> list[Reaped]:
    """End every placement that its job does not need. Safe to run twice, and beside drivers."""
    if not isinstance(deps.engine, SupportsPlacements):
        return []
    found = []
    for placement_id in deps.engine.placements():
        why = _ownerless(deps, placement_id)
        if why is None:
            continue
        answer = deps.engine.end(placement_id, EndRequest(why=why))
        if isinstance(answer, Ending):
            answer = deps.engine.end(placement_id, EndRequest(why=why))
        killed = 0 if isinstance(answer, Ending) else answer.killed
        found.append(Reaped(placement_id=placement_id, why=why, killed=killed))
    return found


def _ownerless(deps: Deps, placement_id: str) -> str | None:
    job_id, number = placement_id.rsplit("/", 1)
    events = deps.ledger.read(job_id)
    if not events:
        return "the ledger does not know its job"
    state: JobState = fold(job_id, events)
    if int(number) < state.placement:
        return "its job has a newer placement"
    if not state.placed:
        return f"its job has released it ({state.phase})"
    if state.terminal:
        return f"its job has ended ({state.phase})"
    return None
