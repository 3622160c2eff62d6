"""The plan of a placement: what each replica runs, as plain data, before anything is created.

For: job spec + where things lie → the document that the agents read, without what only an engine
knows (sockets, slots, node names). Not for: sending it. The same plan is rendered by every engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ffdl_airflow.core.job import JobSpec, Resources, Role, SecretRef, TrainingJob
from ffdl_airflow.core.rendezvous import (
    NOT_RANKS,
    Gang,
    Rank,
    environment,
    gang_of,
    hostfiles,
    mpi_head,
    threads_of,
)
from ffdl_airflow.core.utilization import watched

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
"""Since when those want a place whose time is not known."""
ONE_HOST = "127.0.0.1"
"""Address of every replica where all are on one host."""
MIN_FREE_BYTES = 64 * 2**20
"""Free space that a start asks for on the checkpoint's disk. Chosen."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times of a gang in seconds. Defaults: chosen."""

    heartbeat_s: float = 2.0
    silent_s: float = 8.0
    hold_s: float = 600.0
    placement_s: float = 300.0
    grace_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where things lie, as the replica sees it.

    ``data`` maps a store's name to its path, ``host`` is the address of a replica, in which
    ``{replica}`` stands for its name. ``asked_at``: see GangPlan.
    """

    checkpoint_dir: str
    output_dir: str
    log_dir: str
    python: str
    host: str = ONE_HOST
    data: Mapping[str, str] = field(default_factory=dict)
    code: str | None = None
    asked_at: datetime = EPOCH


@dataclass(frozen=True, kw_only=True)
class ReplicaPlan:
    """One replica: its command, and the environment of each of its processes.

    ``code`` is the generation of the program, of which an engine may give the replica a copy.
    A replica without ``processes`` holds its resources for the one that starts them there (MPI).
    ``files``: name → content, written beside the logs. ``tuning`` is what agent/tuning.py reads.
    ``wants`` and ``image`` are for engines that make a place of their own for each replica;
    ``secrets``: variable → (name of a secret, key), which only the place can resolve.
    ``templates``: what the user adds to the place, the job's first.
    """

    name: str
    role: str
    index: int
    gpu: int
    cwd: str
    code: str | None
    command: tuple[str, ...]
    env: Mapping[str, str]
    processes: tuple[Mapping[str, Any], ...]
    files: Mapping[str, str]
    tuning: Mapping[str, Any]
    wants: Resources
    image: str | None
    secrets: Mapping[str, tuple[str, str]]
    templates: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class GangPlan:
    """A whole gang. ``priority`` is the class name, ``slots`` what it takes of a local pool.

    ``labels`` are the job's own. ``host_network``: replicas share the network of their nodes.
    ``asked_at``: since when the job wants a place; those who wait longer come first. ``gang``: by
    what it is placed as a whole (spec.reservation.gang).
    """

    job_id: str
    placement: int
    priority: str
    queue: str
    timing: Timing
    common: Mapping[str, Any]
    replicas: tuple[ReplicaPlan, ...]
    labels: Mapping[str, str]
    host_network: bool
    asked_at: datetime
    gang: str

    @property
    def placement_id(self) -> str:
        """Name of the placement, unique in the installation."""
        return f"{self.job_id}/{self.placement}"

    @property
    def slots(self) -> int:
        """Slots of all replicas: GPUs, or one CPU share where a replica has none."""
        return sum(slots_of(replica.gpu) for replica in self.replicas)


def slots_of(gpu: int) -> int:
    """Local slots of a replica: its GPUs, or one CPU share."""
    return max(1, gpu)


def gang_slots(spec: JobSpec) -> int:
    """Local slots of the whole gang."""
    return sum(role.replicas * slots_of(spec.resources_of(role).gpu) for role in spec.all_roles)


def build(job: TrainingJob, *, job_id: str, placement: int, places: Places, timing: Timing,
          generations: Mapping[str, str]) -> GangPlan:  # fmt: skip
    """The plan of one placement. ``generations`` maps a store's name to its generation id."""
    spec = job.spec
    gang = gang_of(spec, places.host)
    replicas: list[ReplicaPlan] = []
    for role in spec.all_roles:
        for index in range(role.replicas):
            name = f"{role.name}-{index}"
            own = gang.of(name)
            replicas.append(
                ReplicaPlan(
                    name=name, role=role.name, index=index, gpu=spec.resources_of(role).gpu,
                    cwd=places.code or places.output_dir, code=places.code,
                    command=_command(spec, role, places) if own else (),
                    env=_replica_env(job, role, len(replicas) + 1, job_id=job_id, places=places),
                    processes=tuple(_process(gang, role, rank) for rank in own),
                    files=hostfiles(gang) if own else {}, tuning=_tuning(gang, role),
                    wants=spec.resources_of(role), image=role.image or spec.training.image,
                    secrets=_secrets(spec, role), templates=(spec.podTemplate, role.podTemplate),
                )
            )  # fmt: skip
    return GangPlan(
        job_id=job_id, placement=placement,
        priority=spec.priority, queue=spec.reservation.queue, timing=timing,
        common=_common(spec, places, generations), replicas=tuple(replicas),
        labels=dict(job.metadata.labels), host_network=spec.network.hostNetwork,
        asked_at=places.asked_at, gang=spec.reservation.gang,
    )  # fmt: skip


