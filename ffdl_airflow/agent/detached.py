"""Long work in a process of its own: how it is asked for, started once, watched and ended.

For: movers (data, code) and publishers (models). The work has a folder; who wants its result puts a
*claim* there and asks again from time to time; the process answers each claim with a file. Several
askers, in several processes, share one process of work. Standard library only and Python 3.8,
because this folder travels into the user's image. Not for: what the work is.

The folder::

    request.json    what is to be done, the same for all who ask
    lock            held (flock) by the process while it lives; that is the only test for "alive"
    claims/<job>    who wants the result; a process for which nobody waits ends within 10 s
    answers/<job>   the result for that job, a document with at least "state": ready | failed
    progress.json   numbers of the running process, written at most twice a second
    starts.json     how often it was started without getting further
    log             its standard output and error

The process runs on the asker's host, unless a :class:`Runner` brings it elsewhere, near the data.

Rejected: a lock that the new process takes by itself. Two askers would start two processes, and
an asker could not tell "not yet up" from "died". So the asker takes the lock and hands the open
descriptor over; the lock is held without a gap.
"""

import contextlib
import fcntl
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Dict, Iterator, List, Mapping, Optional, Protocol, Sequence, Tuple, Type

from . import protocol

ANSWERED = "answered"
RUNNING = "running"
DIED = "died"

TICK_S = 0.5
"""Progress is written, and claims are counted, at most this often. Chosen."""

STOP_GRACE_S = 6.0
"""From the wish to stop to the hard end of the process; the promise to the outside is 10 s."""

MAX_FRUITLESS_STARTS = 3
"""So many processes in a row may die without getting further; then asking again is useless."""

LOG_LIMIT_BYTES = 1 << 20
"""A log that has grown beyond this is begun anew at the next start."""

EXIT_STOPPED = 75
"""Exit code of a process that ended because nobody wants its work any more."""

_NO_PROGRESS = ("log", "progress.json", "request.json", "starts.json")
_LOCK_FD = "FFDL_DETACHED_LOCK_FD"
_NOT_PASSED_ON = re.compile(r"^(AIRFLOW__|FFDL_)|CONN|PASSWORD|SECRET|TOKEN", re.IGNORECASE)
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def clean_environment(environment: Mapping[str, str]) -> Dict[str, str]:
    """``environment`` without Airflow's settings, ours, and all that looks like a credential.

    Ours are dropped because clean-up finds a job's processes by them: the work belongs to its
    result, not to the process that asked for it.
    """
    return {k: v for k, v in environment.items() if not _NOT_PASSED_ON.search(k)}


