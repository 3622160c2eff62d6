"""An engine from outside, whole: agents are processes of this host, a JSON file is its memory.

It needs nothing of another engine; docs/engines.md says what it follows.
"""

from __future__ import annotations

import fcntl
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from ffdl_airflow import services
from ffdl_airflow.agent import protocol
from ffdl_airflow.agent.bundle import ensure_zipapp
from ffdl_airflow.core.errors import InfrastructureError
from ffdl_airflow.core.observation import Inventory, Observation, Presence, SlotUse, with_journal
from ffdl_airflow.core.plan import GangPlan
from ffdl_airflow.engines import agents, base, processes
from ffdl_airflow.engines.client import HttpAgentClient
from ffdl_airflow.engines.plan_document import agent_command, gang_document, replica_document
from ffdl_airflow.engines.unix_transport import UnixTransport
from ffdl_airflow.settings import Settings

Entry = dict[str, Any]
NEVER_MADE: Entry = {"slots": [], "held": False, "ends_by": None, "killed": 0, "homes": []}
PATIENCE_S = 8.0


def make(settings: Settings) -> ProcessEngine:
    """What the setting names: ``engine = tests.engines.outside:make``."""
    key = services.installation_key(settings)
    return ProcessEngine(settings.state_dir / "outside", slots=settings.slots or 1, key=key)


class ProcessEngine:
    def __init__(self, home: Path, *, slots: int, key: bytes) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home, self.slots, self.key = home.resolve(), slots, key

    def capacity(self) -> Inventory:
        held = self._held(self._read())
        uses = tuple(SlotUse(slot=slot, placement=held.get(slot)) for slot in range(self.slots))
        return Inventory(total=self.slots, free=self.slots - len(held), uses=uses)

    def reserve(self, plan: GangPlan) -> base.Granted | base.Waiting | base.Over:
        with self._memory() as known:
            mine = known.get(plan.placement_id)
            if mine is None:
                self._take_back(known)
                held = self._held(known)
                free = [slot for slot in range(self.slots) if slot not in held]
                if len(free) < plan.slots:
                    who = ", ".join(sorted(set(held.values())))
                    return base.Waiting(f"{plan.slots} slots needed, {len(free)} free; held: {who}")
                mine = known[plan.placement_id] = self._prepare(plan, free[: plan.slots])
                self._write(known)
            if mine["ends_by"] is not None:
                return base.Over()
            folder, agent = str(self.home / plan.placement_id), ensure_zipapp(str(self.home))
            for home in map(Path, mine["homes"]):
                call = agent_command(sys.executable, agent=agent, folder=folder, replica=home.name)
                agents.start(home, call, mark=self.mark(plan.placement_id))
        return base.Granted(tuple(mine["slots"]))

    def connect(self, placement_id: str) -> HttpAgentClient:
        socket = self._read().get(placement_id, NEVER_MADE).get("socket", "/nowhere")
        token = protocol.token_for(self.key, placement_id)
        return HttpAgentClient(UnixTransport(socket), token)

    def observe(self, placement_id: str, after: int) -> Observation:
        mine = self._read().get(placement_id)
        if mine is None:
            return Observation(presence=Presence.ABSENT)
        status, lives = None, self._lives(mine)
        if lives:
            with suppress(base.AgentAway, base.AgentRefused):
                status = self.connect(placement_id).status()
        seen = Observation(presence=Presence.ALIVE if lives else Presence.GONE, status=status)
        entries = protocol.read_journal(mine["journal"], after) if mine["homes"] else []
        return with_journal(seen, entries, placed={"slots": mine["slots"]})

    def end(self, placement_id: str, request: base.EndRequest) -> base.Evidence | base.Ending:
        with self._memory() as known:
            mine = known.setdefault(placement_id, dict(NEVER_MADE))
            if mine["ends_by"] is None:
                saving_s = request.grace_s if request.mode == protocol.STOP_SAVE else 0.0
                mine["ends_by"] = time.time() + saving_s + PATIENCE_S
                self._close(placement_id, request.mode)
            if time.time() > mine["ends_by"] or not self._lives(mine):
                mine["killed"] += processes.kill_all(self.mark(placement_id))
                mine["held"] = False
            self._write(known)
        if not mine["held"]:
            return base.Evidence(killed=mine["killed"])
        with suppress(base.AgentAway, base.AgentRefused):
            self.connect(placement_id).stop(mode=request.mode, why=request.why, then="leave")
        return base.Ending("its agents leave")

    def placements(self) -> list[str]:
        return [name for name, entry in self._read().items() if entry["held"]]

    def mark(self, placement_id: str) -> str:
        return f"{placement_id}@{sha256(str(self.home).encode()).hexdigest()[:8]}"

    def _prepare(self, plan: GangPlan, slots: list[int]) -> Entry:
        folder, sockets = self.home / plan.placement_id, tempfile.mkdtemp(prefix="ffdl-")
        replicas = []
        for replica in plan.replicas:
            (folder / replica.name).mkdir(parents=True, exist_ok=True)
            socket = f"{sockets}/{replica.name}.sock"
            own = replica_document(replica, folder=str(folder / replica.name), socket=socket)
            replicas.append(own)
        meet, mark = {"unix": replicas[0]["socket"]}, self.mark(plan.placement_id)
        document = gang_document(plan, replicas, coordinator=meet, local=True, placement_id=mark)
        (folder / protocol.TOKEN_FILE).touch(0o600)
        token = protocol.token_for(self.key, plan.placement_id)
        (folder / protocol.TOKEN_FILE).write_text(token)
        protocol.write_json(str(folder / protocol.PLAN_FILE), document)
        return {**NEVER_MADE, "slots": slots, "held": True, "socket": meet["unix"],
                "journal": document["journal"],
                "homes": [one["dir"] for one in replicas]}  # fmt: skip

    def _take_back(self, known: dict[str, Entry]) -> None:
        """From gangs whose coordinator does not live; they are over from now on."""
        for name, entry in known.items():
            if entry["held"] and not self._lives(entry):
                self._close(name, protocol.STOP_NOW)
                entry["killed"] += processes.kill_all(self.mark(name))
                entry.update(held=False, ends_by=0.0)

    def _close(self, placement_id: str, mode: str) -> None:
        """For agents that are just starting: they look for this file before they hold."""
        folder = self.home / placement_id
        folder.mkdir(parents=True, exist_ok=True)
        protocol.write_json(str(folder / protocol.FENCE_ENDED), {"v": 1, "mode": mode})

    @staticmethod
    def _lives(entry: Entry) -> bool:
        return any(agents.lives(Path(home)) for home in entry["homes"][:1])

    @staticmethod
    def _held(known: dict[str, Entry]) -> dict[int, str]:
        return {slot: name for name, one in known.items() if one["held"] for slot in one["slots"]}

    @contextmanager
    def _memory(self) -> Iterator[dict[str, Entry]]:
        """What is known, while no other driver changes it."""
        try:
            with (self.home / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield self._read()
        except OSError as error:
            raise InfrastructureError(f"{self.home} cannot be used: {error}") from error

    def _read(self) -> dict[str, Entry]:
        return protocol.read_json(str(self.home / "memory.json")) or {}

    def _write(self, known: dict[str, Entry]) -> None:
        protocol.write_json(str(self.home / "memory.json"), known)
