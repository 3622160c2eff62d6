"""Runtime settings that follow from the node and from what the job asked for, each with its reason.

``decide`` is pure; ``look`` gathers the facts that only the node knows, which is why this lives in
the agent. A variable that is set already, by the job's ``env`` above all, is never changed.

Not set, on purpose: TORCH_NCCL_ASYNC_ERROR_HANDLING, whose default (3, end the process) is what a
gang needs since PyTorch 2.2; NCCL's algorithms and rings, which NCCL chooses better than we could.
"""

import os
import socket
import struct
from typing import Any, Dict, List, NamedTuple, Optional

RDMA_ROOT = "/sys/class/infiniband"
ROUTES = "/proc/net/route"
CUDA_CACHE_BYTES = 4 << 30
"""The largest that CUDA allows; its default is 1 GiB (CUDA programming guide, environment)."""


class Facts(NamedTuple):
    """What the node says: RDMA devices with an active port, interface that leads to the master."""

    rdma: List[str]
    interface: Optional[str]


class Setting(NamedTuple):
    """One variable, its value, and the sentence that explains it."""

    name: str
    value: str
    why: str


def decide(wish: Dict[str, Any], facts: Facts) -> List[Setting]:
    """The settings of a replica. ``wish``: the plan's ``tuning``; an empty one asks for nothing."""
    if not wish:
        return []
    found = _threads(wish)
    if wish["framework"] == "mpi":
        found += _binding()
    if wish.get("master"):
        found += _interface(wish, facts)
    if wish.get("gpu"):
        found += _gpu(wish, facts)
    return found


def apply(setting: Setting, env: Dict[str, str]) -> str:
    """Set it in ``env``, unless it is set there already. Returns the line for the log."""
    known = env.get(setting.name)
    if known is not None:
        return "%s=%s as the job sets it, not %s (%s)" % (
            setting.name, known, setting.value, setting.why,
        )  # fmt: skip
    env[setting.name] = setting.value
    return "%s=%s: %s" % setting


def look(wish: Dict[str, Any]) -> Facts:
    """The facts of this node. May block for the time of a name's resolution."""
    return Facts(rdma=_rdma(RDMA_ROOT), interface=_route(wish.get("master")))


def missing_interface(wish: Dict[str, Any]) -> Optional[str]:
    """A sentence where the interface that the job names is not on this node.

    NCCL's own patterns (``^docker``, ``=eth0``, lists) are left to NCCL.
    """
    wanted = wish.get("interface")
    if not wanted or not wanted.replace("-", "").replace("_", "").replace(".", "").isalnum():
        return None
    names = [name for _, name in socket.if_nameindex()]
    if any(name.startswith(wanted) for name in names):
        return None
    return "network interface %s is not here, there are %s" % (wanted, ", ".join(names))


def _threads(wish: Dict[str, Any]) -> List[Setting]:
    """Every rank starts as many threads as the node has cores, unless it is told."""
    share = max(1, int(wish.get("threads_share") or 1))
    cpu = float(wish.get("cpu") or 1.0)
    threads = str(max(1, int(cpu / share)))
    cores = "%g core%s" % (cpu, "" if cpu == 1 else "s")
    among = "" if share == 1 else " for %d processes" % share
    why = "the replica asks for %s%s; the default, all cores of the node, makes ranks fight" % (
        cores, among,
    )  # fmt: skip
    names = ["OMP_NUM_THREADS"]
    if wish["framework"] == "tensorflow":
        # Its own pool does not read OMP_NUM_THREADS. The pool between operations is left alone: its
        # threads wait, for collectives too, and one alone could wait for ever.
        names.append("TF_NUM_INTRAOP_THREADS")
    return [Setting(name, threads, why) for name in names]


def _binding() -> List[Setting]:
    why = "each mpirun on a node binds to its first cores, where the next one would meet it"
    return [
        Setting("OMPI_MCA_hwloc_base_binding_policy", "none", why),  # Open MPI 4
        Setting("PRTE_MCA_hwloc_default_binding_policy", "none", why),  # Open MPI 5
    ]


def _interface(wish: Dict[str, Any], facts: Facts) -> List[Setting]:
    """With MPI the ranks meet elsewhere than at the launcher, so its route says nothing."""
    wanted = wish.get("interface")
    value = wanted or (None if wish["framework"] == "mpi" else facts.interface)
    if value is None:
        return []
    names = ["NCCL_SOCKET_IFNAME"] if wish.get("gpu") else []
    if wish["framework"] == "pytorch":  # Gloo would take what the host's name resolves to
        names.append("GLOO_SOCKET_IFNAME")
    why = "spec.network.interface" if wanted else "the route to the master %s" % wish["master"]
    return [Setting(name, value, why) for name in names]


def _gpu(wish: Dict[str, Any], facts: Facts) -> List[Setting]:
    if facts.rdma:
        rdma = Setting("NCCL_IB_DISABLE", "0", "RDMA is up on %s" % ", ".join(facts.rdma))
    else:
        why = "no RDMA device with an active port in %s, NCCL need not look for one" % RDMA_ROOT
        rdma = Setting("NCCL_IB_DISABLE", "1", why)
    timeout_s = str(int(wish.get("first_step_s") or 1800))
    return [
        rdma,
        Setting("CUDA_CACHE_MAXSIZE", str(CUDA_CACHE_BYTES),
                "compiled kernels of a framework outgrow the default of 1 GiB, and are made anew"),
        Setting("NCCL_TIMEOUT", timeout_s, "seconds, watchdog.firstStep: for programs that pass it "
                "to init_process_group (NCCL itself does not read it); the agent finds a gang that "
                "hangs before that"),
    ]  # fmt: skip


def _rdma(root: str) -> List[str]:
    """Devices of which a port is active (``4: ACTIVE`` in its state file)."""
    found = []
    for device in _names(root):
        ports = os.path.join(root, device, "ports")
        states = [_text(os.path.join(ports, port, "state")) for port in _names(ports)]
        if any("ACTIVE" in state for state in states):
            found.append(device)
    return found


def _route(master: Optional[str]) -> Optional[str]:
    """The interface by which ``master`` is reached: the longest matching route of the kernel."""
    if not master:
        return None
    try:
        address = struct.unpack("=I", socket.inet_aton(socket.gethostbyname(master)))[0]
    except (OSError, ValueError):
        return None
    own = socket.inet_ntoa(struct.pack("=I", address))
    if own.startswith("127."):
        return "lo"
    return route_to(address, _text(ROUTES))


def route_to(address: int, table: str) -> Optional[str]:
    """The interface in a table like /proc/net/route; ``address`` as the kernel prints it there."""
    longest, found = -1, None
    for line in table.splitlines()[1:]:
        fields = line.split()
        destination, mask = int(fields[1], 16), int(fields[7], 16)
        length = socket.ntohl(mask)  # more leading ones are a greater number
        if address & mask == destination and length > longest:
            longest, found = length, fields[0]
    return found


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
