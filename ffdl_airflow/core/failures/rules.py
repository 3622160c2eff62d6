"""From the evidence of a failed attempt to a verdict.

Order: what the control plane says of lost replicas (``control_plane.py``), what the agent itself
saw (stop, limit, hang, a lost replica), then the log of the first failing rank (``log_rules.py``),
then signal and exit code. Not for: what follows; that is ``classes.py`` and ``retry.py``.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.failures import control_plane, log_rules
from ffdl_airflow.core.failures.classes import FailureClass
from ffdl_airflow.core.failures.verdict import Verdict

__all__ = ["Verdict", "judge", "of_ending"]

F = FailureClass
# Exit codes of shells and of the C library: bash(1), "EXIT STATUS".
_SHELL_CODES: Mapping[object, str] = {
    126: "the command cannot be executed",
    127: "the command was not found",
}
_WRONG_USE = 2  # argparse, bash
_KILLS = (2, 9, 15)
_DOWNLOADS = (".cache/", "huggingface.co")


def of_ending(ending: Mapping[str, Any]) -> Verdict:
    """The verdict for which a driver ends a job by itself: a deadline, idle resources."""
    return Verdict(
        failure=FailureClass(ending["class"]), cause=str(ending["cause"]), certain=True,
        advice=ending.get("next_step"),
    )  # fmt: skip


def judge(result: Mapping[str, Any], *, resumed: bool = True) -> Verdict:
    """The verdict on an attempt, from the body of its AttemptEnded event.

    ``resumed``: it had a checkpoint to read. Without one a damaged file is the program's own.
    """
    from_outside = control_plane.verdict(result)
    if from_outside is not None:
        return from_outside
    cause = result.get("cause") or control_plane.cause_of_exit(result)
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


def _agent_lost(cause: Mapping[str, Any], result: Mapping[str, Any]) -> Verdict:
    """With what the control plane says of the container in which the agent was."""
    entry = control_plane.exit_of(result, cause.get("replica"))
    text = str(cause.get("text"))
    if entry is not None:
        text = f"{control_plane.place_of(entry)}: {entry.get('message')}"
        cause = {**cause, "replica": entry.get("replica")}
    return _verdict(F.KILLED_OUTSIDE, text, cause)


_BY_CAUSE: Mapping[str, _Judge] = {
    protocol.CAUSE_STOP: _seen(F.CANCELLED, certain=True),
    protocol.CAUSE_DEADLINE: _seen(F.DEADLINE, certain=True),
    protocol.CAUSE_HANG: _seen(F.HANG),
    protocol.CAUSE_AGENT_LOST: _agent_lost,
    protocol.CAUSE_TERMINATED: _seen(F.KILLED_OUTSIDE),
    protocol.CAUSE_OOM: _seen(F.HOST_OOM),
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
    "port": F.START_ORDER,
    "interface": F.CONFIG,
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
    text = f"{protocol.who(cause.get('replica'), cause.get('rank'))} {how}"
    last = None if signal else log_rules.last_line(tail)
    return f"{text}; its last line: {last}" if last else text


def _verdict(failure: FailureClass, text: str, cause: Mapping[str, Any], *,
             certain: bool = False, ran: bool = True) -> Verdict:  # fmt: skip
    return Verdict(
        failure=failure, cause=text, certain=certain, ran=ran,
        replica=cause.get("replica"), rank=cause.get("rank"),
    )  # fmt: skip
