"""From the evidence of a failed attempt to a verdict.

Order: what the agent itself saw (stop, limit, hang, a lost replica), then the log of the first
failing rank (``log_rules.py``), then signal and exit code. Not for: what follows; that is
``classes.py`` and ``retry.py``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.failures import log_rules
from ffdl_airflow.core.failures.classes import POLICIES, FailureClass

F = FailureClass
# Exit codes of shells and of the C library: bash(1), "EXIT STATUS".
_SHELL_CODES: Mapping[object, str] = {
    126: "the command cannot be executed",
    127: "the command was not found",
}
_WRONG_USE = 2  # argparse, bash
_KILLS = (2, 9, 15)
_DOWNLOADS = (".cache/", "huggingface.co")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was decided from an attempt's evidence. ``certain``: one look is enough."""

    failure: FailureClass
    cause: str
    certain: bool
    replica: str | None = None
    rank: int | None = None
    ran: bool = True

    def document(self) -> dict[str, Any]:
        """Plain data, as it is stored in the Verdict event."""
        policy = POLICIES[self.failure]
        return {
            "class": self.failure.value, "cause": self.cause, "certain": self.certain,
            "costs": policy.costs, "replica": self.replica, "rank": self.rank, "ran": self.ran,
            "next_step": policy.next_step,
        }  # fmt: skip


def judge(result: Mapping[str, Any], *, resumed: bool = True) -> Verdict:
    """The verdict on an attempt, from the body of its AttemptEnded event.

    ``resumed``: it had a checkpoint to read. Without one a damaged file is the program's own.
    """
    cause = result.get("cause") or {}
    by_agent = _BY_CAUSE.get(str(cause.get("kind")))
    if by_agent is not None:
        return by_agent(cause, result)
    verdict = _from_process(cause, result)
    if verdict.failure is F.CKPT_CORRUPT and not (resumed and _is_ours(verdict.cause)):
        return replace(verdict, failure=F.DATA_MISSING)
    if verdict.failure is F.RENDEZVOUS and result.get("last_step") is not None:
        return replace(verdict, failure=F.PEER_LOST)  # they had met: somebody has gone since
    return verdict


_Judge = Callable[[Mapping[str, Any], Mapping[str, Any]], Verdict]


def _seen(failure: FailureClass, *, certain: bool = False, ran: bool = True) -> _Judge:
    def verdict(cause: Mapping[str, Any], result: Mapping[str, Any]) -> Verdict:
        text = str(cause.get("text") or failure.value)
        return _verdict(failure, text, cause, certain=certain, ran=ran)

    return verdict


def _preflight(cause: Mapping[str, Any], result: Mapping[str, Any]) -> Verdict:
    failure = _BY_CHECK.get(str(cause.get("check")), F.NODE_SETUP)
    text = str(cause.get("text") or "a check before the start failed")
    return _verdict(failure, text, cause, certain=failure is F.USER_ERROR, ran=False)


_BY_CAUSE: Mapping[str, _Judge] = {
    protocol.CAUSE_STOP: _seen(F.CANCELLED, certain=True),
    protocol.CAUSE_DEADLINE: _seen(F.DEADLINE, certain=True),
    protocol.CAUSE_HANG: _seen(F.HANG),
    protocol.CAUSE_AGENT_LOST: _seen(F.KILLED_OUTSIDE),
    protocol.CAUSE_START: _seen(F.USER_ERROR, certain=True, ran=False),
    protocol.CAUSE_PLACEMENT_TIMEOUT: _seen(F.RENDEZVOUS, ran=False),
    protocol.CAUSE_PREFLIGHT: _preflight,
}
# The checks of agent/preflight.py; those of the node are not listed.
_BY_CHECK = {
    "command": F.USER_ERROR,
    "cwd": F.DATA_MISSING,
    "required-path": F.DATA_MISSING,
    "checkpoint": F.CKPT_CORRUPT,
    "disk": F.DISK_FULL,
}


def _from_process(cause: Mapping[str, Any], result: Mapping[str, Any]) -> Verdict:
    tail = str(result.get("tail") or "")
    code, signal = cause.get("exit"), cause.get("signal")
    killed = signal in _KILLS or (code or 0) - 128 in _KILLS
    found = log_rules.look_killed(tail) if killed else log_rules.look(tail)
    if found is not None and found.failure is not F.PEER_LOST:
        return _verdict(found.failure, found.line, cause, certain=found.certain)
    text = _process_text(cause, tail)
    if killed:
        return _verdict(F.KILLED_OUTSIDE, text, cause)
    if code in _SHELL_CODES:
        return _verdict(F.USER_ERROR, f"{text}: {_SHELL_CODES[code]}", cause, certain=True)
    if code == _WRONG_USE:
        return _verdict(F.USER_ERROR, text, cause)
    if found is not None:
        return _verdict(F.PEER_LOST, found.line, cause)
    return _verdict(F.UNKNOWN, text, cause)


def _is_ours(line: str) -> bool:
    return not any(word in line for word in _DOWNLOADS)


def _process_text(cause: Mapping[str, Any], tail: str) -> str:
    signal = cause.get("signal")
    how = (
        f"was killed by signal {signal}" if signal else f"ended with exit code {cause.get('exit')}"
    )
    text = f"rank {cause.get('rank')} ({cause.get('replica')}) {how}"
    last = None if signal else log_rules.last_line(tail)
    return f"{text}; its last line: {last}" if last else text


def _verdict(failure: FailureClass, text: str, cause: Mapping[str, Any], *,
             certain: bool = False, ran: bool = True) -> Verdict:  # fmt: skip
    return Verdict(
        failure=failure, cause=text, certain=certain, ran=ran,
        replica=cause.get("replica"), rank=cause.get("rank"),
    )  # fmt: skip