def deciding(spec: JobSpec) -> list[str]:
    """Replicas whose exit 0 means that the gang has ended well."""
    names = [f"{role.name}-{i}" for role in spec.all_roles for i in range(role.replicas)]
    heads = [name for name in names if name in ("chief-0", "master-0")]
    head = mpi_head(spec)
    if head is not None:
        return [head]
    tensorflow = spec.training.framework == "tensorflow"
    policy = spec.successPolicy or ("chief" if tensorflow else "allWorkers")
    if policy == "chief":
        return heads[:1] or ["worker-0"]
    return [name for name in names if name.rsplit("-", 1)[0] not in NOT_RANKS]


def _common(spec: JobSpec, places: Places, generations: Mapping[str, str]) -> dict[str, Any]:
    watchdog = spec.watchdog
    paths = [path for path in (*places.data.values(), places.code) if path]
    evaluators = [role for role in spec.all_roles if role.name == "evaluator"]
    return {
        "checkpoint_dir": places.checkpoint_dir,
        "output_dir": places.output_dir,
        "keep": spec.checkpoint.keep,
        "generation": ",".join(sorted(generations.values())) or None,
        "required_paths": paths,
        "deciding": deciding(spec),
        "evaluators": [f"evaluator-{i}" for role in evaluators for i in range(role.replicas)],
        "evaluator_grace_s": spec.evaluatorGrace,
        "progress_regex": spec.progress.regex,
        "first_step_s": watchdog.firstStep,
        "hang_factor": watchdog.hangFactor,
        "hang_floor_s": watchdog.hangFloor,
        "min_free_bytes": MIN_FREE_BYTES,
        "watch": watched(spec),
    }


def _command(spec: JobSpec, role: Role, places: Places) -> tuple[str, ...]:
    training = spec.training
    args = role.args or training.args
    if role.command:
        return (*role.command, *args)
    if training.entryPoint is None:
        return (*training.command, *args)
    program: tuple[str, ...] = (f"./{training.entryPoint}",)
    if training.entryPoint.endswith(".py"):
        program = (places.python, "-u", training.entryPoint)
    if mpi_head(spec) is not None:  # a program, not a command: mpirun is ours to add
        program = ("mpirun", *program)
    return (*program, *args)


def _secrets(spec: JobSpec, role: Role) -> dict[str, tuple[str, str]]:
    own = {**spec.training.env, **role.env}
    return {name: (ref.secretName, ref.key) for name, ref in own.items()
            if isinstance(ref, SecretRef)}  # fmt: skip


def _process(gang: Gang, role: Role, rank: Rank) -> dict[str, Any]:
    said = {**gang.spec.training.env, **role.env}
    env = environment(gang, rank)
    return {"rank": rank.number, "local_rank": rank.local,
            "env": {name: text for name, text in env.items() if name not in said}}  # fmt: skip


def _tuning(gang: Gang, role: Role) -> dict[str, Any]:
    """With MPI the workers' resources count: what mpirun starts runs there."""
    if mpi_head(gang.spec) is not None:
        role = next((one for one in gang.spec.all_roles if one.name not in NOT_RANKS), role)
    wants = gang.spec.resources_of(role)
    return {
        "framework": gang.spec.training.framework,
        "cpu": wants.cpu,
        "gpu": wants.gpu,
        "threads_share": threads_of(role, gang.spec),
        "interface": gang.spec.network.interface,
        "master": gang.address(gang.master.replica) if gang.spec.gang_size > 1 else None,
        "first_step_s": gang.spec.watchdog.firstStep,
    }


def _replica_env(job: TrainingJob, role: Role, learner: int, *, job_id: str,
                 places: Places) -> dict[str, str]:  # fmt: skip
    spec = job.spec
    own = {**spec.training.env, **role.env}
    env = {
        "FFDL_JOB_ID": job_id,
        "FFDL_CHECKPOINT_DIR": places.checkpoint_dir,
        "FFDL_OUTPUT_DIR": places.output_dir,
        "FFDL_CHECKPOINT_EVERY": str(spec.checkpoint.every),
        "PYTHONUNBUFFERED": "1",  # also for what torchrun and mpirun start: logs are read live
        # FfDL's own names (facts: learner environment); LEARNER_ID counts from 1 and GPU_COUNT
        # is printed as a float, as its programs expect.
        "DATA_DIR": next(iter(places.data.values()), ""),
        "RESULT_DIR": places.output_dir,
        "CHECKPOINT_DIR": places.checkpoint_dir,
        "LOG_DIR": places.log_dir,
        "TRAINING_ID": job_id,
        "LEARNER_ID": str(learner),
        "NUM_LEARNERS": str(spec.gang_size),
        "GPU_COUNT": f"{spec.resources_of(role).gpu:.6f}",
    }
    for name, path in places.data.items():
        env[f"FFDL_DATA_{name.upper().replace('-', '_')}"] = path
    if spec.training.globalBatch is not None:
        env["FFDL_GLOBAL_BATCH"] = str(spec.training.globalBatch)
    return env | {name: text for name, text in own.items() if not isinstance(text, SecretRef)}
