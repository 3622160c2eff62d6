"""What agent and controller agree on: names, wire and file formats, and how they are read.

For: everything that crosses from one to the other, so that neither side guesses. Standard library
only and Python 3.8, because this file travels into the user's image. Not for: behaviour; the hold,
the launch and the detection live beside it in the agent.

All documents are JSON objects with ``"v": 1``. Times are UTC, ISO 8601 with microseconds and ``Z``.
"""

import hashlib
import hmac
import json
import os
import re
import threading
from datetime import datetime, timezone
from typing import Any, Dict, Iterator, List, Optional, Tuple

VERSION = 1

# HTTP, on a Unix socket locally. ``Authorization`` is dropped by Kubernetes' pod proxy, a header
# of our own passes (tried), hence this name.
TOKEN_HEADER = "X-FFDL-Token"  # noqa: S105 - the header's name, not a secret
PATH_STATUS = "/v1/status"
PATH_GO = "/v1/go"
PATH_SAVE = "/v1/save"
PATH_STOP = "/v1/stop"
PATH_RENEW = "/v1/renew"
PATH_TAIL = "/v1/tail"
PATH_JOIN = "/v1/gang/join"
PATH_BEAT = "/v1/gang/beat"
PATH_REPORT = "/v1/gang/report"

LONG_POLL_S = 55.0
"""Longest time a status request is held open. Chosen below the 60 s that proxies cut at."""

ASK = "--ask"
"""The agent's file called with it asks the coordinator beside it, see ``ask.py``."""

SAID = "ffdl: "
"""So begins what we write into a rank's log; it is no word of the user's program."""

TAIL_BYTES = 4096
"""Log tail kept for each rank. Kubernetes' limit for a termination message is 4096 bytes."""

# Files of a placement's directory.
FENCE_ENDED = "ENDED"
PLAN_FILE = "plan.json"
TOKEN_FILE = "token"  # noqa: S105 - a file's name
AGENT_LOCK = "lock"
AGENT_LOG = "log"
RESULT_FILE = "result.json"

# Environment by which clean-up finds processes: every process of a placement carries the first,
# the processes of the user's command carry the other two as well.
ENV_PLACEMENT = "FFDL_PLACEMENT"
ENV_REPLICA = "FFDL_REPLICA"
ENV_ATTEMPT = "FFDL_ATTEMPT"

# States of a gang, in the coordinator's status document.
JOINING = "joining"
HOLDING = "holding"
STARTING = "starting"
RUNNING = "running"
STOPPING = "stopping"
GONE = "gone"

# What a rank says that it is doing.
LOADING = "loading"
TRAINING = "training"
SAVING = "saving"
EVALUATING = "evaluating"

# Kinds in the journal; each becomes the event of the same name.
J_PLACED = "Placed"
J_RESERVED = "Reserved"
J_HOLD_EXPIRED = "HoldExpired"
J_RUNNING = "Running"
J_PROGRESS = "ProgressSummary"
J_CHECKPOINT = "CheckpointSealed"
J_CHECKPOINT_REFUSED = "CheckpointRefused"
J_RANK_EXITED = "RankExited"
J_WARNED = "WatchdogWarned"
J_SAVE = "SaveRequested"
J_ATTEMPT_ENDED = "AttemptEnded"
J_RELEASED = "Released"

# Why an attempt ended, ``cause.kind`` of AttemptEnded. The controller's failure rules start here.
CAUSE_OK = "ok"
CAUSE_EXIT = "exit"  # a process ended by itself with a code that is not 0
CAUSE_SIGNAL = "signal"  # a process was killed
CAUSE_HANG = "hang"  # no step for hang_factor times the median, or no first step
CAUSE_AGENT_LOST = "agent-lost"  # a replica's agent went silent
CAUSE_PREFLIGHT = "preflight"  # a check before the start failed
CAUSE_DEADLINE = "deadline"  # gpuTimeLimit
CAUSE_STOP = "stop"  # asked for from outside
CAUSE_TERMINATED = "terminated"  # an agent got SIGTERM: what is around it goes, nobody asked us
CAUSE_OOM = "oom"  # a process was killed, and the memory limit around its replica was reached
CAUSE_START = "start"  # the command could not be started
CAUSE_PLACEMENT_TIMEOUT = "placement-timeout"  # go, but not all started in placement_s

STOP_NOW = "now"
STOP_SAVE = "save"

MANIFEST = "MANIFEST.json"
OWNER = "OWNER"
WRITER = "WRITER"
"""File beside the checkpoints: number of the newest placement that seals there. Who finds a newer
one than itself has been given up, and seals nothing any more."""
JOURNAL_DIR = "journal"
STEP_DIR = re.compile(r"^step-(\d{12})$")
PLACEHOLDER = re.compile(r"\{\{(PORT|FILE) ([^{}]+)\}\}")
"""What an agent fills into environment and command at *go*: a port that its owner has found free,
the path of a file of the replica."""


def port_placeholder(replica: str, local: int) -> str:
    """Stands for the port of one process of a replica."""
    return "{{PORT %s}}" % process_name(replica, local)


def file_placeholder(name: str) -> str:
    """Stands for the path of a file that the plan gives to a replica."""
    return "{{FILE %s}}" % name


