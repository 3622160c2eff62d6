"""What ``/proc`` says about processes: who descends from whom, who belongs to a placement.

For: finding every process of a job, also those that made sessions of their own or whose parents
are gone, and reading what they use. Each call is a snapshot; callers who must be sure repeat it.
"""

import os
from typing import Dict, Iterable, List, NamedTuple, Optional, Set

from . import protocol

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
FORWARDING = ("mpirun", "mpiexec", "mpiexec.hydra", "prterun", "prted", "orterun", "orted",
              "hydra_pmi_proxy")  # fmt: skip
"""Programs of Open MPI, MPICH and Intel MPI that pass SIGUSR1 to every process that they started
(mpirun's manual, "Signal propagation"; seen: a rank without a handler dies of it)."""


class Stat(NamedTuple):
    """Some fields of ``/proc/PID/stat``. CPU in seconds, ``started`` in clock ticks since boot."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    cpu_s: float
    started: int
    rss_bytes: int


def stat(pid: int) -> Optional[Stat]:
    """The process's figures; None where it is gone."""
    raw = _read("/proc/%d/stat" % pid)
    if not raw:
        return None
    rest = raw[raw.rfind(b")") + 2 :].split()
    return Stat(
        pid=pid,
        state=rest[0].decode(),
        parent=int(rest[1]),
        group=int(rest[2]),
        session=int(rest[3]),
        cpu_s=(int(rest[11]) + int(rest[12])) / TICKS_PER_S,
        started=int(rest[19]),
        rss_bytes=int(rest[21]) * PAGE_BYTES,
    )


def pids() -> List[int]:
    """All process ids of this host (of this PID namespace)."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def family(ancestor: int) -> List[Stat]:
    """Everything below ``ancestor`` now, zombies included.

    A snapshot that may miss a process born or adopted just then: see `launcher.childless`.
    """
    if not os.path.exists("/proc/self/task/%d/children" % os.getpid()):
        return _family_by_parents(ancestor)
    below: Dict[int, Stat] = {}
    queue = [ancestor]
    while queue:
        for child in _children(queue.pop()):
            found = None if child in below else stat(child)
            if found is not None:
                queue.append(child)
                below[child] = found
    return list(below.values())


def running(members: Iterable[Stat]) -> List[Stat]:
    """Those that are no zombies."""
    return [member for member in members if member.state not in "ZX"]


def carrying(placement_id: str, replica: Optional[str]) -> List[Stat]:
    """Running processes whose environment names the placement and the replica.

    With ``replica`` None: those that name the placement and no replica, which are its agents.
    Only the environment at exec counts, so a process cannot leave the set by changing it.
    """
    placement = ("%s=%s" % (protocol.ENV_PLACEMENT, placement_id)).encode()
    prefix = (protocol.ENV_REPLICA + "=").encode()
    found = []
    for pid in pids():
        raw = _read("/proc/%d/environ" % pid)
        if placement not in raw:
            continue
        entries = raw.split(b"\0")
        named = [entry[len(prefix) :].decode() for entry in entries if entry.startswith(prefix)]
        of = named[0] if named else None
        if placement in entries and of == replica:
            found.append(stat(pid))
    return running(member for member in found if member is not None)


def _children(pid: int) -> Set[int]:
    """Children of all threads of a process."""
    folder = "/proc/%d/task" % pid
    try:
        threads = os.listdir(folder)
    except OSError:
        return set()
    found: Set[int] = set()
    for thread in threads:
        found.update(map(int, _read("%s/%s/children" % (folder, thread)).split()))
    return found


def _family_by_parents(ancestor: int) -> List[Stat]:
    """The same on a kernel that does not list children: a walk through all of ``/proc``."""
    children: Dict[int, List[Stat]] = {}
    for found in filter(None, map(stat, pids())):
        children.setdefault(found.parent, []).append(found)
    below: List[Stat] = []
    queue = [ancestor]
    while queue:
        born = children.get(queue.pop(), [])
        below += born
        queue += [child.pid for child in born]
    return below


def catches(pid: int, signal_number: int) -> bool:
    """Whether the process has a handler for the signal; without one SIGUSR1 would kill it.

    Not those that hand it on to their children: one of these might have none.
    """
    if _read("/proc/%d/comm" % pid).strip().decode("ascii", "replace") in FORWARDING:
        return False
    for line in _read("/proc/%d/status" % pid).splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal_number - 1) & 1)
    return False


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            chunks: List[bytes] = []
            while True:
                chunk = file.read(1 << 16)
                if not chunk:
                    return b"".join(chunks)
                chunks.append(chunk)
    except OSError:  # gone, or not ours to read
        return b""
