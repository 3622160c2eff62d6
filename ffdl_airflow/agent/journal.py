"""The journal of a placement: what happened, in order, kept when nobody listens.

Written by the coordinator only, one JSON object on a line, synced before anybody is told. Room for
the next entries is taken ahead, so that a disk that has become full under a trainer does not
silence the journal as well. What cannot be written all the same stays in memory, in order, and is
tried again every second; callers who must not speak before an entry is on disk pass ``durable``.
"""

import contextlib
import ctypes
import json
import os
from typing import Any, Callable, Dict, List, Optional

from . import protocol
from .log import log
from .loop import Loop

RETRY_S = 1.0
"""Chosen: a disk that was full is used again within a second of having room."""

RESERVE_BYTES = 256 << 10
"""Room that is taken ahead. Chosen: the end of a gang of a thousand ranks needs about that much."""
FALLOC_FL_KEEP_SIZE = 1  # linux/falloc.h


class Journal:
    """Appends entries; continues the numbers of a file that is already there."""

    def __init__(self, loop: Loop, *, path: str, placement: int) -> None:
        self._loop = loop
        self._path = path
        self._placement = placement
        self._waiting: List[bytes] = []
        self._callbacks: List[Callable[[], None]] = []
        self._retrying = False
        self._end = 0
        self._reserved = 0
        self.trouble: Optional[str] = None
        self.on_durable: Callable[[], None] = lambda: None
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.earlier = protocol.read_journal(path, 0)
        self.seq = max([int(entry["seq"]) for entry in self.earlier] or [0])
        self.durable_seq = self.seq
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._drop_torn_line()
        self._reserve()

    @property
    def waiting(self) -> int:
        """Number of entries that are not on disk yet."""
        return len(self._waiting)

    def append(
        self,
        kind: str,
        attempt: Optional[int],
        body: Dict[str, Any],
        *,
        durable: Optional[Callable[[], None]] = None,
    ) -> None:
        """Write an entry; ``durable`` is called once it is on disk, maybe within this call."""
        self.seq += 1
        entry = {
            "v": protocol.VERSION,
            "seq": self.seq,
            "kind": kind,
            "attempt": attempt,
            "at": protocol.now_iso(),
            "placement": self._placement,
            "body": body,
        }
        self._waiting.append(json.dumps(entry, sort_keys=True).encode() + b"\n")
        if durable is not None:
            self._callbacks.append(durable)
        self.flush()

    def flush(self) -> bool:
        """Try to bring everything to disk; False where entries still wait."""
        if not self._waiting:
            return True
        data = b"".join(self._waiting)
        try:
            self._write(data)
        except OSError as error:
            self._fail(error)
            return False
        self._end += len(data)
        self._waiting.clear()
        self.durable_seq = self.seq
        self.trouble = None
        self._reserve()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        self.on_durable()
        return True

    def after(self, seq: int) -> List[Dict[str, Any]]:
        """Entries on disk that are younger than ``seq``."""
        return protocol.read_journal(self._path, seq) if self.durable_seq > seq else []

    def close(self) -> None:
        """Write once more; entries that still find no room go to the agent's log."""
        if not self.flush():
            for line in self._waiting:
                log("not in the journal: %s" % line.decode().rstrip())
        os.close(self._descriptor)

    def _write(self, data: bytes) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], self._end + done)
        os.fsync(self._descriptor)

    def _fail(self, error: OSError) -> None:
        if self.trouble is None:
            log("journal %s cannot be written: %s" % (self._path, error))
        count = len(self._waiting)
        self.trouble = "journal: %s; %d entries wait in memory" % (error.strerror, count)
        with contextlib.suppress(OSError):  # readers skip a half line, the next write covers it
            if os.fstat(self._descriptor).st_size > self._end:
                os.ftruncate(self._descriptor, self._end)
        if not self._retrying:
            self._retrying = True
            self._loop.call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        self.flush()

    def _reserve(self) -> None:
        """Keep room past the end of the file, where the file system can; its size stays."""
        if self._end + RESERVE_BYTES // 2 <= self._reserved:
            return
        fallocate = getattr(ctypes.CDLL(None), "fallocate64", None)
        if fallocate is None:
            return
        fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        if fallocate(self._descriptor, FALLOC_FL_KEEP_SIZE, self._end, RESERVE_BYTES) == 0:
            self._reserved = self._end + RESERVE_BYTES

    def _drop_torn_line(self) -> None:
        size = os.fstat(self._descriptor).st_size
        raw = os.pread(self._descriptor, size, 0)
        self._end = raw.rfind(b"\n") + 1
        if self._end < size:
            os.ftruncate(self._descriptor, self._end)
            os.fsync(self._descriptor)
        protocol.fsync_dir(os.path.dirname(self._path))
