"""What an engine sees of a placement, and the facts that an agent's journal brings.

For: turning documents of the wire into frozen values and events. Not for: asking.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.events import Kind, NewEvent, parse_iso
from ffdl_airflow.core.text_enum import TextEnum


class Presence(TextEnum):
    """Whether a placement is there. UNKNOWN is never taken for GONE."""

    ABSENT = "absent"  # never made
    ALIVE = "alive"
    GONE = "gone"  # was made, and its coordinator does not live, so that no gang does
    UNKNOWN = "unknown"  # cannot be told now


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One look. ``status`` is the coordinator's document, None where it does not answer.

    ``lost``: what the control plane says of replicas that are gone or cannot start, as
    ``core/failures/control_plane.py`` reads it, each with ``replica``. ``unsaid``: replicas of
    which the control plane still says that they run, whatever their gang says. ``waiting``: what
    keeps agents that have their places from starting, in one sentence. ``last_word``: why the gang
    has left, as it said itself; ``left_at``: when.
    """

    presence: Presence
    status: Mapping[str, Any] | None = None
    facts: tuple[NewEvent, ...] = ()
    lost: tuple[Mapping[str, Any], ...] = ()
    unsaid: tuple[str, ...] = ()
    waiting: str | None = None
    last_word: str | None = None
    left_at: datetime | None = None

    @property
    def gang_state(self) -> str | None:
        """The coordinator's own word for its state."""
        return str(self.status["state"]) if self.status else None

    @property
    def attempt(self) -> int:
        """The newest attempt that the gang knows; 0 where none has started."""
        return int((self.status or {}).get("attempt") or 0)


@dataclass(frozen=True, kw_only=True)
class SlotUse:
    """One slot of the local engine and who has it; both None where it is free."""

    slot: int
    placement: str | None = None
    pid: int | None = None


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """What an engine has to give.

    ``gpus``: how many of the slots are GPUs. ``cpu`` (cores) and ``memory_bytes`` bound one host;
    None where they are not known, and then they bound nothing.
    """

    total: int
    free: int
    uses: tuple[SlotUse, ...] = field(default=())
    gpus: int = 0
    cpu: int | None = None
    memory_bytes: int | None = None


_KINDS = {
    kind.value: kind
    for kind in (
        Kind.PLACED, Kind.RESERVED, Kind.HOLD_EXPIRED, Kind.RUNNING, Kind.PROGRESS_SUMMARY,
        Kind.CHECKPOINT_SEALED, Kind.CHECKPOINT_REFUSED, Kind.RANK_EXITED, Kind.WATCHDOG_WARNED,
        Kind.SAVE_REQUESTED, Kind.ATTEMPT_ENDED,
    )
}  # fmt: skip


def with_journal(seen: Observation, entries: Sequence[Mapping[str, Any]], *,
                 placed: Mapping[str, Any]) -> Observation:  # fmt: skip
    """The look with what the journal says: facts, and why and when the gang has left.

    ``placed``: what only the engine knows of a gang's places: ``slots``, or ``nodes`` by replica.

    ``Released`` is no fact: that a gang has gone is confirmed by the engine, not by its own word.
    """
    said = [entry for entry in entries if entry.get("kind") == protocol.J_RELEASED]
    return replace(
        seen, facts=tuple(_facts(entries, placed=placed)),
        last_word=str(said[-1]["body"]["why"]) if said else None,
        left_at=parse_iso(said[-1]["at"]) if said else None,
    )  # fmt: skip


def _facts(entries: Sequence[Mapping[str, Any]], *,
           placed: Mapping[str, Any]) -> list[NewEvent]:  # fmt: skip
    """Events from journal entries, each of which the ledger takes once."""
    found = []
    for entry in entries:
        kind = _KINDS.get(str(entry.get("kind")))
        if kind is None:
            continue
        placement, seq = int(entry["placement"]), int(entry["seq"])
        body = {**entry.get("body", {}), "placement": placement}
        if kind is Kind.PLACED:
            body |= placed
        found.append(
            NewEvent(
                kind=kind, at=parse_iso(entry["at"]), attempt=entry.get("attempt"), body=body,
                dedupe=f"journal:{placement}:{seq}",
                source={"agent": True, "placement": placement, "journal_seq": seq},
            )
        )  # fmt: skip
    return found
