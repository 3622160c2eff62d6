"""Port of the ledger: compare-and-append of events, and what can be read quickly.

Promised: :meth:`Ledger.append` writes all of its streams in one transaction or none; of two drivers
that append at the same ``expected_seq`` one wins, the other gets :class:`Conflict` and reads again;
an event whose ``dedupe`` stands in the stream already is left out; what was acknowledged survives a
crash. Undefined: order between streams. May be refused: any call with InfrastructureError, when the
storage is read-only, full or away; then nothing was written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from ffdl_airflow.core.events import Event, NewEvent


class Conflict(Exception):
    """Somebody else has appended first: read again and decide again."""

    def __init__(self, stream: str, expected: int, found: int | None) -> None:
        super().__init__(f"stream {stream}: expected seq {expected}, found {found}")
        self.stream = stream


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Events for one stream.

    ``expected_seq`` is the last seq that the caller has read; None appends whatever it is (wishes).
    ``projection`` replaces the job's row for lists; None leaves all but its seq as it was.
    ``snapshot`` is the folded state after these events; it is kept only where all were new.
    """

    stream: str
    expected_seq: int | None
    events: Sequence[NewEvent]
    projection: Mapping[str, Any] | None = None
    snapshot: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A job as lists show it: a cache of the fold, written with the events.

    ``status`` is the newest live status, a cache and not truth; None where there is none.
    ``snapshot`` is the newest folded state, only where one job is asked for.
    """

    job_id: str
    seq: int
    phase: str
    created_at: datetime
    updated_at: datetime
    summary: Mapping[str, Any] = field(default_factory=dict)
    status: Mapping[str, Any] | None = None
    snapshot: Mapping[str, Any] | None = None


class Ledger(Protocol):
    """See the module's docstring for what is promised. ``ledger_id`` is random, made once."""

    @property
    def ledger_id(self) -> str:
        """Identity of this ledger; whoever carries another one is talking to a different one."""
        ...

    def read(self, stream: str, after: int = 0) -> list[Event]:
        """Events of the stream with ``seq`` > ``after``, in order. Unknown stream: empty."""
        ...

    def append(self, *batches: Batch) -> list[Event]:
        """Append all batches in one transaction and return what was written (duplicates not)."""
        ...

    def jobs(self, job_id: str | None = None) -> list[JobRow]:
        """Rows of all jobs, newest first, or of the one."""
        ...

    def put_status(self, job_id: str, document: Mapping[str, Any]) -> None:
        """Replace the live status of the job."""
        ...
