"""The port for data sources, and the errors of everything that moves data.

::

    StoreError                  has ``code``, ``found``, ``allowed`` beside what FfdlError has
    ├── SourceError             the user's source: missing, empty, unreadable, bad key; no retry
    │   └── NoAdapterError      this installation cannot read that kind of store
    ├── SourceMoved             the source changed while it was read; a retry may help
    └── CacheError              our side: disk full, cache folder not writable, mover died
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from ffdl_airflow.core.data import Entry
from ffdl_airflow.core.errors import CodedError, InfrastructureError, UserError

# Reasons, ``code`` of a StoreError. Those of single keys are in core/data.py.
MISSING = "MISSING"
EMPTY = "EMPTY"
UNREADABLE = "UNREADABLE"
NOT_ABSOLUTE = "NOT_ABSOLUTE"
NOT_A_FOLDER = "NOT_A_FOLDER"
UNSUPPORTED_FILE = "UNSUPPORTED_FILE"
ARCHIVE_BROKEN = "ARCHIVE_BROKEN"
NO_ADAPTER = "NO_ADAPTER"
MOVED = "MOVED"
DISK_FULL = "DISK_FULL"
CACHE_UNUSABLE = "CACHE_UNUSABLE"
READ_FAILED = "READ_FAILED"
MOVER_DIED = "MOVER_DIED"
INTERNAL = "INTERNAL"


class StoreError(CodedError):
    """Base."""


class SourceError(StoreError, UserError):
    """The source as the user gave it cannot be used."""

    default_next_step = "correct the path or the data and try again; nothing was reserved"


class NoAdapterError(SourceError):
    """No code here reads that kind of store."""


class SourceMoved(StoreError, InfrastructureError):
    """The source changed between its listing and its reading."""

    default_next_step = "wait until nothing writes to the source any more and try again"

    def __init__(self, cause: str, *, found: str = "") -> None:
        super().__init__(cause, code=MOVED, found=found, allowed="a source at rest")


class CacheError(StoreError, InfrastructureError):
    """The cache, its disk or the mover failed."""


class Store(Protocol):
    """One data source that can be listed and read.

    Promised: ``list`` gives every object once, in an order that stays the same while nothing
    changes; ``read`` gives exactly the bytes that the entry described, or raises SourceMoved.
    Undefined: reading an entry of another store. May be refused: everything, by SourceError with a
    reason code. An adapter does not judge keys (``core.data`` does), does not write, and keeps
    nothing open between calls that would hinder others.
    """

    parallel: int
    """How many entries may be read at once; 1 means: in the order of the listing."""

    def list(self) -> Iterator[Entry]:
        """All objects of the source. Raises SourceError where it is not usable at all."""
        ...

    def read(self, entry: Entry) -> Iterator[bytes]:
        """The bytes of one object, in blocks. Raises SourceMoved if it is not that version."""
        ...

    def describe(self) -> str:
        """The source in words for people, without secrets: ``folder /data/train``."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """What else is to be recorded with the copy (``gitCommit``); empty for most."""
        ...
