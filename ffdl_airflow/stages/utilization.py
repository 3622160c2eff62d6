"""Watch: the utilization ladder of a running gang, wherever a driver looks at one.

Every job has it, whatever the shape of its DAG. For: from a look to the events of the ladder.
"""

from datetime import datetime

from ffdl_airflow.core.events import Kind, NewEvent, iso, parse_iso
from ffdl_airflow.core.failures.classes import FailureClass
from ffdl_airflow.core.lifecycle import JobState, Phase
from ffdl_airflow.core.next_step import end_for
from ffdl_airflow.core.observation import Observation
from ffdl_airflow.core.utilization import (
    NEXT_STEP,
    Past,
    Reading,
    Recovered,
    Stop,
    Warn,
    reading,
    rung,
    told,
    warning,
)
from ffdl_airflow.stages.deps import Job


def climb(job: Job, seen: Observation, *, now: datetime) -> tuple[NewEvent, ...]:
    """What the newest figures lead to; nothing while no attempt runs."""
    state, policy = job.state, job.spec.spec.watchdog
    if state.phase is not Phase.RUNNING or seen.attempt != state.attempt:
        return ()
    found = reading(seen.status)
    past = Past(warned_at=parse_iso(state.warned["at"]) if state.warned else None,
                warnings=state.warnings)  # fmt: skip
    action = rung(found, policy, past, now=now)
    if isinstance(action, Warn):
        return (_warned(state, found, at=action.at, action=policy.action),)
    if isinstance(action, Recovered):
        return (_recovered(state, found, at=now),)
    if isinstance(action, Stop):
        return end_for(state, _verdict(found, cooldown_s=policy.cooldown), now=now).events
    return ()


def _warned(state: JobState, found: Reading, *, at: datetime, action: str) -> NewEvent:
    """Of two drivers that look at once one says it."""
    body = {**warning(found, action=action), "placement": state.placement}
    return NewEvent(kind=Kind.WATCHDOG_WARNED, at=at, attempt=state.attempt, body=body,
                    dedupe=f"watchdog:{state.placement}:{state.attempt}:{iso(at)}")  # fmt: skip


def _recovered(state: JobState, found: Reading, *, at: datetime) -> NewEvent:
    reason = f"no unit is below its threshold any more: {found.percent:g} %"
    body = {"reason": reason, "percent": found.percent, "placement": state.placement}
    return NewEvent(kind=Kind.WATCHDOG_RECOVERED, at=at, attempt=state.attempt, body=body)


def _verdict(found: Reading, *, cooldown_s: float) -> dict[str, str]:
    cause = f"{told(found)}, for {cooldown_s:g} s after the warning"
    return {"class": FailureClass.IDLE.value, "cause": cause, "next_step": NEXT_STEP}
