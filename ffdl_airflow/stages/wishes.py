"""Wishes from outside: anyone may append them, the driver acts."""

from collections.abc import Mapping
from typing import Any

from ffdl_airflow.core.errors import NotFoundError
from ffdl_airflow.core.events import Event, Kind, NewEvent, recorded
from ffdl_airflow.core.lifecycle import apply, fold
from ffdl_airflow.ledger.base import Conflict
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.recording import batch_of

_TRIES = 50
"""Tries of an append. Chosen: far above the number of drivers of a job."""


def stop(deps: Deps, job_id: str, *, mode: str, by: str, why: str = "stop asked for",
         clears: int | None = None) -> None:  # fmt: skip
    """Wish that the job stops: ``save`` first or ``now``.

    ``clears``: how many clears of the job the wisher knows of. After a newer one the wish is
    recorded and has no effect, so that a late kill cannot stop what a clear has begun.
    """
    body: dict[str, Any] = {"mode": mode, "by": by, "why": why}
    if clears is not None:
        body["clears"] = clears
    _append(deps, job_id, Kind.STOP_WANTED, body=body)


def save(deps: Deps, job_id: str, *, by: str) -> None:
    """Wish for a checkpoint now."""
    _append(deps, job_id, Kind.SAVE_WANTED, body={"by": by})


def clear(deps: Deps, job_id: str, *, task: str, number: int, mode: str) -> bool:
    """End what runs, then go on: from the newest checkpoint (``resume``) or ``fresh``.

    The pair (task, number) counts once; returns whether this call was the one. What a mover once
    answered is forgotten, so that the data are looked at anew.
    """
    key = f"cleared:{task}:{number}"
    if any(event.dedupe == key for event in deps.ledger.read(job_id)):
        return False
    deps.cache.release_all(job=job_id)
    body = {"task": task, "number": number, "mode": mode}
    return bool(_append(deps, job_id, Kind.CLEARED, body=body, dedupe=key))


def _append(deps: Deps, job_id: str, kind: Kind, *, body: Mapping[str, Any],
            dedupe: str | None = None) -> list[Event]:  # fmt: skip
    """Append the wish, with the row that lists show: a clear changes the phase at once."""
    event = NewEvent(kind=kind, at=deps.clock(), body=body, dedupe=dedupe, source=deps.source)
    for left in reversed(range(_TRIES)):
        events = deps.ledger.read(job_id)
        if not events:
            raise NotFoundError(f"there is no job {job_id}")
        if dedupe is not None and any(known.dedupe == dedupe for known in events):
            break
        state = fold(job_id, events)
        after = apply(state, recorded(job_id, state.seq + 1, event, recorded_at=event.at))
        try:
            return deps.ledger.append(batch_of([event], before=state, after=after))
        except Conflict:
            if left == 0:
                raise
    return []
