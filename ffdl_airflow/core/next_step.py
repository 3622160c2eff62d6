"""What a driver does next: state, goal and time in, one action out.

For: the order of a job's life, in one place, the same for every driver. Pure. Not for: doing it;
``stages/advance.py`` performs the action and appends the facts that come of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ffdl_airflow.core import deadlines
from ffdl_airflow.core.events import Kind, NewEvent
from ffdl_airflow.core.failures.rules import of_ending
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import JobState, Phase
from ffdl_airflow.core.retry import EARLY_LOSS_LIMIT


@dataclass(frozen=True)
class Append:
    """Nothing to do in the world: the decision itself is the event."""

    events: tuple[NewEvent, ...]


@dataclass(frozen=True)
class Validate:
    """Check what can only be checked here: data paths, slots, quota, checkpoint owner."""


@dataclass(frozen=True)
class Prefetch:
    """See to it that the job's data become a generation, and look how far that is."""


@dataclass(frozen=True)
class JudgeMover:
    """Decide what follows from a failed prefetch."""


@dataclass(frozen=True)
class Reserve:
    """See to it that the intended placement exists, and look whether it is complete."""


@dataclass(frozen=True)
class Launch:
    """Choose a checkpoint and intend the next attempt."""


@dataclass(frozen=True)
class Go:
    """Tell the gang to start the intended attempt, and look."""


@dataclass(frozen=True)
class Observe:
    """Look at the placement."""


@dataclass(frozen=True)
class Save:
    """Ask the running attempt for a checkpoint, and look."""


@dataclass(frozen=True)
class Judge:
    """Decide what follows from the failed attempt."""


@dataclass(frozen=True)
class EndPlacement:
    """See to it that the placement is gone, with every process of it."""

    why: str
    mode: str


@dataclass(frozen=True)
class Register:
    """See to it that the model is published."""


@dataclass(frozen=True)
class WaitUntil:
    """Nothing to do before ``moment``."""

    moment: datetime
    what: str


@dataclass(frozen=True)
class Finish:
    """The goal is reached, or it cannot be reached any more: ``state.phase`` tells."""


Action = (
    Append | Validate | Prefetch | JudgeMover | Reserve | Launch | Go | Observe | Save | Judge
    | EndPlacement | Register | WaitUntil | Finish
)  # fmt: skip

_BEFORE_DATA = (Phase.SUBMITTED, Phase.VALIDATED, Phase.PREFETCHING)
_AFTER_RESERVE = (
    Phase.RESERVED, Phase.STARTING, Phase.RUNNING,
    Phase.TRAINED, Phase.REGISTERING, Phase.SUCCEEDED,
)  # fmt: skip
_AFTER_LAUNCH = (Phase.TRAINED, Phase.REGISTERING, Phase.SUCCEEDED)


def reached(state: JobState, goal: Goal) -> bool:  # noqa: PLR0911 - one line a goal
    """Whether the goal is reached. What ended is reached only by ``release``."""
    if goal is Goal.RELEASE:
        return not state.placed and (state.terminal or state.phase in (*_BEFORE_DATA,
                                     Phase.DATA_READY, *_AFTER_LAUNCH))  # fmt: skip
    if state.phase in (None, Phase.FAILED, Phase.STOPPED):
        return False
    if goal is Goal.SUBMIT:
        return state.phase is not Phase.SUBMITTED
    if goal is Goal.PREFETCH:
        return state.phase not in _BEFORE_DATA
    if goal is Goal.RESERVE:
        return state.phase in _AFTER_RESERVE
    if goal is Goal.LAUNCH:
        return state.phase in _AFTER_LAUNCH and not state.placed
    return state.phase is Phase.SUCCEEDED and not state.placed


