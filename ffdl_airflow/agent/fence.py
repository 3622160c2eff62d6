"""Locks that say who an agent is and what it holds, and the fence that says that all is over.

The kernel drops a lock with the process that holds it, so a lock never outlives its agent; it is
not inherited by the trainer (descriptors are closed at exec), so it never outlives it either.
"""

import contextlib
import fcntl
import json
import os
import signal
import time
from typing import Any, Dict, List, Optional

from . import processes, protocol

REPLICA_LOCK_WAIT_S = 0.3
"""A neighbour who looks whether this lock is free holds it for an instant. Chosen."""
STREAMS = 3
"""Descriptors 0, 1 and 2 are the standard streams."""


class SlotTakenError(RuntimeError):
    """A slot is held by somebody else for longer than this agent waits."""


def is_open(placement_dir: str) -> bool:
    """Whether the placement may hold and run: its directory is there and carries no end mark."""
    ended = os.path.join(placement_dir, protocol.FENCE_ENDED)
    return os.path.isdir(placement_dir) and not os.path.lexists(ended)


def end_mode(placement_dir: str) -> Optional[str]:
    """How the placement is to end, None while it is open. A mark that says nothing means now."""
    if is_open(placement_dir):
        return None
    try:
        mark = protocol.read_json(os.path.join(placement_dir, protocol.FENCE_ENDED)) or {}
    except (OSError, ValueError):
        mark = {}
    return protocol.STOP_SAVE if mark.get("mode") == protocol.STOP_SAVE else protocol.STOP_NOW


def take(path: str, *, wait_s: float) -> Optional[int]:
    """Take an exclusive lock on the file, trying for ``wait_s`` seconds.

    Returns the descriptor that holds it, None where another process has it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + wait_s
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        if time.monotonic() >= deadline:
            os.close(descriptor)
            return None
        time.sleep(0.05)


def take_replica(replica_dir: str) -> Optional[int]:
    """Become this replica's only agent; None where there is one already. Leaves the pid inside."""
    descriptor = take(os.path.join(replica_dir, protocol.AGENT_LOCK), wait_s=REPLICA_LOCK_WAIT_S)
    if descriptor is not None:
        _record(descriptor, {"v": protocol.VERSION, "pid": os.getpid()})
    return descriptor


def take_slots(paths: List[str], *, wait_s: float, owner: Dict[str, Any]) -> List[str]:
    """Take every slot and write ``owner`` into it. Returns what earlier owners left, as text.

    Processes of an earlier owner that outlived its agent are the caller's to end; they are found
    by :func:`previous_owner` before. Raises ``SlotTakenError`` with the slot's holder.
    """
    left = []
    for path in paths:
        descriptor = take(path, wait_s=wait_s)
        if descriptor is None:
            holder = protocol.read_json(path) or {}
            message = "slot %s is held by %s of placement %s (pid %s)" % (
                path, holder.get("replica"), holder.get("placement"), holder.get("pid"),
            )  # fmt: skip
            raise SlotTakenError(message)
        before = protocol.read_json(path)
        if before is not None and before.get("placement") != owner["placement"]:
            left.append(before)
        _record(descriptor, owner)
    return [_end_leftovers(entry) for entry in left]


def agent_pid(replica_dir: str) -> Optional[int]:
    """Process id that the replica's newest agent wrote into its lock."""
    document = protocol.read_json(os.path.join(replica_dir, protocol.AGENT_LOCK))
    pid = document.get("pid") if document else None
    return pid if isinstance(pid, int) else None


def is_free(replica_dir: str) -> bool:
    """Whether the replica's agent is gone: there was a lock and nobody holds it."""
    path = os.path.join(replica_dir, protocol.AGENT_LOCK)
    if not os.path.exists(path):
        return False
    descriptor = take(path, wait_s=0.0)
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def close_inherited() -> None:
    """Close every descriptor but the standard streams: the driver's locks must not live on here."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) >= STREAMS:
            with contextlib.suppress(OSError):  # the one that listed the folder is closed already
                os.close(int(name))


def _end_leftovers(entry: Dict[str, Any]) -> str:
    """Kill what carries an earlier owner's name; its agent is dead, as its lock was free."""
    placement, replica = str(entry.get("placement")), str(entry.get("replica"))
    deadline = time.monotonic() + 5.0
    killed = set()
    while time.monotonic() < deadline:
        found = processes.carrying(placement, replica)
        if not found:
            break
        for pid in (member.pid for member in found):
            killed.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return "%s of placement %s, %d processes ended" % (replica, placement, len(killed))


def _record(descriptor: int, document: Dict[str, Any]) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(document).encode(), 0)
