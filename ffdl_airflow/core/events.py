"""Events: what a job's log is made of.

For: the kinds, the two frozen records (recorded and about to be recorded) and their JSON. Not for:
what an event means for the job; that is the table in ``lifecycle.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ffdl_airflow.core.text_enum import TextEnum

EVENT_VERSION = 1


class Kind(TextEnum):
    """Every kind of event. The last four are wishes: anyone may append them, the driver acts."""

    SUBMITTED = "Submitted"
    VALIDATED = "Validated"
    REFUSED = "Refused"
    MOVER_INTENDED = "MoverIntended"
    PREFETCH_STARTED = "PrefetchStarted"
    DATA_READY = "DataReady"
    PREFETCH_FAILED = "PrefetchFailed"
    RESERVE_INTENDED = "ReserveIntended"
    WAITING = "Waiting"
    PLACED = "Placed"
    RESERVED = "Reserved"
    HOLD_EXPIRED = "HoldExpired"
    GO_INTENDED = "GoIntended"
    RUNNING = "Running"
    PROGRESS_SUMMARY = "ProgressSummary"
    CHECKPOINT_SEALED = "CheckpointSealed"
    CHECKPOINT_REFUSED = "CheckpointRefused"
    RANK_EXITED = "RankExited"
    REPLICA_LOST = "ReplicaLost"
    ATTEMPT_ENDED = "AttemptEnded"
    VERDICT = "Verdict"
    RESTART_DECIDED = "RestartDecided"
    WATCHDOG_WARNED = "WatchdogWarned"
    WATCHDOG_RECOVERED = "WatchdogRecovered"
    DEADLINE_MISSED = "DeadlineMissed"
    SAVE_REQUESTED = "SaveRequested"
    END_INTENDED = "EndIntended"
    STOPPED = "Stopped"
    TRAINED = "Trained"
    REGISTER_INTENDED = "RegisterIntended"
    MODEL_REGISTERED = "ModelRegistered"
    RELEASED = "Released"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    ADOPTED = "Adopted"
    SPEC_CHANGED = "SpecChanged"
    STOP_WANTED = "StopWanted"
    SAVE_WANTED = "SaveWanted"
    RESIZE_WANTED = "ResizeWanted"
    CLEARED = "Cleared"


@dataclass(frozen=True, kw_only=True)
class NewEvent:
    """An event that is about to be appended.

    ``at`` is when it happened, by the source's clock. ``dedupe`` is unique in the stream: a second
    event with it is left out. None means that the event may come any number of times.
    """

    kind: Kind
    at: datetime
    body: Mapping[str, Any] = field(default_factory=dict)
    attempt: int | None = None
    dedupe: str | None = None
    source: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event as it stands in the ledger. ``seq`` counts from 1 in each stream."""

    stream: str
    seq: int
    kind: Kind
    at: datetime
    recorded_at: datetime
    body: Mapping[str, Any]
    attempt: int | None
    dedupe: str | None
    source: Mapping[str, Any]
    v: int = EVENT_VERSION

    @property
    def placement(self) -> int | None:
        """The placement that the event is about; None where it is about the job."""
        return self.body.get("placement") or self.source.get("placement")

    def document(self) -> dict[str, Any]:
        """Plain data for people and files."""
        return {
            "v": self.v, "stream": self.stream, "seq": self.seq, "kind": self.kind.value,
            "attempt": self.attempt, "at": iso(self.at), "recorded_at": iso(self.recorded_at),
            "source": dict(self.source), "dedupe": self.dedupe, "body": dict(self.body),
        }  # fmt: skip


def recorded(stream: str, seq: int, new: NewEvent, *, recorded_at: datetime) -> Event:
    """The event that ``new`` becomes at ``seq``."""
    return Event(
        stream=stream, seq=seq, kind=new.kind, at=new.at, recorded_at=recorded_at, body=new.body,
        attempt=new.attempt, dedupe=new.dedupe, source=new.source,
    )  # fmt: skip


def iso(moment: datetime) -> str:
    """UTC, ISO 8601 with microseconds and ``Z``."""
    text = moment.astimezone(timezone.utc).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")


def parse_iso(text: str) -> datetime:
    """The moment that :func:`iso` wrote."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)
