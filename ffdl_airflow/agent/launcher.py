"""Starting the user's command, and hearing of its end.

Each training process gets a session of its own, no standard input, and one log file for what it
prints. The agent is made the adopter of whatever its descendants leave behind (child subreaper),
so that no process of the job can slip away to init.
"""

import ctypes
import os
import signal
import subprocess
import sys
from typing import Any, Callable, Dict, List, Match, NamedTuple, Optional

from . import protocol, tuning
from .log import log
from .plan import Plan, Process, ReplicaPlan
from .tuning import Setting

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

BASE_NAMES = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "TEMP", "TMP",
    "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "SSL_CERT_FILE",
    "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "XDG_CACHE_HOME",
)  # fmt: skip
BASE_PREFIXES = ("LC_", "NVIDIA_")
"""What a trainer inherits from the agent's own environment. Everything else, Airflow's settings and
connections above all, stays away from it."""


CLUSTER_PREFIXES = ("KUBERNETES_SERVICE_", "KUBERNETES_PORT")
"""Where the API server is, which the kubelet tells every container. A gang's pods have no token for
it, and libraries that see the address take one for granted: JAX ends with an error (seen)."""


class GoOrder(NamedTuple):
    """What *go* says about one attempt, the same for all replicas.

    ``ports``: process name -> the port that its agent has found free.
    """

    attempt: int
    ports: Dict[str, int]
    env: Dict[str, str]
    resume_from: Optional[str]
    resume_step: Optional[int]


class Exit(NamedTuple):
    """How a child ended: ``code`` or ``signal`` is None. ``cpu_s`` includes its own children."""

    pid: int
    code: Optional[int]
    signal: Optional[int]
    ended_at: str
    cpu_s: float
    max_rss_bytes: int


def become_subreaper() -> None:
    """Adopt orphans of our descendants. Where the kernel refuses, the environment must do."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError) as error:
        failed = error
    if failed:
        log("child subreaper is not available (%s), orphans are found by environment" % failed)


def base_environment(replica: ReplicaPlan, own: Dict[str, str]) -> Dict[str, str]:
    """The part of the agent's own environment that a trainer may see."""
    if replica.inherits:
        return {n: value for n, value in own.items() if not n.startswith(CLUSTER_PREFIXES)}
    return {
        name: value
        for name, value in own.items()
        if name in BASE_NAMES or name.startswith(BASE_PREFIXES)
    }


def environment(
    plan: Plan, replica: ReplicaPlan, process: Process, *, order: GoOrder
) -> Dict[str, str]:
    """The whole environment of one process for one attempt, but for what is tuned."""
    env = base_environment(replica, dict(os.environ))
    env.update(replica.env)
    env.update(process.env)
    env.update(order.env)
    env = {name: filled(value, replica, order.ports) for name, value in env.items()}
    if process.rank is not None:
        env.setdefault("RANK", str(process.rank))
    env.setdefault("FFDL_JOB_ID", plan.job)
    env["FFDL_CHECKPOINT_DIR"] = plan.checkpoint_dir
    env[protocol.ENV_PLACEMENT] = plan.placement_id
    env[protocol.ENV_REPLICA] = replica.name
    env[protocol.ENV_ATTEMPT] = str(order.attempt)
    env["FFDL_AGENT_SOCK"] = replica.rank_socket
    env["FFDL_HEARTBEAT"] = str(plan.limits.heartbeat_s)
    env.pop("FFDL_RESUME_FROM", None)
    if order.resume_from is not None:
        env["FFDL_RESUME_FROM"] = order.resume_from
    bundle = _bundle()
    if bundle and bundle not in env.get("PYTHONPATH", "").split(os.pathsep):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), bundle]))
    return env


def filled(text: str, replica: ReplicaPlan, ports: Dict[str, int]) -> str:
    """``text`` with the ports and the paths of files that it asks for."""

    def fill(found: Match[str]) -> str:
        kind, name = found.groups()
        if kind == "PORT":
            return str(ports[name]) if name in ports else found.group()
        return os.path.join(replica.dir, name)

    return protocol.PLACEHOLDER.sub(fill, text)


def write_files(replica: ReplicaPlan) -> None:
    """Write what the plan gives to the replica, hostfiles for example."""
    for name, content in replica.files.items():
        with open(os.path.join(replica.dir, name), "w", encoding="utf-8") as file:
            file.write(content)


def log_path(replica: ReplicaPlan, process: Process, attempt: int) -> str:
    """Where a process's standard output and error go."""
    name = "rank-%d" % process.rank if process.rank is not None else "process-%d" % (
        process.local_rank
    )  # fmt: skip
    return os.path.join(replica.logs, "%s.attempt-%d.log" % (name, attempt))


def start(
    plan: Plan,
    replica: ReplicaPlan,
    process: Process,
    *,
    order: GoOrder,
    tuned: List[Setting],
) -> int:
    """Start one process and return its id. Raises where that is impossible, not only ``OSError``.

    What was tuned stands at the beginning of its log; what is set already stays as it is.
    """
    env = environment(plan, replica, process, order=order)
    with open(log_path(replica, process, order.attempt), "ab") as output:
        lines = [tuning.apply(setting, env) for setting in tuned]
        output.write("".join("%s%s\n" % (protocol.SAID, line) for line in lines).encode())
        output.flush()
        child = subprocess.Popen(
            [filled(word, replica, order.ports) for word in replica.command],
            cwd=replica.cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    child.returncode = 0  # reaped by reap() below; Popen must not wait for it as well
    return child.pid


def reap(ended: Callable[[Exit], Any]) -> None:
    """Collect every child that has ended, adopted ones too."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        killed = os.WIFSIGNALED(status)
        ended(
            Exit(
                pid=pid,
                code=None if killed else os.WEXITSTATUS(status),
                signal=os.WTERMSIG(status) if killed else None,
                ended_at=protocol.now_iso(),
                cpu_s=usage.ru_utime + usage.ru_stime,
                max_rss_bytes=usage.ru_maxrss * 1024,
            )
        )


def childless() -> bool:
    """Whether this process has no child at all, zombies counted.

    The kernel's own word: orphans are given to us, so without a child there is no descendant,
    however fast they fork.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; the number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def tail(path: str, size: int) -> str:
    """The last ``size`` bytes of a log as text; empty where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
            return file.read(size).decode("utf-8", "replace")
    except OSError:
        return ""


def _bundle() -> Optional[str]:
    """The zipapp that this agent runs from; the trainer imports ``ffdl`` from it."""
    candidates: List[str] = [sys.argv[0], sys.path[0] if sys.path else ""]
    for path in candidates:
        if path.endswith(".pyz") and os.path.isfile(path):
            return os.path.abspath(path)
    return None
