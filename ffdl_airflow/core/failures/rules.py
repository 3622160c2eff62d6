"""From the evidence of a failed attempt to a verdict: a table of rows, first match wins.

Order: what the agent itself saw (stop, limit, hang, a lost replica), then the log of the first
failing rank, then signal and exit code. Survivors' noise (``ChildFailedError``, a peer's reset
connection) is asked last. Not for: what follows; that is ``classes.py`` and ``retry.py``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.failures.classes import POLICIES, FailureClass

F = FailureClass
_LINE_LENGTH = 300


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


@dataclass(frozen=True)
class LogRule:
    """A pattern in a log line and the class that it means."""

    failure: FailureClass
    pattern: re.Pattern[str]
    certain: bool = False


def _rule(failure: FailureClass, pattern: str, *, certain: bool = False) -> LogRule:
    return LogRule(failure, re.compile(pattern), certain)


# Wordings: PyTorch, JAX, TensorFlow, NCCL and Python's own exceptions, as printed by their releases.
LOG_RULES: tuple[LogRule, ...] = (
    _rule(F.GPU_FAULT, r"uncorrectable ECC|ECC_UNCORRECTABLE|NVRM: Xid|GPU is lost"),
    _rule(F.SHM, r"/dev/shm.*No space left|No space left.*/dev/shm|bus error.*shared memory"
                 r"|Error while creating shared memory segment|torch_\d+_\d+.*No space left"),
    _rule(F.DISK_FULL, r"\[Errno 28\]|No space left on device|Disk quota exceeded"
                       r"|PytorchStreamWriter failed writing|inline_container.*unexpected pos"),
    _rule(F.GPU_OOM, r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY"
                     r"|RESOURCE_EXHAUSTED: (?:Out of memory|OOM)|OOM when allocating tensor"),
    _rule(F.HOST_OOM, r"DataLoader worker \(pid \d+\) is killed by signal: Killed"
                      r"|^(?:\w+\.)*MemoryError\b|Cannot allocate memory"
                      r"|exitcode\s*: -9 \(pid|DefaultCPUAllocator: can't allocate"),
    _rule(F.CKPT_CORRUPT, r"PytorchStreamReader failed|file might be corrupted"
                          r"|pickle data was truncated|Ran out of input|DataLossError"
                          r"|SafetensorError: Error while deserializing|BadZipFile"),
    _rule(F.COMM_MISUSE, r"Duplicate GPU detected|ncclInvalidUsage", certain=True),
    _rule(F.NUMERIC, r"FloatingPointError|[Ll]oss (?:is|became) (?:infinite or )?[Nn]a[Nn]\b"),
    _rule(F.COMM_TIMEOUT, r"Watchdog caught collective operation timeout|collective.*timed? ?out"
                          r"|Connect timeout|DEADLINE_EXCEEDED"),
    _rule(F.START_ORDER, r"failed to listen on any local network address|Address already in use"),
    _rule(F.RENDEZVOUS, r"RendezvousConnectionError|RendezvousTimeoutError"
                        r"|client socket has timed out.*trying to connect"),
    _rule(F.USER_ERROR, r"device-side assert triggered|Assertion `.*` failed"
                        r"|unrecognized arguments|size mismatch for|the following arguments are "
                        r"required|can't open file .*No such file", certain=True),
    _rule(F.USER_ERROR, r"^(?:\w+\.)*(?:ModuleNotFoundError|ImportError|SyntaxError|NameError"
                        r"|IndentationError|AttributeError|TypeError)\b", certain=True),
    _rule(F.DATA_MISSING, r"^(?:\w+\.)*(?:FileNotFoundError|NotADirectoryError)\b", certain=True),
    _rule(F.USER_ERROR, r"^(?:\w+\.)*(?:AssertionError|KeyError|ValueError|IndexError"
                        r"|ZeroDivisionError|PermissionError|UnicodeDecodeError)\b", certain=True),
    _rule(F.COMM_ERROR, r"ncclSystemError|ncclInternalError|unhandled system error|"
                        r"socketStartConnect"),
    _rule(F.PEER_LOST, r"ncclRemoteError|Connection reset by peer|Connection closed by peer"
                       r"|Socket closed|UnavailableError|heartbeat timeout|UNAVAILABLE:"),
)  # fmt: skip

# What is printed although nothing is wrong, or by those who only survived.
_NOISE = re.compile(
    r"server socket has failed to bind|destroy_process_group\(\) was not called|Exception ignored"
    r"|Could not load dynamic library|Sending process \d+ closing signal|ChildFailedError"
    r"|To enable traceback see|asynchronously reported|transient connectivity failure"
)
_RANK_PREFIX = re.compile(r"^(?:\[(?:rank|default)\d+\]:|\d+:)\s?")
_EXCEPTION_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b.*")

# Exit codes of shells and of the C library: bash(1), "EXIT STATUS".
_SHELL_CODES = {126: "the command cannot be executed", 127: "the command was not found"}
_EX_OK_TO_RETRY = {128 + 9, 128 + 15}


def judge(result: Mapping[str, Any]) -> Verdict:
    """The verdict on an attempt, from the body of its AttemptEnded event."""
    cause = result.get("cause") or {}
    by_agent = _BY_CAUSE.get(str(cause.get("kind")))
    if by_agent is not None:
        return by_agent(cause, result)
    return _from_process(cause, result)


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
_BY_CHECK = {
    "command": F.USER_ERROR,
    "paths": F.DATA_MISSING,
    "checkpoint": F.CKPT_CORRUPT,
    "disk": F.DISK_FULL,
    "port": F.START_ORDER,
}


def _from_process(cause: Mapping[str, Any], result: Mapping[str, Any]) -> Verdict:
    tail = str(result.get("tail") or "")
    found = _from_log(tail)
    code, signal = cause.get("exit"), cause.get("signal")
    if found is not None and not (signal and found[0] is F.PEER_LOST):
        failure, line, certain = found
        return _verdict(failure, line, cause, certain=certain)
    if signal in (9, 15) or code in _EX_OK_TO_RETRY:
        return _verdict(F.KILLED_OUTSIDE, _process_text(cause, tail), cause)
    if code in _SHELL_CODES:
        text = f"{_process_text(cause, tail)}: {_SHELL_CODES[code]}"
        return _verdict(F.USER_ERROR, text, cause, certain=True)
    if code == 2:  # noqa: PLR2004 - argparse and bash: wrong use of the command
        return _verdict(F.USER_ERROR, _process_text(cause, tail), cause)
    return _verdict(F.UNKNOWN, _process_text(cause, tail), cause)


def _from_log(tail: str) -> tuple[FailureClass, str, bool] | None:
    lines = [_RANK_PREFIX.sub("", line) for line in tail.splitlines()]
    lines = [line.strip() for line in lines if line.strip() and not _NOISE.search(line)]
    for rule in LOG_RULES:
        for line in reversed(lines):
            if rule.pattern.search(line):
                return rule.failure, line[:_LINE_LENGTH], rule.certain
    return None


def _process_text(cause: Mapping[str, Any], tail: str) -> str:
    if cause.get("signal"):
        how = f"was killed by signal {cause['signal']}"
    else:
        how = f"ended with exit code {cause.get('exit')}"
    text = f"rank {cause.get('rank')} ({cause.get('replica')}) {how}"
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if _EXCEPTION_LINE.match(line)), None)
    last = last or (lines[-1] if lines and not cause.get("signal") else None)
    return f"{text}; its last line: {last[:_LINE_LENGTH]}" if last else text


def _verdict(failure: FailureClass, text: str, cause: Mapping[str, Any], *,
             certain: bool = False, ran: bool = True) -> Verdict:  # fmt: skip
    return Verdict(
        failure=failure, cause=text, certain=certain, ran=ran,
        replica=cause.get("replica"), rank=cause.get("rank"),
    )  # fmt: skip