def next_step(state: JobState, goal: Goal, now: datetime) -> Action:
    """The one thing to do now."""
    if state.placed and state.must_end is not None:
        return EndPlacement(why=state.must_end, mode=state.end_mode)
    if state.terminal:
        return Finish()
    if state.stop_wanted is not None:
        return _stop(state, state.stop_wanted, now)
    if reached(state, goal):
        return Finish()
    if goal is Goal.RELEASE:
        return _append(Kind.STOP_WANTED, now, {"mode": "now", "why": "released", "by": "release"})
    return _late(state, now) or _by_phase(state, now)


def _late(state: JobState, now: datetime) -> Append | None:
    late = deadlines.overdue(state, now)
    return end_for(state, late.verdict(state), now=now) if late is not None else None


def end_for(state: JobState, verdict: Mapping[str, Any], *, now: datetime) -> Append:
    """The job is to fail with a verdict of its driver: what runs saves and ends first."""
    if state.placed:
        body = {"placement": state.placement, "why": verdict["cause"], "mode": "save",
                "verdict": dict(verdict)}  # fmt: skip
        return _append(Kind.END_INTENDED, now, body)
    found = of_ending(verdict)
    body = {**found.document(), "placement": state.placement or None}
    failed = {"reason": found.cause, "class": found.failure.value, "next_step": found.next_step}
    return Append((NewEvent(kind=Kind.VERDICT, at=now, body=body),
                   NewEvent(kind=Kind.FAILED, at=now, body=failed)))  # fmt: skip


def _stop(state: JobState, wish: Any, now: datetime) -> Action:
    why = str(wish.get("why") or "stop asked for")
    if state.placed:
        body = {"placement": state.placement, "why": why, "mode": wish.get("mode", "save")}
        return _append(Kind.END_INTENDED, now, body)
    return _append(Kind.STOPPED, now, {"reason": why, "by": wish.get("by", "")})


def _by_phase(state: JobState, now: datetime) -> Action:  # noqa: C901, PLR0911 - one line a phase
    match state.phase:
        case Phase.SUBMITTED:
            return Validate()
        case Phase.VALIDATED:
            return _append(Kind.MOVER_INTENDED, now, {})
        case Phase.PREFETCHING:
            return _waits(state, now) or (JudgeMover() if state.mover_error else Prefetch())
        case Phase.DATA_READY | Phase.RESERVING:
            return _reserving(state, now)
        case Phase.RESERVED:
            return _waits(state, now) or Launch()
        case Phase.STARTING:
            return Go()
        case Phase.RUNNING:
            return Save() if state.save_wanted is not None else Observe()
        case Phase.STOPPING:
            return _stopping(state, now)
        case Phase.TRAINED:
            kind = Kind.REGISTER_INTENDED if state.spec["spec"].get("model") else Kind.SUCCEEDED
            return _append(kind, now, {})
        case _:
            if state.model is not None:
                return _append(Kind.SUCCEEDED, now, {})
            return _waits(state, now) or Register()


def _reserving(state: JobState, now: datetime) -> Action:
    if state.placed:
        return Reserve()
    if state.early_losses >= EARLY_LOSS_LIMIT:
        reason = f"the gang was lost {state.early_losses} times before any user code ran"
        return _append(Kind.FAILED, now, {"reason": reason})
    return _waits(state, now) or _append(
        Kind.RESERVE_INTENDED, now, {"placement": state.placement + 1}
    )


def _stopping(state: JobState, now: datetime) -> Action:
    if state.last_attempt_ok:
        return _append(Kind.TRAINED, now, {"attempt": state.attempt, "step": state.step,
                                           "checkpoint": state.checkpoint})  # fmt: skip
    if state.attempt_result is not None and state.verdict is None:
        return Judge()
    if state.ending is not None:
        return end_for(state, state.ending, now=now)
    return _append(Kind.STOPPED, now, {"reason": state.reason or "ended without a result"})


def _waits(state: JobState, now: datetime) -> WaitUntil | None:
    if state.not_before is not None and state.not_before > now:
        return WaitUntil(moment=state.not_before, what="back-off")
    return None


def _append(kind: Kind, now: datetime, body: dict[str, Any]) -> Append:
    return Append((NewEvent(kind=kind, at=now, body=body),))
