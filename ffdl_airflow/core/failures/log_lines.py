"""The tail of a log, read: which rank wrote a line, what is noise, and what a process died of.

For: text → lines and deaths. Not for: what they mean; that is ``log_rules.py``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Who wrote a line: torchrun ([rank2]:, [default2]:, 2:), mpirun ([1,2]<stderr>:), srun -l (2: ).
_RANK = re.compile(r"^(?:\[(?:rank|default)?\d+(?:,\d+)?\](?:<std(?:err|out)>)?:|\d+:(?!\d))\s?")
# An uncaught exception as Python prints it at the end of a traceback, or C++ after `terminate`.
EXCEPTION = re.compile(
    r"^(?:(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt|Exit|Expired|Iteration)(?::\s.*|:?$)"
    r"|what\(\):\s.*)"
)
_CHAIN = re.compile(r"direct cause of the following exception|another exception occurred:?$")
# What a logger itself says is no error. NCCL says WARN for what it dies of.
_LEVEL = re.compile(
    r"^(?:.{0,60}?[\s\[(|-])?(?:DEBUG|INFO|(?<!NCCL )WARN(?:ING)?)(?=[\s\])|:-])"
    r"|^\[?[IW](?:\d{3,4}\b|\s+\w+/|\s+\w+\.(?:cpp|cc)\b)"
)
# What is printed although nothing is wrong, or by those who only survived.
_NOISE = re.compile(
    r"server socket has failed to bind|destroy_process_group\(\) was not called"
    r"|Could not load dynamic library|closing signal SIG|ChildFailedError"
    r"|To enable traceback see|asynchronously reported|transient connectivity failure"
    r"|Failed to initialize NVML: Unknown Error|^Horovod has been shut down"
)
_IGNORED = re.compile(r"^Exception ignored in\b")
_OTHERS = re.compile(r"^(?:Failures|Other Failures):$")
_ROOT = re.compile(r"^Root Cause \(first observed failure\)")


@dataclass(frozen=True)
class Line:
    """One line without its prefix. ``rank`` is the prefix, empty where there is none."""

    rank: str
    text: str


def read(tail: str) -> list[Line]:
    """The lines that may tell something."""
    lines: list[Line] = []
    ignored: set[str] = set()
    others = False
    for line in _split(tail):
        others = (others or bool(_OTHERS.match(line.text))) and not _ROOT.match(line.text)
        if _IGNORED.match(line.text):
            ignored.add(line.rank)  # its traceback follows, up to the exception
        elif line.rank in ignored:
            if EXCEPTION.match(line.text):
                ignored.discard(line.rank)
        elif not others and not _is_noise(line.text):
            lines.append(line)
    return lines


def deaths(lines: list[Line]) -> list[list[str]]:
    """For each rank its last exception, after those that led to it, in the order of the log."""
    chains: dict[str, tuple[int, list[str]]] = {}
    linked: set[str] = set()
    for number, line in enumerate(lines):
        if EXCEPTION.match(line.text):
            before = chains[line.rank][1] if line.rank in linked else []
            chains[line.rank] = (number, [*before, line.text])
            linked.discard(line.rank)
        elif line.rank in chains and _CHAIN.search(line.text):
            linked.add(line.rank)
    return [chain for _, chain in sorted(chains.values())]


def _split(tail: str) -> Iterator[Line]:
    for raw in tail.splitlines():
        text, rank = raw, ""
        while match := _RANK.match(text):
            rank = rank or re.sub(r"\D+", ".", match.group())
            text = text[match.end() :]
        if text.strip():
            yield Line(rank, text.strip())


def _is_noise(text: str) -> bool:
    if _NOISE.search(text):
        return True
    return _LEVEL.search(text) is not None and EXCEPTION.match(text) is None
