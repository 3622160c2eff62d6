"""Wishes from outside: anyone may append them, the driver acts."""

from collections.abc import Mapping
from typing import Any

from ffdl_airflow.core.errors import NotFoundError
from ffdl_airflow.core.events import Event, Kind, NewEvent
from ffdl_airflow.ledger.base import Batch
from ffdl_airflow.stages.deps import Deps


def stop(deps: Deps, job_id: str, *, mode: str, by: str, why: str = "stop asked for",
         placement: int | None = None) -> None:  # fmt: skip
    """Wish that the job stops: ``save`` first or ``now``. With a placement it means only that."""
    body: dict[str, Any] = {"mode": mode, "by": by, "why": why}
    if placement is not None:
        body["placement"] = placement
    _append(deps, job_id, Kind.STOP_WANTED, body=body)


def save(deps: Deps, job_id: str, *, by: str) -> None:
    """Wish for a checkpoint now."""
    _append(deps, job_id, Kind.SAVE_WANTED, body={"by": by})


def clear(deps: Deps, job_id: str, *, task: str, number: int, mode: str, to: str = "Validated",
          ) -> bool:  # fmt: skip
    """End what runs, then go on: from the newest checkpoint (``resume``) or ``fresh``.

    The pair (task, number) counts once; returns whether this call was the one. What a mover once
    answered is forgotten, so that the data are looked at anew.
    """
    deps.cache.release_all(job=job_id)
    body = {"task": task, "number": number, "mode": mode, "to": to}
    return bool(_append(deps, job_id, Kind.CLEARED, body=body, dedupe=f"cleared:{task}:{number}"))


def _append(deps: Deps, job_id: str, kind: Kind, *, body: Mapping[str, Any],
            dedupe: str | None = None) -> list[Event]:  # fmt: skip
    if not deps.ledger.read(job_id):
        raise NotFoundError(f"there is no job {job_id}")
    event = NewEvent(kind=kind, at=deps.clock(), body=body, dedupe=dedupe, source=deps.source)
    return deps.ledger.append(Batch(stream=job_id, expected_seq=None, events=[event]))
