"""The coordinator of every gang on fake nodes: what agents say, by whoever is asked.

A gang is whole as soon as its first pod runs, and does what it is told at once.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ffdl_airflow.agent import protocol
from tests.cluster.fake_pods import Request

Entry = dict[str, Any]


@dataclass
class Gang:
    """One gang, of placement 1."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    state: str = protocol.HOLDING
    attempt: int | None = None
    journal: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.note(protocol.J_PLACED, {"joined": []})
        self.note(protocol.J_RESERVED, {"hold_s": 600.0})

    def note(self, kind: str, body: dict[str, Any]) -> None:
        entry = {"v": 1, "seq": len(self.journal) + 1, "kind": kind, "attempt": self.attempt,
                 "at": protocol.now_iso(), "placement": 1, "body": body}  # fmt: skip
        with self.changed:
            self.journal.append(entry)
            self.changed.notify_all()


class FakeCoordinators:
    """A handler for `Bed.fake_pods`: one gang for each pod that is asked."""

    def __init__(self) -> None:
        self.gangs: dict[str, Gang] = {}
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Any:
        with self._lock:
            gang = self.gangs.setdefault(request.pod_ip, Gang())
        url = urlsplit(request.path)
        if request.method == "GET":
            return self._status(gang, {name: v[0] for name, v in parse_qs(url.query).items()})
        body = json.loads(request.body or b"{}")
        if url.path == protocol.PATH_GO:
            if gang.attempt != body["attempt"]:
                gang.state, gang.attempt = protocol.RUNNING, body["attempt"]
                gang.note(protocol.J_RUNNING, {})
        elif url.path == protocol.PATH_STOP:
            gang.state = protocol.GONE
        return {"v": 1, "ok": True}

    @staticmethod
    def _status(gang: Gang, query: dict[str, str]) -> Any:
        known = int(query.get("journal", 0))
        with gang.changed:
            gang.changed.wait_for(lambda: len(gang.journal) > known, float(query.get("wait", 0)))
            return {"v": 1, "seq": len(gang.journal), "state": gang.state, "attempt": gang.attempt,
                    "joined": [], "journal": gang.journal[known:]}  # fmt: skip
