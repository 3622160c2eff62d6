"""The local engine: a placement is a directory, its agents are detached processes.

The directory is the fence: made once, and closed for good by the file ``ENDED``. Whoever wakes up
late finds it closed. A driver may die at any line here: the next call goes on from what it finds.
"""

import hashlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from ffdl_airflow.agent import protocol
from ffdl_airflow.agent.bundle import ensure_zipapp
from ffdl_airflow.core.errors import InfrastructureError
from ffdl_airflow.core.observation import (
    Inventory,
    Observation,
    Presence,
    with_journal,
)
from ffdl_airflow.core.plan import GangPlan, ReplicaPlan, slots_of
from ffdl_airflow.engines import agents, processes
from ffdl_airflow.engines.base import (
    AgentAway,
    AgentRefused,
    Ending,
    EndRequest,
    Evidence,
    Granted,
    Over,
    ProcessLog,
    Waiting,
)  # fmt: skip
from ffdl_airflow.engines.client import HttpAgentClient
from ffdl_airflow.engines.local import sockets
from ffdl_airflow.engines.local.pool import Request, SlotPool
from ffdl_airflow.engines.logs import process_logs
from ffdl_airflow.engines.plan_document import agent_command, gang_document, replica_document
from ffdl_airflow.engines.unix_transport import UnixTransport

_PATIENCE_S = 8.0
"""After this long (plus the grace of a save) what was told to leave is killed. Chosen: the agent's
own SIGTERM → SIGKILL takes 5 s."""


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """Where the engine keeps its things. ``gpus``: slots are devices, else CPU shares.

    ``young_s``: so long a granted placement may be without all of its agents, because its driver is
    just starting them, before others take its slots. Chosen.
    """

    state_dir: Path
    slots: int
    gpus: bool
    installation_key: bytes
    python: str = sys.executable
    young_s: float = 30.0


