"""What lines of a log mean: rows of a table, the first that matches wins.

For: wordings of PyTorch, JAX, TensorFlow, NCCL, MPI, storage clients and Python's own exceptions,
as their releases print them. Causes are asked before symptoms, and what only says that somebody
else died is asked last. Not for: what follows from a class; that is ``classes.py``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.failures import log_lines
from ffdl_airflow.core.failures.classes import FailureClass

F = FailureClass
LINE_LENGTH = 300


@dataclass(frozen=True)
class LogRule:
    """A wording and its class. ``anywhere`` False: only as what a process has died of.

    ``certain``: another attempt would end in the same way. ``shows``: a line that tells more.
    """

    failure: FailureClass
    pattern: re.Pattern[str]
    anywhere: bool = True
    certain: bool = False
    shows: re.Pattern[str] | None = None


@dataclass(frozen=True)
class Found:
    """What a log says: the class, the line that says so, and whether one look is enough."""

    failure: FailureClass
    line: str
    certain: bool


def _row(failure: FailureClass, *patterns: str, anywhere: bool = True, certain: bool = False,
         shows: str | None = None) -> LogRule:  # fmt: skip
    compiled = re.compile("|".join(patterns))
    return LogRule(failure, compiled, anywhere, certain, re.compile(shows) if shows else None)


_ASSERTION = r"Assertion `.*` failed"
CAUSES: tuple[LogRule, ...] = (
    # https://docs.nvidia.com/deploy/xid-errors: Xids of the hardware, not those of programs
    _row(F.GPU_FAULT, r"(?i:uncorrectable (?:ECC|NVLink))", r"ECC_UNCORRECTABLE", r"GPU is lost",
         r"fallen off the bus", r"\bXid\b.*: (?:48|63|64|74|79|92|94|95|119|120|140)\b"),
    _row(F.NODE_SETUP, r"driver version is insufficient", r"NVIDIA driver on your system is too ol",
         r"[Ee]rror 80[23]: system ", r"Driver/library version mismatch",
         r"No CUDA GPUs are available", r"unsatisfied condition: cuda"),
    _row(F.CONFIG, r"no kernel image is available", r"no socket interface found", certain=True),
    _row(F.SHM, r"(?:/dev/shm|/torch_\d|torch_\w*shm).*No space left",
         r"No space left.*(?:/dev/shm|/torch_\d|torch_\w*shm)", r"insufficient shared memory",
         r"workers are out of shared memory", r"killed by signal: Bus error",
         r"Error while creating shared memory segment",
         r"unable to (?:allocate|mmap|open|resize|write).*shared memory", certain=True),
    _row(F.DISK_FULL, r"\[Errno (?:28|122)\]", r"No space left on device", r"Disk quota exceeded",
         r"StreamWriter failed writing", r"inline_container.*unexpected pos",
         r"write\(\): fd \d+ failed"),
    _row(F.GPU_OOM, r"OutOfMemoryError", r"(?:CUDA|HIP|XPU|MPS backend) out of memory",
         r"CUDA error: out of memory", r"RESOURCE_EXHAUSTED: .*(?:[Oo]ut of memory|OOM)",
         r"OOM when allocating tensor", r"CUBLAS_STATUS_ALLOC_FAILED",
         anywhere=False, certain=True),
    _row(F.GPU_OOM, r"CUDA out of memory\. Tried to allocate", certain=True),
    _row(F.HOST_OOM, r"DataLoader worker \(pid.*killed by signal: Killed", r"\[Errno 12\]",
         r"[Cc]an(?:not|'t) allocate memory", r"std::bad_alloc", r"exitcode\s*:\s*-9\b",
         r"(?:exited on|^)\s*signal 9\b", r"[Oo]ut of memory: Killed process",
         r"^(?:\w+\.)*\w*MemoryError\b"),
    _row(F.COMM_MISUSE, r"Duplicate GPU detected", r"ncclInvalid(?:Usage|Argument)", certain=True),
    _row(F.USER_ERROR, r"device-side assert triggered", _ASSERTION, certain=True, shows=_ASSERTION),
    _row(F.USER_ERROR, r"illegal memory access", r"misaligned address"),
    _row(F.USER_ERROR, r"Error\(s\) in loading state_dict", r"size mismatch for ", certain=True,
         shows=r"size mismatch for "),
    _row(F.NUMERIC, r"FloatingPointError",
         r"(?i:\bloss\b[^.]*\b(?:is|was|became|becomes)\b[^.]*\bnan\b)",
         r"(?i:\bloss\w*['\"]?\s*[:=]\s*nan\b)", certain=True),
    _row(F.CKPT_CORRUPT, r"StreamReader failed", r"file might be corrupted", r"Ran out of input",
         r"pickle data was truncated", r"UnpicklingError", r"DataLossError", r"BadZipFile",
         r"SafetensorError: Error while deserializing", r"[Cc]orrupt(?:ed)? (?:checkpoint|file)"),
    _row(F.STORAGE_AUTH, r"NoCredentialsError", r"\(?(?:AccessDenied|InvalidAccessKeyId)\)?",
         r"SignatureDoesNotMatch", r"Unable to locate credentials", anywhere=False, certain=True),
    _row(F.AUTH, r"GatedRepoError", r"401 Client Error", r"HTTP Error 401", r"[Ii]nvalid API key",
         r"api_key not configured", certain=True),
    _row(F.LICENSE, r"(?i:\blicen[cs]e\b.*\b(?:checkout|expired|denied|not found|unavailable))"),
    _row(F.CLOCK, r"RequestTimeTooSkewed", r"certificate is not yet valid", r"(?i:clock skew)"),
    _row(F.STORAGE_TRANSIENT, r"Stale file handle", r"\[Errno (?:5|107|116)\]", r"\bSlowDown\b",
         r"EndpointConnectionError", r"(?:Read|Connect)Timeout(?:Error)?\b", r"RemoteDisconnected",
         r"IncompleteRead", r"50[0234] Server Error", r"requests\.\S*Connection", anywhere=False),
    _row(F.USER_ERROR, r"^\S+: error: (?:unrecognized|the following|argument|invalid|ambiguous)",
         r"can't open file .*No such file", r"^\S+: No module named ", certain=True),
)  # fmt: skip

# The trainer's module ``ffdl``: what it died of last, asked before all others.
CHECKPOINTS: tuple[LogRule, ...] = (
    _row(F.DISK_FULL, r"\bCheckpointError: .*(?:No space left|\[Errno (?:28|122)\]|quota exceeded)",
         anywhere=False),
    _row(F.USER_ERROR, r"\bCheckpointError: .*(?:both wrote|pass shards=)", anywhere=False,
         certain=True),
    _row(F.STORAGE_TRANSIENT, r"^(?:\w+\.)*CheckpointError\b", anywhere=False),
)  # fmt: skip

EXCEPTIONS: tuple[LogRule, ...] = (
    _row(F.USER_ERROR, r"^(?:ModuleNotFound|Import|Syntax|Indentation|Tab|Name|UnboundLocal"
         r"|Attribute|Type|Assertion|Key|Index|Value|ZeroDivision|NotImplemented|Recursion"
         r"|UnicodeDecode|UnicodeEncode|Permission)Error\b", anywhere=False, certain=True),
    _row(F.DATA_MISSING, r"^(?:\w+\.)*(?:FileNotFound|NotADirectory|IsADirectory)Error\b",
         r"No such file or directory", anywhere=False, certain=True),
)  # fmt: skip

SYMPTOMS: tuple[LogRule, ...] = (
    _row(F.KILLED_OUTSIDE, r"SignalException: Process \d+ got signal", r"^KeyboardInterrupt\b"),
    _row(F.COMM_TIMEOUT, r"Watchdog caught collective operation timeout", r"DEADLINE_EXCEEDED",
         r"(?i:\b(?:collective|all_?(?:reduce|gather)|broadcast|barrier|recv|send)\b.*timed? ?out)",
         r"Timed out waiting \d+ ?ms"),
    _row(F.START_ORDER, r"failed to listen on any local network", r"Address already in use"),
    _row(F.RENDEZVOUS, r"Rendezvous(?:Connection|Timeout|Closed)Error", r"Connect timeout",
         r"client socket has (?:timed out|failed).*connect", r"ConnectionRefusedError"),
    _row(F.COMM_ERROR, r"nccl(?:System|Internal)Error", r"unhandled (?:system|cuda) error",
         r"No route to host", r"Network is unreachable", r"Software caused connection abort"),
)  # fmt: skip
_AMBIGUOUS = frozenset({
    "RuntimeError", "OSError", "IOError", "Exception", "TimeoutError", "SystemError", "SystemExit",
    "XlaRuntimeError", "JaxRuntimeError", "InternalError", "UnknownError", "AbortedError",
    "CancelledError", "CalledProcessError", "EOFError", "HorovodInternalError", "DistBackendError",
    "DistNetworkError", "DistStoreError", "UnavailableError", "ConnectionResetError",
    "BrokenPipeError", "ncclRemoteError", "ConnectionError",
})  # fmt: skip
"""Exceptions that programs, libraries and machines raise alike: their name alone says nothing."""
PEERS: tuple[LogRule, ...] = (
    _row(F.PEER_LOST, r"ncclRemoteError", r"remote process exited", r"Connection reset by peer",
         r"[Cc]onnection closed by peer", r"Socket closed", r"UnavailableError", r"UNAVAILABLE:",
         r"[Hh]eartbeat timeout", r"Broken pipe", r"HorovodInternalError",
         r"failed to connect to all addresses"),
)  # fmt: skip


def look(tail: str) -> Found | None:
    """What the tail says, None where it says nothing that is known."""
    lines = log_lines.read(tail)
    texts = [line.text for line in lines]
    chains = log_lines.deaths(lines)
    return (
        _died_of(chains, texts)
        or _match([rule for rule in CAUSES if rule.anywhere], texts, texts)
        or _match(SYMPTOMS, [chain[-1] for chain in chains], texts)
        or _match(SYMPTOMS, texts, texts)
        or _named(chains)
        or _match(PEERS, texts, texts)
    )


def look_killed(tail: str) -> Found | None:
    """The same for a process that was killed: what it said before it did not have to end it."""
    found = look(tail)
    kills = (F.HOST_OOM, F.SHM, F.GPU_FAULT)
    return found if found is not None and found.failure in kills else None


def last_line(tail: str) -> str | None:
    """What a process died of, else the last line of its own that tells something."""
    lines = log_lines.read(tail)
    chains = log_lines.deaths(lines)
    if chains:
        return chains[0][-1][:LINE_LENGTH]
    telling = [
        line.text
        for line in lines
        if any(map(str.isalnum, line.text))  # no bare dashes
        and not line.text.startswith(protocol.SAID)
    ]
    return telling[-1][:LINE_LENGTH] if telling else None


def _died_of(chains: list[list[str]], texts: list[str]) -> Found | None:
    for chain in chains:
        found = (
            _match(CHECKPOINTS, [chain[-1]], texts)
            or _match(CAUSES, reversed(chain), texts)
            or _match(EXCEPTIONS, [chain[-1]], texts)
        )
        if found is not None:
            return found
    return None


def _match(rules: Iterable[LogRule], texts: Iterable[str], all_texts: list[str]) -> Found | None:
    texts = list(texts)
    for rule in rules:
        line = next((text for text in texts if rule.pattern.search(text)), None)
        if line is not None:
            better = rule.shows and next((t for t in all_texts if rule.shows.search(t)), None)
            return Found(rule.failure, (better or line)[:LINE_LENGTH], rule.certain)
    return None


def _named(chains: list[list[str]]) -> Found | None:
    """An exception of the program's own kind: its mistake, as far as one can tell."""
    for chain in chains:
        name = chain[-1].partition(":")[0].rpartition(".")[2]
        if name.endswith(("Error", "Exception")) and name not in _AMBIGUOUS:
            return Found(F.USER_ERROR, chain[-1][:LINE_LENGTH], certain=False)
    return None
