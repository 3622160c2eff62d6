"""Checks before an attempt starts; each says in one sentence what is wrong and where.

Blocking (it touches disks), so it is run beside the loop.
"""

import errno
import os
from typing import Callable, Dict, List, NamedTuple, Optional

from . import launcher, processes, protocol, tuning, workdir
from .plan import Plan, ReplicaPlan


class Fault(NamedTuple):
    """A failed check: its name and what was found."""

    check: str
    text: str


def check_replica(
    plan: Plan, replica: ReplicaPlan, *, resume_from: Optional[str], env: Dict[str, str]
) -> Optional[Fault]:
    """The first fault of this replica, None where it may start."""
    output = env.get("FFDL_OUTPUT_DIR", replica.env.get("FFDL_OUTPUT_DIR"))
    steps: List[Callable[[], Optional[Fault]]] = [
        lambda: _readable("required path", plan.required_paths),
        lambda: _readable("checkpoint", [resume_from] if resume_from else []),
        lambda: _space(plan, [plan.checkpoint_dir] + ([output] if output else [])),
        lambda: _work(replica),
        lambda: _command(replica) if replica.processes else None,
        lambda: _interface(replica),
        lambda: _leftovers(plan, replica),
    ]
    for step in steps:
        fault = step()
        if fault is not None:
            return fault
    return None


def check_resume(resume_from: Optional[str]) -> Optional[Fault]:
    """Read the whole checkpoint that the attempt resumes from. Only the coordinator does this."""
    if resume_from is None:
        return None
    _, reason = protocol.check_checkpoint(resume_from)
    if reason is None:
        return None
    return Fault("checkpoint", "checkpoint %s is not valid: %s" % (resume_from, reason))


def _readable(what: str, paths: List[str]) -> Optional[Fault]:
    for path in paths:
        if not os.path.exists(path):
            return Fault(what.replace(" ", "-"), "%s %s does not exist" % (what, path))
        needed = os.R_OK | os.X_OK if os.path.isdir(path) else os.R_OK
        if not os.access(path, needed):
            return Fault(what.replace(" ", "-"), "%s %s cannot be read" % (what, path))
    return None


def _space(plan: Plan, folders: List[str]) -> Optional[Fault]:
    for folder in folders:
        try:
            os.makedirs(folder, exist_ok=True)
            found = os.statvfs(folder)
        except OSError as error:
            return Fault("disk", "%s cannot be used: %s" % (folder, error.strerror))
        free = found.f_bavail * found.f_frsize
        if free < plan.min_free_bytes:
            text = "%s has %d bytes free, %d are needed" % (folder, free, plan.min_free_bytes)
            return Fault("disk", text)
        if not os.access(folder, os.W_OK | os.X_OK):
            return Fault("disk", "%s cannot be written" % folder)
    return None


def _work(replica: ReplicaPlan) -> Optional[Fault]:
    """Folders that the replica's processes write into, and its copy of the code."""
    try:
        os.makedirs(replica.logs, exist_ok=True)
        if replica.code is not None and replica.cwd is not None:
            workdir.make(replica.code, replica.cwd)
    except OSError as error:
        check = "disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "cwd"
        return Fault(check, "the working directory cannot be made: %s" % error)
    return None


def _command(replica: ReplicaPlan) -> Optional[Fault]:
    if replica.cwd is not None and not os.path.isdir(replica.cwd):
        return Fault("cwd", "working directory %s does not exist" % replica.cwd)
    if not replica.command:
        return Fault("command", "the command is empty")
    word = replica.command[0]
    if os.sep in word:
        candidates = [os.path.join(replica.cwd or os.getcwd(), word)]
    else:
        env = launcher.base_environment(replica, dict(os.environ))
        env.update(replica.env)
        candidates = [os.path.join(folder, word) for folder in os.get_exec_path(env)]
    if any(os.path.isfile(path) and os.access(path, os.X_OK) for path in candidates):
        return None
    where = candidates[0] if os.sep in word else "PATH"
    return Fault("command", "%s: no program of that name can be run (%s)" % (word, where))


def _interface(replica: ReplicaPlan) -> Optional[Fault]:
    text = tuning.missing_interface(replica.tuning)
    return Fault("interface", text) if text else None


def _leftovers(plan: Plan, replica: ReplicaPlan) -> Optional[Fault]:
    found = processes.carrying(plan.placement_id, replica.name)
    if not found:
        return None
    listed = ", ".join(str(member.pid) for member in found[:5])
    return Fault("leftover", "processes of an earlier attempt are still there: %s" % listed)
