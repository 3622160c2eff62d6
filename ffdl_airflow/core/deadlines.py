"""The deadlines of stages (``spec.deadlines``): since when a stage runs, and whether it is late.

Pure, and counted from the log: whoever drives, and whenever it began to, finds the same. Not for:
``gpuTimeLimit``, which the agents keep, nor for the deadline of a DAG run, which is Airflow's.

A stage counts from its phase's entry: prefetch from Prefetching to DataReady, register from
Registering to Succeeded, reserve for each stay in Reserving. Launch counts from the first Reserved
after the data were ready, through all of its restarts, to Trained. A clear lets it count anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ffdl_airflow.core.failures.classes import FailureClass
from ffdl_airflow.core.lifecycle import JobState, Phase

P = Phase
_STAGE_OF: Mapping[Phase, str] = {
    P.PREFETCHING: "prefetch", P.RESERVING: "reserve", P.REGISTERING: "register",
}  # fmt: skip
_LAUNCHING = (P.RESERVING, P.RESERVED, P.STARTING, P.RUNNING)


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """A stage that has to be over by ``due``; ``limit_s`` is what the spec allows."""

    stage: str
    limit_s: float
    since: datetime

    @property
    def due(self) -> datetime:
        """The moment."""
        return self.since + timedelta(seconds=self.limit_s)

    def verdict(self, state: JobState) -> dict[str, Any]:
        """What the job fails with, as the event that ends it keeps it."""
        waited = f": {state.waiting}" if self.stage == "reserve" and state.waiting else ""
        field = f"spec.deadlines.{self.stage}"
        return {
            "class": FailureClass.DEADLINE.value,
            "cause": f"{self.stage} took longer than {field}, {self.limit_s:g} s{waited}",
            "next_step": f"raise {field} or look what took so long, then continue the job",
        }


def running(state: JobState) -> list[Deadline]:
    """The deadlines that count now, the next one first. While something is ended none does."""
    limits = state.spec.get("spec", {}).get("deadlines") or {}
    found = []
    stage = None if state.phase is None else _STAGE_OF.get(state.phase)
    if stage is not None and stage in limits:
        since = state.story[-1][1]
        found.append(Deadline(stage=stage, limit_s=float(limits[stage]), since=since))
    first = _first_reserved(state) if state.phase in _LAUNCHING and "launch" in limits else None
    if first is not None:
        found.append(Deadline(stage="launch", limit_s=float(limits["launch"]), since=first))
    return sorted(found, key=lambda deadline: deadline.due)


def overdue(state: JobState, now: datetime) -> Deadline | None:
    """The stage that is late, None while none is."""
    return next((deadline for deadline in running(state) if deadline.due <= now), None)


def left_s(state: JobState, now: datetime) -> float | None:
    """Seconds to the next deadline; None where there is none."""
    found = running(state)
    return max(0.0, (found[0].due - now).total_seconds()) if found else None


def _first_reserved(state: JobState) -> datetime | None:
    first = None
    for phase, at in reversed(state.story):
        if phase is P.DATA_READY:
            break
        if phase is P.RESERVED:
            first = at
    return first
