"""Finding and ending the processes of a placement, whatever they did to hide.

A process belongs to a placement when its environment carries the placement's mark (its id and the
installation) or when it descends from one that does. Sessions of their own, double forks and
ignored SIGTERM do not matter.
"""

import time
from collections.abc import Iterator

import psutil

from ffdl_airflow.agent.protocol import ENV_PLACEMENT

_ROUND_S = 0.02
_LIMIT_S = 10.0
"""Longest time that the kernel is given to bury what was killed. Chosen."""


def find(mark: str) -> list[psutil.Process]:
    """Living processes of the placement."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        if _mark_of(process) == mark:
            found[process.pid] = process
            found |= {child.pid: child for child in _children(process)}
    return [process for process in found.values() if _lives(process)]


def placements() -> set[str]:
    """Marks of all placements of which a process lives, of any installation on this host."""
    found = {_mark_of(process) for process in psutil.process_iter() if _lives(process)}
    return {name for name in found if name is not None}


def kill_all(mark: str) -> int:
    """Kill until none is left; returns how many there were. Raises TimeoutError after 10 s."""
    seen: set[int] = set()
    deadline = time.monotonic() + _LIMIT_S
    while processes := find(mark):
        for process in processes:
            seen.add(process.pid)
            _kill(process)
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in processes)
            raise TimeoutError(f"processes {pids} of {mark} do not die")
        time.sleep(_ROUND_S)
    return len(seen)


def alive(pid: int, started: float) -> bool:
    """Whether the process that had ``pid`` at its start is still the same one and alive."""
    try:
        process = psutil.Process(pid)
        return process.create_time() == started and _lives(process)
    except psutil.Error:
        return False


def _mark_of(process: psutil.Process) -> str | None:
    try:
        found: str | None = process.environ().get(ENV_PLACEMENT)
    except (psutil.Error, OSError):
        return None
    return found


def _children(process: psutil.Process) -> Iterator[psutil.Process]:
    try:
        yield from process.children(recursive=True)
    except psutil.Error:
        return


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return
