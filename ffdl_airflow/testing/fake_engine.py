"""An engine without processes, for tests of those who drive one. Passes the engine contract.

A gang is placed at once, joins when it is looked at, and does what the test tells it: seal a
checkpoint, end, lose its agents, let its hold run out.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.events import iso
from ffdl_airflow.core.observation import Inventory, Observation, Presence, SlotUse, with_journal
from ffdl_airflow.core.plan import GangPlan
from ffdl_airflow.engines.base import (
    AgentAway,
    AgentRefused,
    Ending,
    EndRequest,
    Evidence,
    Granted,
    Over,
    Waiting,
)  # fmt: skip
from ffdl_airflow.testing.builders import T0


@dataclass
class Gang:
    """One placement as the fake knows it. ``started`` lists every attempt that ever ran.

    ``utilization``: the part of that name of its status document.
    """

    placement_id: str
    slots: tuple[int, ...]
    replicas: tuple[str, ...] = ()
    state: str = protocol.JOINING
    attempt: int | None = None
    started: list[int] = field(default_factory=list)
    journal: list[dict[str, Any]] = field(default_factory=list)
    utilization: Mapping[str, Any] | None = None

    @property
    def alive(self) -> bool:
        """Whether agents of it live."""
        return self.state != protocol.GONE


class FakeEngine:
    """See :mod:`ffdl_airflow.engines.base` for what is promised."""

    def __init__(self, slots: int = 4) -> None:
        self.gangs: dict[str, Gang] = {}
        self.ended: set[str] = set()
        self._slots = slots
        self._ticks = itertools.count(1)

    def capacity(self) -> Inventory:
        """All slots."""
        owner = {slot: g.placement_id for g in self.gangs.values() if g.alive for slot in g.slots}
        uses = tuple(SlotUse(slot=n, placement=owner.get(n)) for n in range(self._slots))
        return Inventory(total=self._slots, free=self._slots - len(owner), uses=uses)

    def reserve(self, plan: GangPlan) -> Granted | Waiting | Over:
        """Place the gang."""
        if plan.placement_id in self.ended:
            return Over()
        gang = self.gangs.get(plan.placement_id)
        if gang is None:
            free = [use.slot for use in self.capacity().uses if use.placement is None]
            if len(free) < plan.slots:
                holders = sorted({use.placement for use in self.capacity().uses if use.placement})
                reason = f"{plan.slots} slots are needed, {len(free)} are free"
                return Waiting(f"{reason}, the others are held by {', '.join(holders)}")
            names = tuple(replica.name for replica in plan.replicas)
            gang = Gang(plan.placement_id, tuple(free[: plan.slots]), names)
            self.gangs[plan.placement_id] = gang
        return Granted(gang.slots)

    def connect(self, placement_id: str) -> "FakeClient":
        """Control of the gang."""
        return FakeClient(self, placement_id)

    def observe(self, placement_id: str, after: int) -> Observation:
        """One look; a new gang joins by it."""
        gang = self.gangs.get(placement_id)
        if gang is None:
            over = placement_id in self.ended
            return Observation(presence=Presence.GONE if over else Presence.ABSENT)
        if gang.state == protocol.JOINING:
            gang.state = protocol.HOLDING
            self.note(gang, protocol.J_PLACED, {"joined": list(gang.replicas)})
            self.note(gang, protocol.J_RESERVED, {"hold_s": 600})
        entries = [entry for entry in gang.journal if entry["seq"] > after]
        seen = Observation(presence=Presence.GONE)
        if gang.alive:
            seen = Observation(presence=Presence.ALIVE, status=status(gang))
        return with_journal(seen, entries, placed={"slots": list(gang.slots)})

    def end(self, placement_id: str, request: EndRequest) -> Evidence | Ending:
        """Close the fence; a gang leaves at once."""
        self.ended.add(placement_id)
        gang = self.gangs.get(placement_id)
        if gang is None or not gang.alive:
            return Evidence()
        if gang.state == protocol.RUNNING:
            if request.mode == protocol.STOP_SAVE:
                self.note(gang, protocol.J_SAVE, {"why": request.why, "stop": True})
            self.finish(placement_id, {"kind": protocol.CAUSE_STOP, "text": request.why})
        gang.state = protocol.GONE
        return Ending("the gang is leaving")

    def finish(self, placement_id: str, cause: Mapping[str, Any], *, tail: str = "") -> None:
        """The running attempt ends; a gang that ended well leaves."""
        gang = self.gangs[placement_id]
        ok = cause["kind"] == protocol.CAUSE_OK
        body = {"ok": ok, "cause": dict(cause), "tail": tail}
        self.note(gang, protocol.J_ATTEMPT_ENDED, body)
        gang.state = protocol.GONE if ok else protocol.HOLDING

    def seal(self, placement_id: str, step: int, path: str = "/checkpoints") -> None:
        """The running attempt has a checkpoint."""
        body = {"step": step, "path": f"{path}/{protocol.step_dir(step)}", "sha256": f"{step:064x}",
                "bytes": 1}  # fmt: skip
        self.note(self.gangs[placement_id], protocol.J_CHECKPOINT, body)

    def lose(self, placement_id: str) -> None:
        """All agents are killed; nobody writes a last word."""
        self.gangs[placement_id].state = protocol.GONE

    def expire(self, placement_id: str) -> None:
        """The hold runs out."""
        gang = self.gangs[placement_id]
        self.note(gang, protocol.J_HOLD_EXPIRED, {"held_s": 600})
        self.note(gang, protocol.J_RELEASED, {"why": "the hold has ended"})
        gang.state = protocol.GONE

    def note(self, gang: Gang, kind: str, body: Mapping[str, Any]) -> None:
        """Write a journal entry."""
        at: datetime = T0 + timedelta(seconds=next(self._ticks))
        number = int(gang.placement_id.rsplit("/", 1)[1])
        gang.journal.append(
            {"v": 1, "seq": len(gang.journal) + 1, "kind": kind, "attempt": gang.attempt,
             "at": iso(at), "placement": number, "body": dict(body)}
        )  # fmt: skip


class FakeClient:
    """See :class:`ffdl_airflow.engines.base.AgentClient`."""

    def __init__(self, engine: FakeEngine, placement_id: str) -> None:
        self._engine = engine
        self._placement_id = placement_id

    def status(self, *, after: int = -1, wait_s: float = 0.0) -> Mapping[str, Any]:
        """The document, at once."""
        return status(self._gang())

    def go(self, order: Mapping[str, Any]) -> None:
        """Start the attempt, once."""
        gang = self._gang()
        attempt = int(order["attempt"])
        if gang.attempt == attempt:
            return
        if gang.attempt is not None and attempt < gang.attempt:
            raise AgentRefused("stale-attempt", {"attempt": gang.attempt})
        if gang.state != protocol.HOLDING or self._placement_id in self._engine.ended:
            raise AgentRefused("not-holding", {"state": gang.state})
        gang.attempt, gang.state = attempt, protocol.RUNNING
        gang.started.append(attempt)
        self._engine.note(gang, protocol.J_RUNNING, {})

    def save(self, why: str) -> None:
        """Noted, where an attempt runs."""
        gang = self._gang()
        if gang.state != protocol.RUNNING:
            raise AgentRefused("not-running", {"state": gang.state})
        self._engine.note(gang, protocol.J_SAVE, {"why": why})

    def stop(self, *, mode: str, why: str, then: str) -> None:
        """End the attempt, then hold again or leave."""
        gang = self._gang()
        if gang.state == protocol.RUNNING:
            self._engine.finish(self._placement_id, {"kind": protocol.CAUSE_STOP, "text": why})
        if then == "leave":
            gang.state = protocol.GONE

    def renew(self, hold_s: float) -> None:
        """Nothing to do."""
        self._gang()

    def _gang(self) -> Gang:
        gang = self._engine.gangs.get(self._placement_id)
        if gang is None or not gang.alive:
            raise AgentAway("nobody there")
        return gang


def status(gang: Gang) -> dict[str, Any]:
    """The coordinator's document."""
    return {"v": 1, "seq": len(gang.journal), "state": gang.state, "attempt": gang.attempt,
            "placement_id": gang.placement_id, "ranks": [], "step": None,
            "utilization": gang.utilization}  # fmt: skip
