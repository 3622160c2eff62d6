"""Whether and when a failed attempt is followed by another: one policy, one file.

For: (verdict, history of the job) → restart or fail, with the delay and the reason. Pure: the
jitter comes from the job's id and the attempt's number, so two drivers decide the same.
"""

import hashlib
from dataclasses import dataclass

from ffdl_airflow.core.failures.classes import POLICIES, UNKNOWN_RESTARTS, FailureClass
from ffdl_airflow.core.failures.rules import Verdict

BACKOFF_BASE_S = 2.0
BACKOFF_CEILING_S = 300.0
JITTER = 0.2
"""Back-off: 2 s times 2ⁿ, at most 300 s, ± 20 %. Chosen."""
EARLY_LOSS_LIMIT = 20
"""Losses before any user code ran that end a job. Chosen."""
_NO_ADVANCE = (
    "look why no checkpoint becomes complete: whether the program saves, how often, and what ends "
    "the attempts before; then continue the job"
)
_EARLY = "look at the events for what is lost before the program starts; then continue the job"
_NO_BACKOFF = frozenset({FailureClass.PREEMPTED, FailureClass.PREEMPTED_BEFORE_START})
_DOUBLINGS = 16  # far beyond the ceiling; 2ⁿ of a long history is no float any more


@dataclass(frozen=True, kw_only=True)
class History:
    """What counts for the decision. All numbers are since the start or the last clear.

    ``since_checkpoint`` restarts since the last newer checkpoint, ``no_advance`` those of attempts
    that ran, ``early_losses`` those of attempts in which no user code ran.
    """

    job_id: str
    attempt: int
    backoff_limit: int
    no_advance_limit: int
    costly: int = 0
    unknown: int = 0
    no_advance: int = 0
    early_losses: int = 0
    since_checkpoint: int = 0
    same_class_before: bool = False


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Start another attempt after ``delay_s``. ``costs``: it uses ``backoffLimit``."""

    costs: bool
    delay_s: float
    reason: str


@dataclass(frozen=True)
class GiveUp:
    """No further attempt. ``next_step``: what a person should do, which fits the reason."""

    reason: str
    next_step: str


def decide(verdict: Verdict, history: History) -> Restart | GiveUp:
    """Restart or give up after an attempt that failed with ``verdict``."""
    policy = POLICIES[verdict.failure]
    refusal = _refusal(verdict, history)
    if refusal is not None:
        return refusal
    used = f"{history.costly + 1} of backoffLimit {history.backoff_limit}"
    reason = f"{verdict.failure}: {used if policy.costs else 'costs nothing'}"
    return Restart(costs=policy.costs, delay_s=_delay_s(verdict, history), reason=reason)


def early_delay_s(losses: int) -> float:
    """Before a place is asked for again that was lost before a start, after so many such losses.

    The first is made good at once.
    """
    if losses == 0:
        return 0.0
    return float(min(BACKOFF_BASE_S * 2.0 ** min(losses - 1, _DOUBLINGS), BACKOFF_CEILING_S))


def _refusal(verdict: Verdict, history: History) -> GiveUp | None:  # noqa: PLR0911 - one a limit
    policy = POLICIES[verdict.failure]
    name, mend = verdict.failure.value, verdict.next_step
    if policy.restart == "never":
        return GiveUp(f"{name} ends the job", mend)
    if policy.restart == "once" and history.same_class_before:
        return GiveUp(f"{name}: a second attempt ended the same way", mend)
    if policy.restart == "once" and verdict.certain:
        return GiveUp(f"{name} does not go away by another attempt", mend)
    if verdict.failure is FailureClass.UNKNOWN and history.unknown >= UNKNOWN_RESTARTS:
        return GiveUp(f"{name} for the third time", mend)
    if policy.costs and history.costly >= history.backoff_limit:
        reason = f"backoffLimit {history.backoff_limit} is used up"
        return GiveUp(reason, f"{mend}; then continue the job, if need be with more backoffLimit")
    if verdict.ran and history.no_advance + 1 >= history.no_advance_limit:
        reason = f"{history.no_advance + 1} attempts in a row without a newer valid checkpoint"
        return GiveUp(reason, _NO_ADVANCE)
    if not verdict.ran and history.early_losses + 1 >= EARLY_LOSS_LIMIT:
        return GiveUp(f"lost {EARLY_LOSS_LIMIT} times before any user code ran", _EARLY)
    return None


def _delay_s(verdict: Verdict, history: History) -> float:
    n = history.since_checkpoint  # 0 is the first restart since the start or a newer checkpoint
    if n == 0 or verdict.failure in _NO_BACKOFF:
        return 0.0
    seed = hashlib.sha256(f"{history.job_id}/{history.attempt}".encode()).digest()
    jitter = 1 + JITTER * (2 * seed[0] / 255 - 1)
    wanted = min(BACKOFF_BASE_S * 2.0 ** min(n, _DOUBLINGS), BACKOFF_CEILING_S)
    return min(wanted * jitter, BACKOFF_CEILING_S)