def process_name(replica: str, local: int) -> str:
    """Name of a process, unique in its gang: that of its replica, and a number but for the first.

    Ranks have numbers of their own; parameter servers, evaluators and launchers have none.
    """
    return replica if local == 0 else "%s.%d" % (replica, local)


def who(replica: Optional[str], rank: Optional[int]) -> str:
    """A process in a sentence: ``rank 1 of worker-1``, or ``ps-0`` where it has no rank."""
    return str(replica) if rank is None else "rank %s of %s" % (rank, replica)


def now_iso() -> str:
    """The time now in UTC, ISO 8601 with microseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def token_for(installation_key: bytes, placement_id: str) -> str:
    """The control token of a placement: an HMAC, so that no driver has to read a stored secret."""
    return hmac.new(installation_key, placement_id.encode(), hashlib.sha256).hexdigest()


def step_dir(step: int) -> str:
    """Directory name of a checkpoint: ``step-`` and 12 digits, so that names sort like numbers."""
    return "step-%012d" % step


def sha256_file(path: str) -> str:
    """SHA-256 of a file's bytes, in hex. Reads 1 MiB at a time."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def fsync_dir(path: str) -> None:
    """Make a rename or a new name in ``path`` survive a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: str, document: Dict[str, Any], *, mode: int = 0o644) -> None:
    """Write a document so that a reader sees the old one or the new one, never a part.

    Safe to do from several processes and threads at once: the last one wins.
    """
    temporary = "%s.%d.%d.tmp" % (path, os.getpid(), threading.get_ident())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    fsync_dir(os.path.dirname(path) or ".")


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """The document at ``path``; None where there is none or where it is not a whole document."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def list_files(root: str) -> Iterator[Tuple[str, str]]:
    """(relative name with ``/``, absolute path) of each regular file under ``root``, sorted."""
    found = []  # type: List[Tuple[str, str]]
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                found.append((os.path.relpath(path, root).replace(os.sep, "/"), path))
    return iter(sorted(found))


def describe_files(root: str) -> List[Dict[str, Any]]:
    """``[{"name", "size", "sha256"}]`` of the files under ``root`` but its manifest.

    ``size`` is in bytes.
    """
    return [
        {"name": name, "size": os.path.getsize(path), "sha256": sha256_file(path)}
        for name, path in list_files(root)
        if name != MANIFEST
    ]


def tree_sha256(files: List[Dict[str, Any]]) -> str:
    """One hash for a set of files: SHA-256 over sorted lines ``<sha256>  <name>``."""
    lines = sorted("%s  %s\n" % (entry["sha256"], entry["name"]) for entry in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def seal_checkpoint(
    directory: str, *, step: int, attempt: int, world_size: int, generation: Optional[str]
) -> Dict[str, Any]:
    """Hash the files of a checkpoint and write ``MANIFEST.json`` last. Returns the manifest."""
    files = describe_files(directory)
    manifest = {
        "v": VERSION,
        "step": step,
        "attempt": attempt,
        "world_size": world_size,
        "generation": generation,
        "files": files,
        "sha256": tree_sha256(files),
        "at": now_iso(),
    }
    for _, path in list_files(directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    write_json(os.path.join(directory, MANIFEST), manifest)
    return manifest


def check_checkpoint(directory: str) -> Tuple[Optional[Dict[str, Any]], Optional[str]]:
    """(manifest, None) of a complete and valid checkpoint, else (manifest or None, what is wrong).

    Every byte is read: a truncated file, a flipped bit, a missing file and a missing or broken
    manifest are told apart in the reason.
    """
    manifest = read_json(os.path.join(directory, MANIFEST))
    if manifest is None:
        return None, "no readable %s" % MANIFEST
    if manifest.get("v") != VERSION or not isinstance(manifest.get("files"), list):
        return None, "%s has an unknown form" % MANIFEST
    for entry in manifest["files"]:
        path = os.path.join(directory, entry["name"])
        if not os.path.isfile(path):
            return manifest, "file %s is missing" % entry["name"]
        size = os.path.getsize(path)
        if size != entry["size"]:
            return manifest, "file %s has %d bytes, not %d" % (entry["name"], size, entry["size"])
        if sha256_file(path) != entry["sha256"]:
            return manifest, "file %s has another SHA-256" % entry["name"]
    return manifest, None


def list_checkpoints(checkpoint_dir: str) -> List[Tuple[int, str]]:
    """(step, directory) of everything named like a checkpoint, newest first; nothing is checked."""
    try:
        names = os.listdir(checkpoint_dir)
    except FileNotFoundError:
        return []
    found = [(int(m.group(1)), os.path.join(checkpoint_dir, m.string))
             for m in map(STEP_DIR.match, names) if m]  # fmt: skip
    return sorted(found, reverse=True)


def read_journal(path: str, after: int) -> List[Dict[str, Any]]:
    """Entries of a journal with ``seq`` > ``after``. A half-written last line is left for later."""
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    entries = []
    for line in lines:
        try:
            entry = json.loads(line.decode("utf-8"))
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("seq", 0) > after:
            entries.append(entry)
    return entries
