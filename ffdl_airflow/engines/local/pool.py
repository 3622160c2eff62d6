"""Slots of this host: who has which, and who is waiting for how many.

One document under one lock. A slot belongs to a placement from the moment it is written here until
the placement is seen to be over; the agent's own lock on the slot's file says that it lives. The
lock is held for milliseconds and never across a call to the ledger, so that a driver that is
stopped in between blocks nobody for long.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.job import PRIORITIES
from ffdl_airflow.core.observation import Inventory, SlotUse
from ffdl_airflow.engines.base import Granted, Waiting

WAITER_LIFE_S = 60.0
"""A waiter that was not renewed for this long does not count, but keeps its age. Chosen."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a placement asks of the pool."""

    placement_id: str
    slots: int
    priority: str


class SlotPool:
    """The slots of one state directory.

    ``is_over`` (placement, seconds since the grant) tells whether a placement can be reclaimed; it
    ends what is left of the placement before it answers yes.
    """

    def __init__(self, folder: Path, total: int, is_over: Callable[[str, float], bool]) -> None:
        self._folder = folder
        self._total = total
        self._is_over = is_over

    def lock_path(self, slot: int) -> Path:
        """File that the agent of the slot holds a lock on."""
        return self._folder / str(slot)

    def grant(self, request: Request) -> Granted | Waiting:
        """Slots for the placement, the same ones when asked again; or why it has to wait."""
        with self._locked() as document:
            owned = _owned(document, request.placement_id)
            if owned:
                return Granted(owned)
            self._queue(document, request)
            free = self._reclaim(document)
            ahead = self._ahead(document, request)
            if request.slots <= len(free) - ahead:
                chosen = tuple(free[: request.slots])
                for slot in chosen:
                    document["slots"][str(slot)] = {
                        "placement": request.placement_id, "at": time.time(),
                    }  # fmt: skip
                document["waiters"].pop(request.placement_id, None)
                return Granted(chosen)
            return self._waiting(document, request, free=len(free), ahead=ahead)

    def owned(self, placement_id: str) -> tuple[int, ...]:
        """Slots of the placement."""
        return _owned(self._read(), placement_id)

    def release(self, placement_id: str) -> None:
        """Give back what the placement has and take it out of the queue."""
        if not self._folder.exists():
            return
        with self._locked() as document:
            for slot in _owned(document, placement_id):
                del document["slots"][str(slot)]
            document["waiters"].pop(placement_id, None)

    def inventory(self, has_left: Callable[[str, float], bool]) -> Inventory:
        """All slots as they are now; those of a placement that has left are free."""
        slots = self._read()["slots"]
        over = self._over(slots, has_left)
        held = {n: r["placement"] for n, r in slots.items() if r["placement"] not in over}
        uses = tuple(SlotUse(slot=n, placement=held.get(str(n))) for n in range(self._total))
        return Inventory(total=self._total, free=sum(u.placement is None for u in uses), uses=uses)

    def holders(self) -> set[str]:
        """Placements that have slots, also those that have left and were not ended."""
        return {record["placement"] for record in self._read()["slots"].values()}

    def _reclaim(self, document: dict[str, Any]) -> list[int]:
        over = self._over(document["slots"], self._is_over)
        for slot, record in list(document["slots"].items()):
            if record["placement"] in over:
                del document["slots"][slot]
        return [n for n in range(self._total) if str(n) not in document["slots"]]

    @staticmethod
    def _over(slots: Mapping[str, Any], is_over: Callable[[str, float], bool]) -> set[str]:
        """Placements that are over; each is asked for once."""
        since = {record["placement"]: record["at"] for record in slots.values()}
        return {name for name, at in since.items() if is_over(name, time.time() - at)}

    def _queue(self, document: dict[str, Any], request: Request) -> None:
        known = document["waiters"].get(request.placement_id, {})
        document["waiters"][request.placement_id] = {
            "since": known.get("since", time.time()), "slots": request.slots,
            "priority": request.priority, "renewed": time.time(), **_me(),
        }  # fmt: skip

    def _ahead(self, document: dict[str, Any], request: Request) -> int:
        """Slots that those ahead in the queue need: a small gang must not delay a big one."""
        mine = _rank(request.placement_id, document["waiters"][request.placement_id])
        return sum(
            int(waiter["slots"])
            for name, waiter in document["waiters"].items()
            if name != request.placement_id and _rank(name, waiter) < mine and _counts(waiter)
        )

    def _waiting(self, document: dict[str, Any], request: Request, *, free: int,
                 ahead: int) -> Waiting:  # fmt: skip
        holders = sorted({record["placement"] for record in document["slots"].values()})
        reason = f"{request.slots} slots are needed, {free} of {self._total} are free"
        if holders:
            reason += f", the others are held by {', '.join(holders)}"
        if ahead:
            reason += f"; {ahead} slots go to those ahead in the queue"
        return Waiting(reason, {"needed": request.slots, "free": free, "holders": holders})

    def _path(self) -> Path:
        return self._folder / "pool.json"

    def _read(self) -> dict[str, Any]:
        document = protocol.read_json(str(self._path())) or {}
        return {"v": 1, "slots": document.get("slots", {}), "waiters": document.get("waiters", {})}

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._folder / "pool.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            document = self._read()
            before = repr(document)
            yield document
            if repr(document) != before:
                protocol.write_json(str(self._path()), document)
        finally:
            os.close(descriptor)


def _owned(document: Mapping[str, Any], placement_id: str) -> tuple[int, ...]:
    return tuple(
        sorted(int(s) for s, r in document["slots"].items() if r["placement"] == placement_id)
    )


def _rank(name: str, waiter: Mapping[str, Any]) -> tuple[int, float, str]:
    """An unknown class counts as ``offline-batch``."""
    value = PRIORITIES.get(str(waiter.get("priority")), PRIORITIES["offline-batch"])
    return (-value, float(waiter["since"]), name)


def _me() -> dict[str, Any]:
    return {"pid": os.getpid(), "started": psutil.Process().create_time()}


def _counts(waiter: Mapping[str, Any]) -> bool:
    """A waiter counts while its driver lives and has renewed it lately."""
    if time.time() - float(waiter["renewed"]) > WAITER_LIFE_S:
        return False
    try:
        return bool(psutil.Process(int(waiter["pid"])).create_time() == waiter["started"])
    except psutil.Error:
        return False
