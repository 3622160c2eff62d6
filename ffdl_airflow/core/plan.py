"""The plan of a placement: what each replica runs, as plain data, before anything is created.

For: job spec + where things lie → the document that the agents read, without what only an engine
knows (sockets, slots, node names). Not for: sending it. The same plan is rendered by every engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ffdl_airflow.core.job import JobSpec, Role, SecretRef, TrainingJob
from ffdl_airflow.core.rendezvous import NOT_RANKS, Rank, environment, ranks

MIN_FREE_BYTES = 64 * 2**20
"""Free space that a start asks for on the checkpoint's disk. Chosen."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times of a gang in seconds (CONTRACT 2, defaults there)."""

    heartbeat_s: float = 2.0
    silent_s: float = 8.0
    hold_s: float = 600.0
    placement_s: float = 300.0
    grace_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where things lie, as the replica sees it.

    ``data`` maps a store's name to its path, ``master`` is the address of replica 0.
    """

    checkpoint_dir: str
    output_dir: str
    log_dir: str
    python: str
    master: str = "127.0.0.1"
    data: Mapping[str, str] = field(default_factory=dict)
    code: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReplicaPlan:
    """One replica: its command, and the environment of each of its processes.

    ``code`` is the generation of the program, of which an engine may give the replica a copy.
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


@dataclass(frozen=True, kw_only=True)
class GangPlan:
    """A whole gang. ``priority`` is the class name, ``slots`` what it takes of a local pool."""

    job_id: str
    placement: int
    framework: str
    priority: str
    queue: str
    timing: Timing
    common: Mapping[str, Any]
    replicas: tuple[ReplicaPlan, ...]

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
    every = ranks(spec)
    world = sum(1 for rank in every if rank.number is not None)
    replicas = []
    for role in spec.all_roles:
        for index in range(role.replicas):
            name = f"{role.name}-{index}"
            own = [rank for rank in every if rank.replica == name]
            replicas.append(
                ReplicaPlan(
                    name=name, role=role.name, index=index, gpu=spec.resources_of(role).gpu,
                    cwd=places.code or places.output_dir, code=places.code,
                    command=_command(spec, role, places),
                    env=_replica_env(job, role, own[0], job_id=job_id, places=places),
                    processes=tuple(
                        _process(spec, rank, world=world, master=places.master) for rank in own
                    ),
                )
            )  # fmt: skip
    return GangPlan(
        job_id=job_id, placement=placement, framework=spec.training.framework,
        priority=spec.priority, queue=spec.reservation.queue, timing=timing,
        common=_common(spec, places, generations), replicas=tuple(replicas),
    )  # fmt: skip


def deciding(spec: JobSpec) -> list[str]:
    """Replicas whose exit 0 means that the gang has ended well (DESIGN 3.8)."""
    names = [f"{role.name}-{i}" for role in spec.all_roles for i in range(role.replicas)]
    heads = [name for name in names if name in ("chief-0", "master-0")]
    framework = spec.training.framework
    if framework == "mpi" and "launcher-0" in names:
        return ["launcher-0"]
    policy = spec.successPolicy or ("chief" if framework == "tensorflow" else "allWorkers")
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
        "every": spec.checkpoint.every,
        "generation": ",".join(sorted(generations.values())) or None,
        "required_paths": paths,
        "deciding": deciding(spec),
        "undecided": "stop",
        "evaluators": [f"evaluator-{i}" for role in evaluators for i in range(role.replicas)],
        "evaluator_grace_s": spec.evaluatorGrace,
        "progress_regex": spec.progress.regex,
        "first_step_s": watchdog.firstStep,
        "hang_factor": watchdog.hangFactor,
        "hang_floor_s": watchdog.hangFloor,
        "min_free_bytes": MIN_FREE_BYTES,
    }


def _command(spec: JobSpec, role: Role, places: Places) -> tuple[str, ...]:
    training = spec.training
    args = role.args or training.args
    if role.command:
        return (*role.command, *args)
    if training.entryPoint is None:
        return (*training.command, *args)
    if training.entryPoint.endswith(".py"):
        return (places.python, "-u", training.entryPoint, *args)
    return (f"./{training.entryPoint}", *args)


def _process(spec: JobSpec, rank: Rank, *, world: int, master: str) -> dict[str, Any]:
    env = environment(spec.training.framework, rank, world_size=world, master=master)
    return {"rank": rank.number if rank.number is not None else -1, "local_rank": rank.local,
            "env": env}  # fmt: skip


def _replica_env(job: TrainingJob, role: Role, first: Rank, *, job_id: str,
                 places: Places) -> dict[str, str]:  # fmt: skip
    spec = job.spec
    own = {**spec.training.env, **role.env}
    env = {
        "FFDL_JOB_ID": job_id,
        "FFDL_CHECKPOINT_DIR": places.checkpoint_dir,
        "FFDL_OUTPUT_DIR": places.output_dir,
        "FFDL_CHECKPOINT_EVERY": str(spec.checkpoint.every),
        # FfDL's own names (facts: learner environment); LEARNER_ID counts from 1 and GPU_COUNT
        # is printed as a float, as its programs expect.
        "DATA_DIR": next(iter(places.data.values()), ""),
        "RESULT_DIR": places.output_dir,
        "CHECKPOINT_DIR": places.checkpoint_dir,
        "LOG_DIR": places.log_dir,
        "TRAINING_ID": job_id,
        "LEARNER_ID": str(first.node + 1),
        "NUM_LEARNERS": str(spec.gang_size),
        "GPU_COUNT": f"{spec.resources_of(role).gpu:.6f}",
    }
    for name, path in places.data.items():
        env[f"FFDL_DATA_{name.upper().replace('-', '_')}"] = path
    if spec.training.globalBatch is not None:
        env["FFDL_GLOBAL_BATCH"] = str(spec.training.globalBatch)
    return env | {name: text for name, text in own.items() if not isinstance(text, SecretRef)}