def try_lock(path: str) -> Optional[int]:
    """An open descriptor that holds the lock at ``path``, or None while another holds it.

    The lock file may have been removed with its folder between the open and the lock: a lock on a
    file that has no name any more excludes nobody, so then it is tried again.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_file_at(descriptor, path):
            return descriptor
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock at ``path``; waits for whoever holds it. For short moments only."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_file_at(descriptor, path):
                yield
                return
        finally:
            os.close(descriptor)


def _is_file_at(descriptor: int, path: str) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


class Turn(Protocol):
    """The right to start the process of a work; nobody else has it until it is closed."""

    def start(self, module: str) -> None:
        """Start ``python -m module request.json`` for the work."""

    def close(self) -> None:
        """Give the right back. A process that was started goes on."""


class Runner(Protocol):
    """Where the process of a work runs: on this host, or near its data."""

    def take(self, work: "Work") -> Optional[Turn]:
        """The right to start the process; None while one lives, or while another asker has it."""

    def said(self, work: "Work") -> str:
        """Why the process is not up yet, or how the last one ended: a sentence, or nothing."""

    def abandon(self, work: "Work") -> None:
        """Nobody wants the result any more. A process that lives would see that by itself."""


class Beside(Protocol):
    """Choice of a runner by what the work reads and writes."""

    def __call__(self, folders: Sequence[str]) -> Optional[Runner]:
        """One whose processes see all these folders; None for this host."""


class Work:
    """The folder of one piece of work, as those see it who ask for the result.

    Every method is short and may be called by several processes at once.
    """

    def __init__(self, directory: str, runner: Optional[Runner] = None) -> None:
        self.directory = directory
        self._runner = OwnHost() if runner is None else runner  # type: Runner

    def path(self, *names: str) -> str:
        """Path of something in the folder."""
        return os.path.join(self.directory, *names)

    def claim(self, job: str) -> None:
        """Say that ``job`` wants the result. Asking twice changes nothing."""
        for folder in ("claims", "answers"):
            os.makedirs(self.path(folder), exist_ok=True)
        os.close(os.open(self.path("claims", checked(job)), os.O_WRONLY | os.O_CREAT, 0o644))

    def drop(self, job: str) -> None:
        """Take the claim back and forget the answer. The next ``ask`` begins anew."""
        unfinished = job in self.waiting()
        for folder in ("claims", "answers"):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(self.path(folder, checked(job)))
        if unfinished and not self.claims():
            self._runner.abandon(self)

    def claims(self) -> List[str]:
        """The jobs that want the result, sorted."""
        try:
            return sorted(os.listdir(self.path("claims")))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def waiting(self) -> List[str]:
        """The jobs that want the result and have no answer yet, sorted."""
        return [job for job in self.claims() if not os.path.exists(self.path("answers", job))]

    def answer(self, job: str) -> Optional[Dict[str, Any]]:
        """The result for ``job``, or None while there is none."""
        return protocol.read_json(self.path("answers", checked(job)))

    def put_answer(self, job: str, document: Mapping[str, Any]) -> None:
        """Give ``job`` its result. It stays until the job drops it."""
        protocol.write_json(self.path("answers", checked(job)), dict(document))

    def progress(self) -> Dict[str, Any]:
        """The newest numbers of the process; empty before the first."""
        return protocol.read_json(self.path("progress.json")) or {}

    def is_running(self) -> bool:
        """Whether the process lives now."""
        if not os.path.isdir(self.directory):
            return False
        turn = self._runner.take(self)
        if turn is None:
            return True
        turn.close()
        return False

    def log_tail(self, size: int = protocol.TAIL_BYTES) -> str:
        """The last ``size`` bytes of what the process printed."""
        try:
            with open(self.path("log"), "rb") as file:
                file.seek(max(0, os.path.getsize(self.path("log")) - size))
                return file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def ask(self, job: str, module: str, request: Mapping[str, Any]) -> Tuple[str, Dict[str, Any]]:
        """Claim the result for ``job`` and start ``python -m module request.json`` if none runs.

        Returns (ANSWERED, the answer), (RUNNING, the progress), or (DIED, {"tail": end of the log})
        after MAX_FRUITLESS_STARTS processes that ended without an answer and without progress. A
        process that is not up yet has its reason under ``phase``.
        """
        self.claim(job)
        answer = self.answer(job)
        if answer is not None:
            return ANSWERED, answer
        turn = self._runner.take(self)
        if turn is None:
            said = self._runner.said(self)
            return RUNNING, {"phase": said} if said else self.progress()
        try:
            answer = self.answer(job)  # may have come just before the lock was let go
            if answer is not None:
                return ANSWERED, answer
            if self._count_start() > MAX_FRUITLESS_STARTS:
                self.forget_starts()
                return DIED, {"tail": "%s\n%s" % (self.log_tail(), self._runner.said(self))}
            protocol.write_json(self.path("request.json"), dict(request))
            turn.start(module)
            return RUNNING, {}  # the numbers that are there are those of the process before
        finally:
            turn.close()

    def _count_start(self) -> int:
        """Number of this start among those in a row that got no further."""
        mark = self._mark()
        before = protocol.read_json(self.path("starts.json")) or {}
        starts = int(before.get("starts", 0)) + 1 if before.get("mark") == mark else 1
        protocol.write_json(
            self.path("starts.json"), {"v": protocol.VERSION, "starts": starts, "mark": mark}
        )
        return starts

    def _mark(self) -> List[Any]:
        """Changes when a process got further: its numbers, and the bytes it left in the folder."""
        left = 0
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.is_file() and entry.name not in _NO_PROGRESS:
                    left += entry.stat().st_size
        progress = self.progress()
        return [progress.get("objects_done"), progress.get("bytes_done"), left]

    def forget_starts(self) -> None:
        """The process ended in an orderly way: its starts no longer count."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path("starts.json"))


def checked(job: str) -> str:
    """``job`` if it can be the name of a file; raises ValueError if not."""
    if not _JOB.fullmatch(job):
        raise ValueError("a job's id has letters, digits, '.', '_' and '-', not %r" % job)
    return job


class OwnHost:
    """The process is a child of the asker's, and outlives it."""

    def take(self, work: Work) -> Optional[Turn]:
        """The lock of the work, which the process inherits."""
        lock = try_lock(work.path("lock"))
        return None if lock is None else _Locked(work, lock)

    def said(self, work: Work) -> str:
        """Nothing: it starts at once, and its log tells the rest."""
        return ""

    def abandon(self, work: Work) -> None:
        """Nothing: it sees that by itself."""


class _Locked:
    """Holds the lock until the process has it."""

    def __init__(self, work: Work, lock: int) -> None:
        self._work, self._lock = work, lock

    def start(self, module: str) -> None:
        _start(self._work, module, self._lock)

    def close(self) -> None:
        os.close(self._lock)


