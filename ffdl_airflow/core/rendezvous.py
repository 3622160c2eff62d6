"""How the processes of a gang find one another: their numbers and their environment, by framework.

For: the variables of CONTRACT section 3 and the hostfiles of MPI. Not for: starting processes.
Ports are placeholders that the agents fill in when the gang starts, because only then they know
which ones are free.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from ffdl_airflow.agent.protocol import file_placeholder, port_placeholder
from ffdl_airflow.core.job import JobSpec, Role

LAUNCHERS = frozenset({"torchrun", "mpirun", "mpiexec", "horovodrun", "accelerate", "deepspeed"})
"""Programs that start the training processes of a replica themselves: the agent starts one."""
SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
NOT_RANKS = frozenset({"ps", "evaluator", "launcher"})
"""Roles whose processes do not count in the world size (Kubeflow's rule)."""
TF_CLUSTER = ("chief", "master", "worker", "ps")
"""Roles that TensorFlow's cluster lists. An evaluator has a task and is not listed: so in
tf-operator 0.5, KubeDL and TensorFlow's own documentation."""
HOSTFILE, HYDRA_HOSTFILE = "hostfile", "hostfile.hydra"


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process that the agent starts. ``number`` None: outside the world (ps, evaluator).

    ``task``: its place among the processes of its role. ``launched``: processes that it starts
    itself, where it is torchrun; None for all others.
    """

    replica: str
    role: str
    number: int | None
    local: int
    local_size: int
    node: int
    task: int
    launched: int | None = None

    @property
    def port(self) -> str:
        """Stands for the port that its agent finds for it."""
        return port_placeholder(self.replica, self.local)


@dataclass(frozen=True, kw_only=True)
class Gang:
    """All processes of a gang. ``host`` is the address of a replica, ``{replica}`` its name."""

    spec: JobSpec
    ranks: tuple[Rank, ...]
    host: str = "127.0.0.1"

    @property
    def world_size(self) -> int:
        """Processes that count."""
        return sum(rank.number is not None for rank in self.ranks)

    @property
    def master(self) -> Rank:
        """The process that the others meet at: rank 0, the first one where there is no world."""
        return next((rank for rank in self.ranks if rank.number == 0), self.ranks[0])

    def of(self, replica: str) -> list[Rank]:
        """The processes of one replica."""
        return [rank for rank in self.ranks if rank.replica == replica]

    def address(self, replica: str) -> str:
        """Where a replica is reached."""
        return self.host.replace("{replica}", replica)


def gang_of(spec: JobSpec, host: str = "127.0.0.1") -> Gang:
    """The gang of a job."""
    return Gang(spec=spec, ranks=tuple(ranks(spec)), host=host)


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
    """All processes in the order of roles and replicas; numbers are dense and start at 0.

    With MPI only one replica starts anything: mpirun, which starts the processes on all of them.
    """
    head = mpi_head(spec)
    found: list[Rank] = []
    number = node = 0
    for role in spec.all_roles:
        launched = _launched(role, spec)
        counts = role.name not in NOT_RANKS and head is None
        task = 0
        for index in range(role.replicas):
            name = f"{role.name}-{index}"
            size = processes_of(role, spec) if head is None else int(name == head)
            for local in range(size):
                found.append(
                    Rank(replica=name, role=role.name, number=number if counts else None,
                         local=local, local_size=size, node=node, task=task, launched=launched)
                )  # fmt: skip
                number += counts
                task += 1
            node += counts
    return found


def mpi_head(spec: JobSpec) -> str | None:
    """The replica that runs mpirun: the launcher, else the first one. None: this is no MPI job."""
    if spec.training.framework != "mpi":
        return None
    names = [role.name for role in spec.all_roles]
    return f"{'launcher' if 'launcher' in names else names[0]}-0"


def mpi_slots(spec: JobSpec) -> dict[str, int]:
    """Replica → processes that mpirun may start there; a launcher beside others has none."""
    roles = [role for role in spec.all_roles if role.name not in NOT_RANKS] or spec.all_roles
    return {
        f"{role.name}-{index}": _per_replica(role, spec)
        for role in roles
        for index in range(role.replicas)
    }


def hostfiles(gang: Gang) -> dict[str, str]:
    """Name → content of the files that mpirun reads; none for other frameworks.

    Open MPI wants one line a host and refuses a second one, so replicas of one host are summed up.
    """
    if mpi_head(gang.spec) is None:
        return {}
    hosts: dict[str, int] = {}
    for replica, slots in mpi_slots(gang.spec).items():
        address = gang.address(replica)
        hosts[address] = hosts.get(address, 0) + slots
    return {
        HOSTFILE: "".join(f"{host} slots={slots}\n" for host, slots in hosts.items()),
        HYDRA_HOSTFILE: "".join(f"{host}:{slots}\n" for host, slots in hosts.items()),
    }


def threads_of(role: Role, spec: JobSpec) -> int:
    """Processes that share the cores of one replica, those of a launcher counted."""
    if mpi_head(spec) is not None or _is_launcher(role, spec):
        return _per_replica(role, spec)
    return processes_of(role, spec)


def surprises(spec: JobSpec) -> list[str]:
    """What is allowed and probably not meant: one sentence each."""
    found = []
    for number, role in enumerate(spec.all_roles):
        path = f"spec.roles[{number}]" if spec.roles else "spec"
        gpus = spec.resources_of(role).gpu
        plain = spec.training.framework == "pytorch" and not _is_launcher(role, spec)
        if plain and role.name not in NOT_RANKS and gpus > processes_of(role, spec):
            idle = (gpus - processes_of(role, spec)) * role.replicas
            found.append(
                f"{path}.resources.gpu: {idle} of {gpus * role.replicas} GPUs will be unused, "
                "PyTorch takes one a process; set processesPerReplica or run torchrun"
            )
    if spec.network.hostNetwork:
        found.append(
            "spec.network.hostNetwork: the gang shares the network of its nodes: gangs on one node "
            "can meet on a port, and network policies do not hold for it"
        )
    names = [role.name for role in spec.all_roles]
    if spec.training.framework == "tensorflow" and "master" in names:
        found.append(
            "role master: TF_CONFIG says master, as Kubeflow does; the strategies of TensorFlow 2 "
            "know a chief only"
        )
    wanted, slots = _wanted_of_mpirun(spec), sum(mpi_slots(spec).values())
    if wanted is not None and wanted != slots:
        found.append(f"mpirun is told to start {wanted} processes, the gang has {slots} slots")
    return found


def _wanted_of_mpirun(spec: JobSpec) -> int | None:
    head = mpi_head(spec)
    role = next((role for role in spec.all_roles if f"{role.name}-0" == head), None)
    if role is None or not _is_launcher(role, spec):
        return None
    words = (*_command_of(role, spec), *(role.args or spec.training.args))
    said = [value for flag, value in pairwise(words) if flag in ("-np", "-n", "--np")]
    return int(said[0]) if said and said[0].isdigit() else None


def _per_replica(role: Role, spec: JobSpec) -> int:
    said = role.processesPerReplica
    return max(1, spec.resources_of(role).gpu) if said == "auto" else said


def _command_of(role: Role, spec: JobSpec) -> tuple[str, ...]:
    return role.command or spec.training.command


def _started_by(command: tuple[str, ...]) -> set[str]:
    """Names of the programs that a command starts: the first word, or what a shell is given."""
    shell = bool(command) and command[0].rpartition("/")[2] in SHELLS
    words = re.split(r"[\s;&|()]+", " ".join(command)) if shell else command[:1]
    return {word.rpartition("/")[2] for word in words}


def _is_torchrun(command: tuple[str, ...]) -> bool:
    module = any(name in word for word in command for name in _TORCHRUN_MODULES)
    return module or "torchrun" in _started_by(command)


def _is_launcher(role: Role, spec: JobSpec) -> bool:
    command = _command_of(role, spec)
    return bool(LAUNCHERS & _started_by(command)) or _is_torchrun(command)


def _launched(role: Role, spec: JobSpec) -> int | None:
    return _per_replica(role, spec) if _is_torchrun(_command_of(role, spec)) else None


def environment(gang: Gang, rank: Rank) -> dict[str, str]:
    """The environment by which a process finds its gang."""
    env: dict[str, str] = {}
    if rank.number is not None:
        env = {
            "RANK": str(rank.number),
            "WORLD_SIZE": str(gang.world_size),
            "LOCAL_RANK": str(rank.local),
            "LOCAL_WORLD_SIZE": str(rank.local_size),
            "NODE_RANK": str(rank.node),
            "MASTER_ADDR": gang.address(gang.master.replica),
            "MASTER_PORT": gang.master.port,
        }
    by_framework = _BY_FRAMEWORK.get(gang.spec.training.framework)
    return env | dict(by_framework(gang, rank) if by_framework else {})


def _jax(gang: Gang, rank: Rank) -> Mapping[str, str]:
    """Names that ``jax.distributed.initialize()`` reads by itself (jax clusters, env vars)."""
    if rank.number is None:
        return {}
    return {
        "JAX_COORDINATOR_ADDRESS": f"{gang.address(gang.master.replica)}:{gang.master.port}",
        "JAX_NUM_PROCESSES": str(gang.world_size),
        "JAX_PROCESS_ID": str(rank.number),
    }


def _pytorch(gang: Gang, rank: Rank) -> Mapping[str, str]:
    """Torchrun reads PET_* as its arguments; each of its replicas is one node."""
    if rank.launched is None or rank.number is None:
        return {}
    return {
        "PET_NNODES": str(gang.world_size),
        "PET_NODE_RANK": str(rank.node),
        "PET_NPROC_PER_NODE": str(rank.launched),
        "PET_MASTER_ADDR": gang.address(gang.master.replica),
        "PET_MASTER_PORT": gang.master.port,
    }


def _tensorflow(gang: Gang, rank: Rank) -> Mapping[str, str]:
    """TF_CONFIG as Kubeflow writes it; a job of one process has none, and trains by itself."""
    if len(gang.ranks) == 1 or rank.role not in (*TF_CLUSTER, "evaluator"):
        return {}
    cluster: dict[str, list[str]] = {}
    for member in gang.ranks:
        if member.role in TF_CLUSTER:
            address = f"{gang.address(member.replica)}:{member.port}"
            cluster.setdefault(member.role, []).append(address)
    task = {"type": rank.role, "index": rank.task}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})}


def _mpi(gang: Gang, rank: Rank) -> Mapping[str, str]:
    """The hostfile, under the names of Open MPI 4 and 5, Intel MPI and MPICH."""
    return {name: file_placeholder(file) for name, file in _HOSTFILES.items()}


_BY_FRAMEWORK: Mapping[str, Callable[[Gang, Rank], Mapping[str, str]]] = {
    "jax": _jax,
    "pytorch": _pytorch,
    "tensorflow": _tensorflow,
    "mpi": _mpi,
}
_HOSTFILES = {
    "FFDL_HOSTFILE": HOSTFILE,
    "OMPI_MCA_orte_default_hostfile": HOSTFILE,  # Open MPI 4
    "PRTE_MCA_prte_default_hostfile": HOSTFILE,  # Open MPI 5, which starts through PRRTE
    "I_MPI_HYDRA_HOST_FILE": HYDRA_HOSTFILE,
    "HYDRA_HOST_FILE": HYDRA_HOSTFILE,  # MPICH
}
_YIELDING = {"TF_CONFIG", "FFDL_CHECKPOINT_TIMEOUT", *_HOSTFILES}
"""Variables of ours that a user may set himself: programs are known that build their own."""
_OURS = "FFDL_"


def reserved(spec: JobSpec) -> list[tuple[str, str]]:
    """(path, name) of variables in ``env`` that only the launcher may set."""
    gang = gang_of(spec)
    found = [("training", name) for name in _taken(spec.training.env, gang, None)]
    for number, role in enumerate(spec.roles):
        found += [(f"roles[{number}]", name) for name in _taken(role.env, gang, role.name)]
    return found


def _taken(names: Iterable[str], gang: Gang, role: str | None) -> list[str]:
    own = [rank for rank in gang.ranks if role in (None, rank.role)]
    taken = {name for rank in own for name in environment(gang, rank)}
    found = [name for name in names if name in taken or name.startswith(_OURS)]
    return [name for name in found if name not in _YIELDING]
