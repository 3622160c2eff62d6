"""A ledger in memory. Passes the same contract as the real ones, and is one with them in tests."""

import threading
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from ffdl_airflow.core.events import Event, NewEvent, recorded
from ffdl_airflow.ledger.base import Batch, Conflict, JobRow


class MemoryLedger:
    """See :mod:`ffdl_airflow.ledger.base` for what is promised."""

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex
        self._streams: dict[str, list[Event]] = {}
        self._rows: dict[str, JobRow] = {}
        self._status: dict[str, Mapping[str, Any]] = {}
        self._lock = threading.Lock()

    @property
    def ledger_id(self) -> str:
        """Identity of this ledger."""
        return self._id

    def read(self, stream: str, after: int = 0) -> list[Event]:
        """Events of the stream with ``seq`` > ``after``."""
        return self._streams.get(stream, [])[after:]

    def append(self, *batches: Batch) -> list[Event]:
        """Append all batches or none."""
        with self._lock:
            for batch in batches:
                last = len(self._streams.get(batch.stream, []))
                if batch.expected_seq is not None and batch.expected_seq != last:
                    raise Conflict(batch.stream, batch.expected_seq, last)
            return [event for batch in batches for event in self._append(batch)]

    def jobs(self, job_id: str | None = None) -> list[JobRow]:
        """Rows, newest first."""
        rows = [
            replace(row, status=self._status.get(key))
            for key, row in self._rows.items()
            if job_id in (None, key)
        ]
        return sorted(rows, key=lambda row: (-row.created_at.timestamp(), row.job_id))

    def put_status(self, job_id: str, document: Mapping[str, Any]) -> None:
        """Replace the live status."""
        self._status[job_id] = dict(document)

    def _append(self, batch: Batch) -> list[Event]:
        stream = self._streams.setdefault(batch.stream, [])
        now = datetime.now(timezone.utc)
        written = []
        for new in batch.events:
            if not self._known(stream, new):
                event = recorded(batch.stream, len(stream) + 1, new, recorded_at=now)
                stream.append(event)
                written.append(event)
        self._project(batch, written=written, seq=len(stream))
        return written

    @staticmethod
    def _known(stream: list[Event], new: NewEvent) -> bool:
        return new.dedupe is not None and any(e.dedupe == new.dedupe for e in stream)

    def _project(self, batch: Batch, *, written: list[Event], seq: int) -> None:
        old, now = self._rows.get(batch.stream), datetime.now(timezone.utc)
        whole = batch.snapshot is not None and len(written) == len(batch.events)
        if batch.projection is None and old is None:
            return
        summary = dict(batch.projection) if batch.projection is not None else dict(old.summary)  # type: ignore[union-attr]
        self._rows[batch.stream] = JobRow(
            job_id=batch.stream, seq=seq, phase=str(summary["phase"]), summary=summary,
            created_at=old.created_at if old else now, updated_at=now,
            snapshot=batch.snapshot if whole else old.snapshot if old else None,
        )  # fmt: skip