class LocalEngine:
    """See :mod:`ffdl_airflow.engines.base` for what is promised."""

    def __init__(self, settings: LocalSettings) -> None:
        self.settings = settings
        self._clients: dict[str, HttpAgentClient] = {}
        home = str(settings.state_dir.resolve())
        self._installation = hashlib.sha256(home.encode()).hexdigest()[:8]
        self._pool = SlotPool(settings.state_dir / "slots", settings.slots, self._reclaim)

    def capacity(self) -> Inventory:
        """All slots of this host, its cores and its memory; a gang that has left holds none."""
        found = self._pool.inventory(self._has_left)
        return replace(
            found, gpus=self.settings.slots if self.settings.gpus else 0,
            cpu=len(os.sched_getaffinity(0)), memory_bytes=psutil.virtual_memory().total,
        )  # fmt: skip

    def reserve(self, plan: GangPlan) -> Granted | Waiting | Over:
        """Take slots, make the fence, start the agents that are missing."""
        with _translated(self.settings.state_dir):
            return self._reserve(plan)

    def _reserve(self, plan: GangPlan) -> Granted | Waiting | Over:
        folder = self._folder(plan.placement_id)
        if self._ended(folder):
            return Over()
        request = Request(placement_id=plan.placement_id, slots=plan.slots, priority=plan.priority)
        granted = self._pool.grant(request)
        if isinstance(granted, Waiting):
            return granted
        folder.mkdir(parents=True, exist_ok=True)
        if self._ended(folder):
            self._pool.release(plan.placement_id)
            return Over()
        document = self._document(plan, granted.slots)
        self._write_fence(folder, plan, document)
        for replica in document["replicas"]:
            self._start_agent(folder, document["placement_id"], replica)
        return granted

    def connect(self, placement_id: str) -> HttpAgentClient:
        """Control over the coordinator's Unix socket."""
        known = self._clients.get(placement_id)
        if known is not None:
            return known
        folder = self._folder(placement_id)
        plan = protocol.read_json(str(folder / protocol.PLAN_FILE)) or {}
        path = str(plan.get("coordinator", {}).get("unix") or folder / "nobody")
        token = protocol.token_for(self.settings.installation_key, placement_id)
        client = HttpAgentClient(
            UnixTransport(path), token,
            reachable=lambda: bool(plan) and self._coordinator_is_there(plan),
        )  # fmt: skip
        if plan:
            self._clients = {placement_id: client}  # one job has one placement at a time
        return client

    def observe(self, placement_id: str, after: int) -> Observation:
        """The fence, the agents' locks, the status and the journal."""
        folder = self._folder(placement_id)
        plan = protocol.read_json(str(folder / protocol.PLAN_FILE))
        if plan is None:
            over = self._ended(folder)
            return Observation(presence=Presence.GONE if over else Presence.ABSENT)
        alive = agents.lives(Path(plan["replicas"][0]["dir"]))  # the coordinator's
        status = self._status(placement_id) if alive else None
        entries = protocol.read_journal(plan["journal"], after)
        seen = Observation(presence=Presence.ALIVE if alive else Presence.GONE, status=status)
        return with_journal(seen, entries, placed={"slots": list(plan["slots"])})

    def end(self, placement_id: str, request: EndRequest) -> Evidence | Ending:
        """Close the fence, tell the gang to leave, and kill what does not."""
        with _translated(self.settings.state_dir):
            return self._end(placement_id, request)

    def _end(self, placement_id: str, request: EndRequest) -> Evidence | Ending:
        folder = self._folder(placement_id)
        closed_at = self._close(folder, request)
        plan = protocol.read_json(str(folder / protocol.PLAN_FILE))
        if plan is not None and self._alive(plan):
            patience = _PATIENCE_S + (request.grace_s if request.mode == protocol.STOP_SAVE else 0)
            if time.time() - closed_at < patience:
                self._ask_to_leave(placement_id, request)
                if self._alive(plan):
                    return Ending("the gang is leaving")
        try:
            killed = processes.kill_all(self.mark(placement_id))
        except TimeoutError as error:
            raise InfrastructureError(
                str(error), next_step="look what holds them (often a file system that hangs)"
            ) from error
        self._pool.release(placement_id)
        if plan is not None:
            sockets.remove(Path(plan["coordinator"]["unix"]).parent)
        return Evidence(killed=killed)

    def render(self, plan: GangPlan) -> Sequence[Mapping[str, Any]]:
        """The document that the agents would read."""
        return [self._document(plan, tuple(range(plan.slots)))]

    def placements(self) -> Sequence[str]:
        """Placements that hold slots, or of which a process lives."""
        holders = self._pool.holders()
        root = str(self.settings.state_dir / "jobs")
        made = {f"{p.parts[-3]}/{p.name}" for p in Path(root).glob("*/placements/*")}
        living = processes.placements()
        return sorted(holders | {name for name in made if self.mark(name) in living})

    def logs(self, job_id: str) -> Sequence[ProcessLog]:
        """Logs of all processes of all attempts that are still on this host."""
        root = self.settings.state_dir / "jobs" / job_id / "placements"
        return process_logs({int(path.name): path / "agents" for path in root.glob("[0-9]*")})

    def _folder(self, placement_id: str) -> Path:
        job_id, number = placement_id.rsplit("/", 1)
        return self.settings.state_dir / "jobs" / job_id / "placements" / number

    def mark(self, placement_id: str) -> str:
        """The placement's name in the environment of its processes.

        With the installation in it: job ids are equal where two of them run the same DAG, and the
        one must not end what belongs to the other.
        """
        return f"{placement_id}@{self._installation}"

    @staticmethod
    def _ended(folder: Path) -> bool:
        return (folder / protocol.FENCE_ENDED).exists()

    def _close(self, folder: Path, request: EndRequest) -> float:
        """Write the mark once; returns when it was written (seconds since the epoch).

        On a full disk an empty file must do: only that it is there counts.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / protocol.FENCE_ENDED
        if not path.exists():
            mark = {"v": 1, "why": request.why, "at": protocol.now_iso(), "mode": request.mode}
            try:
                protocol.write_json(str(path), mark)
            except OSError:
                path.touch()
        return path.stat().st_mtime

    def _write_fence(self, folder: Path, plan: GangPlan, document: Mapping[str, Any]) -> None:
        path = folder / protocol.PLAN_FILE
        if path.exists():
            return
        sockets.make(Path(document["coordinator"]["unix"]).parent)
        for replica in document["replicas"]:
            Path(replica["dir"]).mkdir(parents=True, exist_ok=True)
        Path(document["journal"]).parent.mkdir(parents=True, exist_ok=True)
        Path(document["output_dir"]).mkdir(parents=True, exist_ok=True)
        token = protocol.token_for(self.settings.installation_key, plan.placement_id)
        descriptor = os.open(folder / protocol.TOKEN_FILE, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(token)
        protocol.write_json(str(path), dict(document))

    def _start_agent(self, folder: Path, mark: str, replica: Mapping[str, Any]) -> None:
        command = agent_command(
            self.settings.python, agent=self._zipapp(), folder=str(folder), replica=replica["name"]
        )
        agents.start(Path(replica["dir"]), command, mark=mark)

    def _zipapp(self) -> str:
        target = self.settings.state_dir / "agent"
        target.mkdir(parents=True, exist_ok=True)
        return ensure_zipapp(str(target))

    def _alive(self, plan: Mapping[str, Any]) -> bool:
        return any(agents.lives(Path(replica["dir"])) for replica in plan["replicas"])

    def _coordinator_is_there(self, plan: Mapping[str, Any]) -> bool:
        """Its agent lives and has opened its socket."""
        replica = plan["replicas"][0]
        return Path(replica["socket"]).exists() and agents.lives(Path(replica["dir"]))

    def _reclaim(self, placement_id: str, age_s: float) -> bool:
        """Whether the pool may take the placement's slots: no agent of it is left, for good.

        What cannot be killed keeps its slots.
        """
        if not self._has_left(placement_id, age_s):
            return False
        self._close(self._folder(placement_id), EndRequest(why="no agent of it is left"))
        try:
            processes.kill_all(self.mark(placement_id))
        except TimeoutError:
            return False
        return True

    def _has_left(self, placement_id: str, age_s: float) -> bool:
        """Whether no agent of it lives or will.

        In its first seconds a placement may have no agent yet: its driver is just starting them.
        """
        folder = self._folder(placement_id)
        plan = protocol.read_json(str(folder / protocol.PLAN_FILE))
        if plan is not None and self._alive(plan):
            return False
        started = plan is not None and all(
            agents.was_started(Path(replica["dir"])) for replica in plan["replicas"]
        )
        return started or self._ended(folder) or age_s >= self.settings.young_s

    def _status(self, placement_id: str) -> Mapping[str, Any] | None:
        try:
            return self.connect(placement_id).status()
        except (AgentAway, AgentRefused):
            return None

    def _ask_to_leave(self, placement_id: str, request: EndRequest) -> None:
        client = self.connect(placement_id)
        try:
            client.stop(mode=request.mode, why=request.why, then="leave")
            if request.mode == protocol.STOP_NOW:
                client.status(after=1 << 30, wait_s=0.5)
        except (AgentAway, AgentRefused):
            return

    def _document(self, plan: GangPlan, slots: tuple[int, ...]) -> dict[str, Any]:
        folder = self._folder(plan.placement_id)
        left = list(slots)
        replicas = []
        for replica in plan.replicas:
            own = [left.pop(0) for _ in range(slots_of(replica.gpu))]
            replicas.append(self._replica(folder, replica, own))
        _lend_devices(replicas)
        return gang_document(
            plan, replicas, coordinator={"unix": replicas[0]["socket"]}, local=True,
            placement_id=self.mark(plan.placement_id), slots=list(slots),
        )  # fmt: skip

    def _replica(self, folder: Path, replica: ReplicaPlan, slots: list[int]) -> dict[str, Any]:
        env = dict(replica.env)
        if self.settings.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, slots)) if replica.gpu else ""
            env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # NVML's order, else CUDA's own
        return replica_document(
            replica, folder=str(folder / "agents" / replica.name), env=env,
            socket=str(sockets.folder_for(folder) / f"{replica.name}.sock"),
            slot_locks=[str(self._pool.lock_path(slot)) for slot in slots],
        )  # fmt: skip


@contextmanager
def _translated(state_dir: Path) -> Iterator[None]:
    """The disk's errors: whose fault, and what to do."""
    try:
        yield
    except OSError as error:
        raise InfrastructureError(
            f"the local engine cannot write its state: {error}", evidence=f"state_dir {state_dir}",
            next_step="make room there, or make it writable; what runs goes on",
        ) from error  # fmt: skip


def _lend_devices(replicas: list[dict[str, Any]]) -> None:
    """The GPUs of replicas that start no process are seen by the one that starts theirs: mpirun."""
    name = "CUDA_VISIBLE_DEVICES"
    lent = [one["env"].get(name) for one in replicas if not one["processes"]]
    for replica in replicas:
        if any(lent) and replica["processes"]:
            seen = filter(None, [replica["env"].get(name), *lent])
            replica["env"][name] = ",".join(seen)