def main(arguments: List[str]) -> None:
    """Become the process of a work: ``python -m ffdl_airflow.agent.detached MODULE request.json``.

    For runners that cannot hand open files over. What it prints goes to the work's log.
    """
    module, request = arguments
    log = open(os.path.join(os.path.dirname(request), "log"), "ab")  # noqa: SIM115 - until the end
    sys.stderr.write("the log is %s\n" % log.name)
    sys.stderr.flush()
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log.fileno(), stream.fileno())
    sys.argv = [module, request]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _start(work: Work, module: str, lock: int) -> None:
    """Start the process detached: own session, own streams, nothing inherited but the lock."""
    environment = clean_environment(os.environ)
    environment[_LOCK_FD] = str(lock)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if os.path.basename(root) not in ("site-packages", "dist-packages"):
        old = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = root + (os.pathsep + old if old else "")
    with open(work.path("log"), "ab") as log:
        if log.tell() > LOG_LIMIT_BYTES:
            log.truncate(0)
        process = subprocess.Popen(
            [sys.executable, "-m", module, work.path("request.json")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=work.directory,
            env=environment,
            pass_fds=(lock,),
            start_new_session=True,
        )
    # Waits for the child so that it leaves no zombie in a driver that lives long.
    threading.Thread(target=process.wait, name="reap-%d" % process.pid, daemon=True).start()


class AlreadyRunning(Exception):
    """Another process holds the lock of this work."""


class Worker:
    """The process's own side: holds the lock, reports progress, stops when nobody waits.

    Use as a context manager around the work. ``stop`` is set when the work is to end: on SIGTERM
    and when nobody waits for an answer any more. Work that does not heed it is ended hard after
    STOP_GRACE_S, so all that it writes must be safe against an end at any point.
    """

    def __init__(self, directory: str) -> None:
        self.work = Work(directory)
        self.stop = threading.Event()
        self._finished = threading.Event()
        self._guard = threading.Lock()
        self._numbers = {
            "v": protocol.VERSION,
            "pid": os.getpid(),
            "started_at": protocol.now_iso(),
        }  # type: Dict[str, Any]
        self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)
        self._lock = -1
        self._old_handler = signal.SIG_DFL  # type: Any

    def __enter__(self) -> "Worker":  # noqa: PYI034 - typing.Self is newer than Python 3.8
        self._lock = self._adopt_lock()
        self._old_handler = signal.signal(signal.SIGTERM, self._on_signal)
        self._write_progress()
        self._ticker.start()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._finished.set()
        self._ticker.join()
        signal.signal(signal.SIGTERM, self._old_handler)
        self._write_progress()
        if kind is None:
            self.work.forget_starts()
        os.close(self._lock)

    def report(self, **numbers: Any) -> None:
        """Change the numbers of ``progress.json``; written at the next tick. Cheap."""
        with self._guard:
            self._numbers.update(numbers)

    def add(self, **numbers: int) -> None:
        """Add to the numbers of ``progress.json``. May be called by several threads."""
        with self._guard:
            for name, value in numbers.items():
                self._numbers[name] = self._numbers.get(name, 0) + value

    def numbers(self) -> Dict[str, Any]:
        """A copy of the numbers as they are now."""
        with self._guard:
            return dict(self._numbers)

    def _adopt_lock(self) -> int:
        """The lock that the asker handed over, or the lock taken now when started by hand."""
        path = self.work.path("lock")
        given = os.environ.pop(_LOCK_FD, None)
        if given is not None and _is_file_at(int(given), path):
            os.set_inheritable(int(given), False)
            return int(given)
        lock = try_lock(path)
        if lock is None:
            raise AlreadyRunning("another process does this work: %s" % self.work.directory)
        return lock

    def _on_signal(self, _number: int, _frame: Optional[FrameType]) -> None:
        self.stop.set()

    def _tick(self) -> None:
        stopping_since = None  # type: Optional[float]
        written = {}  # type: Dict[str, Any]
        while not self._finished.wait(TICK_S):
            if not self.work.waiting():
                self.stop.set()
            if self.numbers() != written:
                written = self.numbers()
                self._write_progress()
            if not self.stop.is_set():
                continue
            stopping_since = stopping_since or time.monotonic()
            if time.monotonic() - stopping_since > STOP_GRACE_S:
                self.work.forget_starts()
                os._exit(EXIT_STOPPED)

    def _write_progress(self) -> None:
        document = self.numbers()
        document["at"] = protocol.now_iso()
        # A full disk must not end the work here: the work itself meets it and reports it better.
        with contextlib.suppress(OSError):
            protocol.write_json(self.work.path("progress.json"), document)


if __name__ == "__main__":
    main(sys.argv[1:])
