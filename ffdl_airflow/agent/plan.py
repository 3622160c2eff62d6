"""The plan of a placement as the agent reads it: ``plan.json``, checked and typed.

Not for: writing the plan (the engine does) or understanding the job; the agent starts what the plan
says and nothing else. Named tuples, because importing ``dataclasses`` costs more than the agent's
whole start-up may.
"""

import os
from typing import Any, Dict, List, NamedTuple, Optional

from . import address, protocol


class PlanError(ValueError):
    """The plan cannot be used; the text names the field."""


class Process(NamedTuple):
    """One process that an agent starts.

    ``rank`` None: it is outside the world (parameter server, evaluator, launcher). ``port`` None:
    its port is any that is free.
    """

    rank: Optional[int]
    local_rank: int
    env: Dict[str, str]
    port: Optional[int] = None


class ReplicaPlan(NamedTuple):
    """One replica: where it lives and what it starts.

    Without ``processes`` it only holds its place, for one that starts them there (mpirun).
    ``files``: name -> content, written into ``dir`` at the start. ``tuning``: see tuning.py.
    ``code``: what ``cwd`` is made a copy of. ``logs``: folder of what its processes print.
    ``inherits``: whether they get the agent's whole environment, as it is in an image of the
    user's, or what any program needs.
    """

    name: str
    role: str
    number: int
    dir: str
    socket: str
    slot_locks: List[str]
    cwd: Optional[str]
    command: List[str]
    env: Dict[str, str]
    processes: List[Process]
    files: Dict[str, str]
    tuning: Dict[str, Any]
    code: Optional[str] = None
    logs: str = ""
    inherits: bool = False

    @property
    def rank_socket(self) -> str:
        """Path of the socket that the trainer's ``ffdl`` module talks to."""
        return os.path.splitext(self.socket)[0] + ".rank"


class Watched(NamedTuple):
    """A replica whose use is measured: below ``min_percent`` of its GPU or ``cores`` it is idle."""

    min_percent: float
    cores: float


class Watch(NamedTuple):
    """How use is measured: of which resource (``gpu`` or ``cpu``), over which window, and where.

    ``aggregate`` (``mean``, ``min``, ``max``) makes one figure of a window's samples.
    """

    resource: str
    window_s: float
    aggregate: str
    replicas: Dict[str, Watched]


class Limits(NamedTuple):
    """All times in seconds. The engine says those that a job or an installation sets."""

    hold_s: float = 600.0
    placement_s: float = 300.0
    heartbeat_s: float = 2.0
    silent_s: float = 8.0
    grace_s: float = 30.0
    first_step_s: float = 1800.0
    hang_factor: float = 10.0
    hang_floor_s: float = 60.0
    evaluator_grace_s: float = 600.0
    term_s: float = 5.0
    settle_s: float = 0.4
    """How long to go on collecting exits after the first failure, so that the earliest real one is
    the cause. Chosen: an exit is seen within milliseconds, interpreters take up to 0.3 s to end."""
    survivor_term_s: float = 1.0
    """SIGTERM to SIGKILL for the survivors of a failure. Chosen: JAX's own SIGTERM handler keeps a
    rank alive for good, and nothing that a survivor could still say matters."""
    slot_wait_s: float = 5.0
    """How long to wait for a slot that the placement before is just leaving. Chosen."""


class Plan(NamedTuple):
    """A placement: who takes part, for how long, and where things are kept.

    ``termination``: file whose content outlives the place, for a replica's last words.
    """

    dir: str
    job: str
    placement: int
    placement_id: str
    local: bool
    limits: Limits
    checkpoint_dir: str
    journal: str
    keep: int
    generation: Optional[str]
    required_paths: List[str]
    deciding: List[str]
    evaluators: List[str]
    progress_regex: Optional[str]
    min_free_bytes: int
    meeting_point: address.Address
    replicas: List[ReplicaPlan]
    watch: Optional[Watch] = None
    termination: Optional[str] = None

    @property
    def coordinator(self) -> str:
        """Name of the replica whose agent coordinates: the first."""
        return self.replicas[0].name

    @property
    def names(self) -> List[str]:
        """Names of all replicas, in the plan's order."""
        return [replica.name for replica in self.replicas]

    @property
    def world_size(self) -> int:
        """Number of ranks over all replicas; at least 1, where mpirun alone knows them."""
        every = [process for replica in self.replicas for process in replica.processes]
        return max(1, sum(1 for process in every if process.rank is not None))

    def replica(self, name: str) -> ReplicaPlan:
        """The replica called ``name``. Raises ``PlanError`` where the plan has none."""
        for replica in self.replicas:
            if replica.name == name:
                return replica
        message = "plan.json has no replica %r, it has %s" % (name, ", ".join(self.names))
        raise PlanError(message)


