"""Control of one gang from afar, at about one request a minute while nothing happens.

One long-poll a gang and process is held open in the background, for the journal's next entry; who
drives, watches or waits reads what it has brought, as often as they like.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.errors import FfdlError
from ffdl_airflow.engines.base import AgentAway, AgentRefused
from ffdl_airflow.engines.client import HttpAgentClient

IDLE_S = 90.0
"""When nobody has asked for so long, the long-poll is not renewed. Chosen: a job is looked at
every second by whoever drives it."""
RETRY_S = 1.0

Look = tuple[Mapping[str, Any] | None, Sequence[Mapping[str, Any]]]


class RemoteGang:
    """An ``AgentClient`` (engines/base.py) that keeps what it has heard."""

    def __init__(self, agent: HttpAgentClient, *, lives: Callable[[], bool]) -> None:
        self._agent = agent
        self._lives = lives
        self._changed = threading.Condition()
        self._document: Mapping[str, Any] | None = None
        self._entries: list[Mapping[str, Any]] = []
        self._known = 0
        self._fresh = False
        self._asked_at = time.monotonic()
        self._thread: threading.Thread | None = None
        self._left = False
        self.heard_at = time.monotonic()
        """When the coordinator has answered us last; at first, when we were made."""

    def look(self, after: int, *, doubt: bool = False) -> Look:
        """The newest document, None where nobody answers, and the entries above ``after``.

        ``doubt``: ask anew, for a line that was cut may hold a long-poll open without a word.
        """
        with self._changed:
            first = self._known - len(self._entries)
            if not first <= after <= self._known:  # another driver was here meanwhile, or is new
                self._entries, self._known, self._fresh = [], after, False
            self._listen()
            fresh = self._fresh and not doubt
        if not fresh:
            try:
                self._ask(wait_s=0.0)
            except (AgentAway, AgentRefused):
                return None, self._entries_above(after)
        return self._document, self._entries_above(after)

    def status(self, *, after: int = -1, wait_s: float = 0.0) -> Mapping[str, Any]:
        """The coordinator's document; waits for what the long-poll brings."""
        if wait_s <= 0:
            return self._ask(wait_s=0.0)
        with self._changed:
            self._listen()
            self._changed.wait_for(lambda: self._seq() > after, min(wait_s, protocol.LONG_POLL_S))
            document = self._document
        if document is None:
            raise AgentAway("the gang has not answered yet")
        return document

    def go(self, order: Mapping[str, Any]) -> None:
        """Start an attempt."""
        self._tell(lambda: self._agent.go(order))

    def save(self, why: str) -> None:
        """Ask for a checkpoint."""
        self._tell(lambda: self._agent.save(why))

    def stop(self, *, mode: str, why: str, then: str) -> None:
        """End the running attempt."""
        self._tell(lambda: self._agent.stop(mode=mode, why=why, then=then))

    def renew(self, hold_s: float) -> None:
        """The hold counts from now."""
        self._tell(lambda: self._agent.renew(hold_s))

    def _tell(self, order: Callable[[], None]) -> None:
        """What was heard before an order says nothing about what comes of it."""
        self._require_there()
        try:
            order()
        finally:
            with self._changed:
                self._fresh = False

    def heed(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Entries of the journal; after its last word nobody is asked any more.

        A pod's address may go before the pod does, and then each question waits out its time.
        """
        if any(entry["kind"] == protocol.J_RELEASED for entry in entries):
            self._left = True

    def _require_there(self) -> None:
        if self._left:
            raise AgentAway("the gang has left")

    def _seq(self) -> int:
        return -1 if self._document is None else int(self._document["seq"])

    def _entries_above(self, after: int) -> list[Mapping[str, Any]]:
        """Also forgets the others: the ledger has them."""
        with self._changed:
            self._entries = [entry for entry in self._entries if int(entry["seq"]) > after]
            return list(self._entries)

    def _ask(self, *, wait_s: float) -> Mapping[str, Any]:
        self._require_there()
        document = dict(self._agent.news(journal=self._known, wait_s=wait_s))
        entries = document.pop("journal")
        self.heed(entries)
        with self._changed:
            self.heard_at = time.monotonic()
            if self._document is None or int(document["seq"]) >= self._seq():
                self._document = document
            self._entries += [entry for entry in entries if int(entry["seq"]) > self._known]
            self._known = max([self._known, *(int(entry["seq"]) for entry in entries)])
            self._fresh = True
            self._changed.notify_all()
        return document

    def _listen(self) -> None:
        self._asked_at = time.monotonic()
        if not self._left and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._run, name="ffdl gang", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._left and time.monotonic() - self._asked_at < IDLE_S:
            try:
                if not self._lives():
                    break
                self._ask(wait_s=protocol.LONG_POLL_S)
            except (AgentAway, AgentRefused, FfdlError):  # who asks is told, by a look
                with self._changed:
                    self._fresh = False
                time.sleep(RETRY_S)
        with self._changed:
            self._fresh = False
