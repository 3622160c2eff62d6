"""One bed at a time, and nothing of a bed outlives it: not even of one whose pytest was killed.

Whatever a bed makes outside its folders is written down before it is made, in a state file at a
known place. Who starts the next bed removes what is in that file. Processes are known by pid and
start time, or by a working directory inside the bed's own folder; never by their name.

Most of the work is the kernel's: a real node is one pid, mount and network namespace, and with the
first process of the node all its daemons, containers, mounts and links are gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tests.cluster.places import LOGS, RUN, BedError

STATE = RUN / "state.json"
LOCK_WAIT_S = 900.0
"""How long a run of the tests waits for another one to end (chosen: longer than such a run)."""
GONE_WAIT_S = 30.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Journal:
    """The state file of the bed that runs: what there is to remove when it ends."""

    def __init__(self, folder: Path, run: Path) -> None:
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {
            "boot": BOOT_ID.read_text(), "folder": str(folder), "run": str(run),
            "processes": [], "links": [], "cgroups": [],
        }  # fmt: skip
        self._save()

    def process(self, pid: int) -> None:
        """A process that the bed has started."""
        self._add("processes", [pid, start_time(pid)])

    def link(self, name: str) -> None:
        """A network link that the bed will make."""
        self._add("links", name)

    def cgroup(self, name: str) -> None:
        """A cgroup at the root of each hierarchy."""
        self._add("cgroups", name)

    def _add(self, kind: str, item: Any) -> None:
        with self._lock:
            self._state[kind].append(item)
            self._save()

    def _save(self) -> None:
        fresh = STATE.with_suffix(".new")
        fresh.write_text(json.dumps(self._state))
        fresh.replace(STATE)


@contextlib.contextmanager
def only_bed() -> Iterator[None]:
    """Hold the machine's lock; whoever is killed loses it."""
    RUN.mkdir(parents=True, exist_ok=True)
    with (RUN / "lock").open("a+") as file:
        deadline = time.monotonic() + LOCK_WAIT_S
        while not _taken(file):
            file.seek(0)
            holder = file.read()
            if holder == str(os.getpid()):
                raise BedError("this process has a test cluster already: stop that one first")
            if time.monotonic() > deadline:
                raise BedError(f"process {holder} has had a test cluster for {LOCK_WAIT_S:g} s")
            time.sleep(0.5)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_leftovers(*, keep_logs: bool = False) -> None:
    """Remove what the state file names, if there is one. Only for who holds the lock."""
    try:
        state = json.loads(STATE.read_text())
    except FileNotFoundError:
        return
    if state["boot"] == BOOT_ID.read_text():
        folders = [Path(state["folder"]), Path(state["run"])]
        _end_processes(state["processes"], folders)
        for link in state["links"]:
            _quietly("ip", "link", "del", link)
        _unmount_below(folders)
        for name in state["cgroups"]:
            _remove_cgroup(name)
    shutil.rmtree(state["run"], ignore_errors=True)
    _remove_data(Path(state["folder"]), keep_logs=keep_logs)
    STATE.unlink()


def start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process; None for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _remove_data(folder: Path, *, keep_logs: bool) -> None:
    """Remove a bed's own folder, or all of it but the logs."""
    if not keep_logs:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.iterdir():
        if path.name != LOGS:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _end_processes(known: list[list[int]], folders: list[Path]) -> None:
    deadline = time.monotonic() + GONE_WAIT_S
    while left := [*_still_running(known), *_working_in(folders)]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise BedError(f"processes of an earlier test cluster do not end: {left}")
        time.sleep(0.05)


def _still_running(known: list[list[int]]) -> list[int]:
    return [pid for pid, started in known if started and start_time(pid) == started]


def _working_in(folders: list[Path]) -> list[int]:
    """Processes that were started after the state file was written last, or by those in it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            place = (entry / "cwd").readlink()
            if any(place.is_relative_to(folder / "work") for folder in folders):
                found.append(int(entry.name))
    return found


def _unmount_below(folders: list[Path]) -> None:
    """Expected to find nothing: the mounts of a node are in the node's own namespace."""
    for place in reversed(mounts_below(folders)):
        _quietly("umount", "--lazy", place)
    if left := mounts_below(folders):
        raise BedError(f"mounts of an earlier test cluster stay: {left}")


def mounts_below(folders: list[Path]) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return [place for place in places if any(Path(place).is_relative_to(x) for x in folders)]


def hierarchies() -> list[Path]:
    """Where cgroups are mounted: several places with version 1, one with version 2."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    halves = [line.split(" - ") for line in lines]
    return [Path(a.split()[4]) for a, b in halves if b.split()[0] in ("cgroup", "cgroup2")]


def _remove_cgroup(name: str) -> None:
    deadline = time.monotonic() + GONE_WAIT_S
    for top in [path / name for path in hierarchies()]:
        while top.exists():
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
            if top.exists():
                if time.monotonic() > deadline:
                    raise BedError(f"a cgroup of an earlier test cluster stays: {top}")
                time.sleep(0.05)


def _quietly(*words: str) -> None:
    subprocess.run(words, check=False, capture_output=True)
