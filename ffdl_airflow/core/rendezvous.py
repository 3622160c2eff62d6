"""How the ranks of a gang find one another: their numbers and their environment, by framework.

For: the variables of CONTRACT section 3. Not for: starting processes. The port is a placeholder
that the coordinator fills in when the gang starts, because only then it knows which one is free.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ffdl_airflow.agent.protocol import PORT_PLACEHOLDER
from ffdl_airflow.core.job import JobSpec, Role

LAUNCHERS = frozenset({"torchrun", "mpirun", "mpiexec", "horovodrun", "accelerate", "deepspeed"})
"""Programs that start the training processes of a replica themselves: the agent starts one."""
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
NOT_RANKS = frozenset({"ps", "evaluator", "launcher"})
"""Roles whose processes do not count in the world size (Kubeflow's rule)."""
SUPPORTED = ("pytorch", "jax", "caffe", "custom")


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process that the agent starts. ``number`` None: outside the world (ps, evaluator).

    ``launched``: processes that it starts itself, where it is torchrun; None for all others.
    """

    replica: str
    number: int | None
    local: int
    local_size: int
    node: int
    launched: int | None = None


def processes_of(role: Role, spec: JobSpec) -> int:
    """Processes of one replica: one where it is a launcher, else as said, else by the framework.

    ``auto`` is one a GPU for PyTorch programs that come as entry points, one for all others.
    """
    if _is_launcher(role, spec):
        return 1
    if role.processesPerReplica != "auto":
        return role.processesPerReplica
    own_program = spec.training.entryPoint is not None and not role.command
    pytorch = spec.training.framework == "pytorch" and own_program
    return max(1, spec.resources_of(role).gpu) if pytorch else 1


def ranks(spec: JobSpec) -> list[Rank]:
    """All processes in the order of roles and replicas; numbers are dense and start at 0."""
    found: list[Rank] = []
    number = node = 0
    for role in spec.all_roles:
        size, launched = processes_of(role, spec), _launched(role, spec)
        counts = role.name not in NOT_RANKS
        for index in range(role.replicas):
            for local in range(size):
                found.append(
                    Rank(replica=f"{role.name}-{index}", number=number if counts else None,
                         local=local, local_size=size, node=node, launched=launched)
                )  # fmt: skip
                number += counts
            node += counts
    return found


def _command_of(role: Role, spec: JobSpec) -> tuple[str, ...]:
    return role.command or spec.training.command


def _is_torchrun(command: tuple[str, ...]) -> bool:
    named = command[:1] and command[0].rpartition("/")[2] == "torchrun"
    return bool(named) or any(word in _TORCHRUN_MODULES for word in command)


def _is_launcher(role: Role, spec: JobSpec) -> bool:
    command = _command_of(role, spec)
    named = bool(command) and command[0].rpartition("/")[2] in LAUNCHERS
    return named or _is_torchrun(command)


def _launched(role: Role, spec: JobSpec) -> int | None:
    if not _is_torchrun(_command_of(role, spec)):
        return None
    said = role.processesPerReplica
    return max(1, spec.resources_of(role).gpu) if said == "auto" else said


def environment(framework: str, rank: Rank, *, world_size: int, master: str) -> dict[str, str]:
    """The environment by which a process finds its gang. ``master`` is replica 0's address."""
    if rank.number is None:
        return {}
    env = {
        "RANK": str(rank.number),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank.local),
        "LOCAL_WORLD_SIZE": str(rank.local_size),
        "NODE_RANK": str(rank.node),
        "MASTER_ADDR": master,
        "MASTER_PORT": PORT_PLACEHOLDER,
    }
    return env | dict(_BY_FRAMEWORK.get(framework, _nothing)(rank, world_size, master))


def _nothing(rank: Rank, world_size: int, master: str) -> Mapping[str, str]:
    return {}


def _jax(rank: Rank, world_size: int, master: str) -> Mapping[str, str]:
    """Names that ``jax.distributed.initialize()`` reads by itself (jax clusters, env vars)."""
    return {
        "JAX_COORDINATOR_ADDRESS": f"{master}:{PORT_PLACEHOLDER}",
        "JAX_NUM_PROCESSES": str(world_size),
        "JAX_PROCESS_ID": str(rank.number),
    }


def _pytorch(rank: Rank, world_size: int, master: str) -> Mapping[str, str]:
    """Torchrun reads PET_* as its arguments; each of its replicas is one node."""
    if rank.launched is None:
        return {}
    return {
        "PET_NNODES": str(world_size),
        "PET_NODE_RANK": str(rank.node),
        "PET_NPROC_PER_NODE": str(rank.launched),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": PORT_PLACEHOLDER,
    }


_BY_FRAMEWORK = {"jax": _jax, "pytorch": _pytorch}