def load_plan(placement_dir: str) -> Plan:
    """Read ``<placement_dir>/plan.json``. Raises ``PlanError`` with the field at fault."""
    path = os.path.join(placement_dir, protocol.PLAN_FILE)
    document = protocol.read_json(path)
    if document is None:
        message = "%s is missing or is no JSON object" % path
        raise PlanError(message)
    if document.get("v") != protocol.VERSION:
        message = "%s: v is %r, this agent reads %d" % (path, document.get("v"), protocol.VERSION)
        raise PlanError(message)
    try:
        return _plan(placement_dir, document)
    except KeyError as error:
        message = "%s: field %s is missing" % (path, error)
        raise PlanError(message) from error
    except (TypeError, ValueError, AttributeError) as error:
        message = "%s: %s" % (path, error)
        raise PlanError(message) from error


def _plan(placement_dir: str, document: Dict[str, Any]) -> Plan:
    replicas = [_replica(entry) for entry in document["replicas"]]
    if not replicas:
        message = "replicas is empty, at least one is needed"
        raise PlanError(message)
    names = [replica.name for replica in replicas]
    return Plan(
        dir=placement_dir,
        job=str(document["job"]),
        placement=int(document["placement"]),
        placement_id=str(document["placement_id"]),
        local=bool(document.get("local", False)),
        limits=_limits(document),
        checkpoint_dir=str(document["checkpoint_dir"]),
        journal=str(document["journal"]),
        keep=max(1, int(document.get("keep", 3))),
        generation=document.get("generation"),
        required_paths=[str(path) for path in document.get("required_paths", [])],
        deciding=[str(name) for name in document.get("deciding") or names],
        evaluators=[str(name) for name in document.get("evaluators", [])],
        progress_regex=document.get("progress_regex"),
        min_free_bytes=int(document.get("min_free_bytes", 0)),
        meeting_point=address.read(document["coordinator"]),
        replicas=replicas,
        watch=_watch(document.get("watch")),
        termination=document.get("termination"),
    )


def _watch(entry: Optional[Dict[str, Any]]) -> Optional[Watch]:
    if entry is None:
        return None
    replicas = {
        str(name): Watched(float(found["min_percent"]), float(found["cores"]))
        for name, found in entry["replicas"].items()
    }
    window_s = float(entry["window_s"])
    return Watch(str(entry["resource"]), window_s, str(entry["aggregate"]), replicas)


def _limits(document: Dict[str, Any]) -> Limits:
    names = [name for name in Limits._fields if document.get(name) is not None]
    given = {name: float(document[name]) for name in names}
    return Limits(**given)


def _replica(entry: Dict[str, Any]) -> ReplicaPlan:
    return ReplicaPlan(
        name=str(entry["name"]),
        role=str(entry["role"]),
        number=int(entry["index"]),
        dir=str(entry["dir"]),
        socket=str(entry["socket"]),
        slot_locks=[str(path) for path in entry.get("slot_locks", [])],
        cwd=entry.get("cwd"),
        command=[str(word) for word in entry["command"]],
        env={str(key): str(value) for key, value in entry.get("env", {}).items()},
        processes=[
            Process(
                rank=None if process["rank"] is None else int(process["rank"]),
                local_rank=int(process.get("local_rank", 0)),
                port=None if process.get("port") is None else int(process["port"]),
                env={str(key): str(value) for key, value in process.get("env", {}).items()},
            )
            for process in entry["processes"]
        ],
        files={str(key): str(value) for key, value in entry.get("files", {}).items()},
        tuning=dict(entry.get("tuning") or {}),
        code=entry.get("code"),
        logs=str(entry.get("logs") or entry["dir"]),
        inherits=bool(entry.get("inherits", False)),
    )
