"""Agents as processes of this host, for engines whose gangs run on the host of their driver.

For: starting an agent once, and telling whether it lives. Not for: ending it, with whatever it has
begun; that is ``processes.py``.
"""

import fcntl
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from ffdl_airflow.agent import protocol
from ffdl_airflow.engines import processes

_AGENT_FILE = "agent.json"
"""In a replica's folder: which process its newest agent is."""
_PARENT_ENV = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
               "VIRTUAL_ENV", "SSL_CERT_FILE")  # fmt: skip
"""What agents get of the driver's environment. Airflow's settings are not among it: they hold the
database's address."""


def start(home: Path, command: Sequence[str], *, mark: str) -> None:
    """Start the agent of the replica whose folder is ``home``, where none lives.

    Detached, so that it outlives its driver. Of two that are started at once one stays: the agent
    itself sees to that. ``mark``: the plan's ``placement_id``, by which its processes are found.
    """
    if lives(home):
        return
    env = {name: os.environ[name] for name in _PARENT_ENV if name in os.environ}
    env[protocol.ENV_PLACEMENT] = mark
    with (home / protocol.AGENT_LOG).open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd="/",
            start_new_session=True, close_fds=True,
        )  # fmt: skip
    _CHILDREN.append(process)
    started = psutil.Process(process.pid).create_time()
    document = {"v": 1, "pid": process.pid, "started": started, "boot": psutil.boot_time()}
    protocol.write_json(str(home / _AGENT_FILE), document)


def was_started(home: Path) -> bool:
    """Whether a driver has come so far as to start this agent."""
    return (home / _AGENT_FILE).exists()


def lives(home: Path) -> bool:
    """By its lock, or, in the moment before it has taken it, by its process."""
    _reap_children()
    known = protocol.read_json(str(home / _AGENT_FILE))
    if known is not None and processes.alive(known["pid"], known["started"]):
        return True
    return _locked(home / protocol.AGENT_LOCK)


_CHILDREN: list[subprocess.Popen[bytes]] = []
"""Agents that this very process has started; asked now and then, so that none stays a zombie."""


def _reap_children() -> None:
    _CHILDREN[:] = [child for child in _CHILDREN if child.poll() is None]


def _locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
