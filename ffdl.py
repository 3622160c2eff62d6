"""What a trainer may say to the job that runs it, and ask of it. One file, no dependencies.

    import ffdl

    resume = ffdl.resume()
    first = resume.step + 1 if resume else 1
    if resume:
        model.load(resume.path / "weights.npz")
    for step in range(first, steps + 1):
        loss = train(step)
        ffdl.progress(step, loss=loss, samples=batch)
        if step % every == 0 or ffdl.should_save():
            with ffdl.checkpoint(step) as path:
                model.save(path / "weights.npz")

Outside a job all of it works and does nothing, so the same file runs by hand. Nothing here raises
because the job's agent has gone, with one exception: a checkpoint that cannot be vouched for raises
:class:`CheckpointError`.
"""

import atexit
import contextlib
import json
import os
import re
import select
import shutil
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Optional, Tuple

__all__ = [
    "CheckpointError",
    "Resume",
    "checkpoint",
    "data",
    "doing",
    "output_dir",
    "progress",
    "resume",
    "should_save",
]

VERSION = 1
TRAINING = "training"
SAVING = "saving"
SEND_EVERY_S = 0.5
"""Shortest time between two progress messages; the newest is always sent before a checkpoint and
at exit. Chosen: beats come every 2 s, and a message costs the agent 0.2 ms of CPU."""
RECONNECT_S = 5.0
ANSWER_S = float(os.environ.get("FFDL_CHECKPOINT_TIMEOUT", "600"))
"""Longest wait for a checkpoint to be sealed, in seconds; hashing 100 GB takes minutes."""
UNSENT_MOST_BYTES = 1 << 18
RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Set by the agent and torchrun, by Open MPI's mpirun, by Intel MPI's and MPICH's."""


class CheckpointError(RuntimeError):
    """The checkpoint is not safe: refused, disk full, or the agent has gone.

    Training may go on, but a restart will use an older one.
    """


class Resume(NamedTuple):
    """Where to go on: a checkpoint's directory and the last step that it contains."""

    path: Path
    step: int


def progress(
    step: Optional[int] = None,
    *,
    loss: Any = None,
    samples: Optional[float] = None,
    doing: str = TRAINING,
    **metrics: Any,
) -> None:
    """Say that ``step`` is done. ``samples`` counts what was worked on since the last call.

    Metrics are numbers, or what ``float()`` makes one of; they are converted only when a message
    is due, so a value that still lies on a device costs nothing most of the time.
    """
    _link.progress(step, loss=loss, samples=samples, doing=doing, metrics=metrics)


def resume() -> Optional[Resume]:
    """The checkpoint to go on from; None for a start from nothing, and outside a job."""
    text = os.environ.get("FFDL_RESUME_FROM")
    if not text:
        return None
    path = Path(text)
    named = re.match(r"^step-(\d{12})$", path.name)
    if named:
        return Resume(path, int(named.group(1)))
    with (path / "MANIFEST.json").open(encoding="utf-8") as file:
        return Resume(path, int(json.load(file)["step"]))


@contextlib.contextmanager
def checkpoint(step: int, shards: int = 1) -> Iterator[Path]:
    """A directory to write the checkpoint of ``step`` into.

    At the end of the block the checkpoint is hashed, sealed and moved to its place; when the block
    is over it is safe on disk. The directory is this rank's own. With ``shards=1`` one rank makes
    the checkpoint: where several save the same step, that of the first is kept, the others are
    dropped, and a rank whose files differ from the kept ones gets a line in its log. With
    ``shards=k`` exactly k ranks take part, all of them wait for the last, and their files are
    moved together; each must use file names of its own. A block that raises leaves nothing behind.
    Raises ``CheckpointError`` where the checkpoint is refused or the disk is full.

    Outside a job the directory is a temporary one that is dropped after the block.
    """
    if not _link.inside:
        with tempfile.TemporaryDirectory(prefix="ffdl-checkpoint-") as folder:
            yield Path(folder)
        return
    with doing(SAVING):
        path = _link.open_checkpoint(step, shards)
        try:
            yield path
        except BaseException as error:
            _link.abort_checkpoint(path, step, shards=shards, error=error)
            if isinstance(error, OSError):
                message = "checkpoint of step %d cannot be written to %s: %s" % (step, path, error)
                raise CheckpointError(message) from error
            raise
        _link.close_checkpoint(path, step, shards)


def should_save() -> bool:
    """Whether a checkpoint has been asked for since the last call; True once per request.

    Costs about a microsecond. Each rank is asked; where one rank writes for all, ask there.
    """
    return _link.take_save_request()


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Say that the block is something else than training: ``loading``, ``evaluating``, ``saving``.

    While that lasts the absence of steps is not taken for a hang.
    """
    before = _link.doing
    _link.progress(None, doing=what, now=True)
    try:
        yield
    finally:
        _link.progress(None, doing=before, now=True)


def data(name: str) -> Path:
    """Directory of the data store called ``name`` in the job's spec.

    Raises ``LookupError`` that names the variable to set when running by hand.
    """
    variable = "FFDL_DATA_" + re.sub(r"[^A-Za-z0-9]", "_", name).upper()
    value = os.environ.get(variable)
    if value is None:
        message = "no data store %r here: set %s to its directory" % (name, variable)
        raise LookupError(message)
    return Path(value)


def output_dir() -> Path:
    """Directory for what the job is to keep; the current one outside a job."""
    return Path(os.environ.get("FFDL_OUTPUT_DIR") or ".")


class _Link:
    """The connection to the agent. Never blocks but for a checkpoint's answer."""

    def __init__(self) -> None:
        self._path = os.environ.get("FFDL_AGENT_SOCK")
        self.inside = bool(self._path)
        self.doing = TRAINING
        self._lock = threading.RLock()
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._socket: Optional[socket.socket] = None
        self._connect_at = 0.0
        self._send_at = 0.0
        self._pending = False
        self._step: Optional[int] = None
        self._samples: Optional[float] = None
        self._metrics: Dict[str, Tuple[Any, Optional[int]]] = {}
        self._unsent = b""
        self._received = b""
        self._save_asked = False
        self._answers: Dict[int, Dict[str, Any]] = {}

    def progress(
        self,
        step: Optional[int],
        *,
        loss: Any = None,
        samples: Optional[float] = None,
        doing: str = TRAINING,
        metrics: Optional[Dict[str, Any]] = None,
        now: bool = False,
    ) -> None:
        if not self.inside:
            self.doing = doing
            return
        if step is not None:
            self._step = step
        if samples is not None:
            self._samples = (self._samples or 0.0) + samples
        if loss is not None:
            self._metrics["loss"] = loss, self._step
        if metrics:
            for name, value in metrics.items():
                self._metrics[name] = value, self._step
        self._pending = True
        changed, self.doing = doing != self.doing, doing
        if now or changed or time.monotonic() >= self._send_at:
            self.flush()

    def flush(self) -> None:
        """Send the newest progress where there is some that was not sent."""
        if not self.inside or not self._pending:
            return
        with self._lock:
            if self._pid != os.getpid():
                self._after_fork()
            self._pending = False
            self._send_at = time.monotonic() + SEND_EVERY_S
            metrics = _numbers(self._metrics)
            self._send(
                {
                    "t": "progress",
                    "step": _whole(self._step),
                    "doing": self.doing,
                    "samples": self._samples,
                    "metrics": metrics,
                    "metric_steps": {name: _whole(self._metrics[name][1]) for name in metrics},
                }
            )

    def take_save_request(self) -> bool:
        if not self.inside:
            return False
        with self._lock:
            if self._pid != os.getpid():
                self._after_fork()
            if self._connect():
                self._receive(0.0)
            asked, self._save_asked = self._save_asked, False
        return asked

    def open_checkpoint(self, step: int, shards: int) -> Path:
        with self._lock:
            if self._pid != os.getpid():
                self._after_fork()
            if not self._connect(at_once=True):
                message = "checkpoint of step %d: the job's agent cannot be reached" % step
                raise CheckpointError(message)
        root = Path(os.environ["FFDL_CHECKPOINT_DIR"]) / "tmp"
        attempt = os.environ.get("FFDL_ATTEMPT", "1")
        path = root / ("step-%012d.%s.rank-%d-%s" % (step, attempt, _rank(), os.urandom(4).hex()))
        try:
            path.mkdir(parents=True)
        except OSError as error:
            self.abort_checkpoint(path, step, shards=shards, error=error)
            message = "checkpoint of step %d cannot be written to %s: %s" % (step, path, error)
            raise CheckpointError(message) from error
        return path

    def abort_checkpoint(self, path: Path, step: int, *, shards: int, error: BaseException) -> None:
        shutil.rmtree(str(path), ignore_errors=True)
        reason = "%s: %s" % (type(error).__name__, error)
        with self._lock:
            self._send({"t": "checkpoint-abort", "step": int(step), "shards": shards,
                        "folder": path.name, "reason": reason})  # fmt: skip

    def close_checkpoint(self, path: Path, step: int, shards: int) -> None:
        """Hand the directory over and wait until it is sealed."""
        step = int(step)
        with self._lock:
            self._answers.pop(step, None)
            self._send({"t": "checkpoint", "step": step, "shards": shards, "folder": path.name})
            deadline = time.monotonic() + ANSWER_S
            while step not in self._answers:
                left_s = deadline - time.monotonic()
                if self._socket is None or left_s <= 0:
                    what = "has gone" if self._socket is None else "does not answer"
                    message = "checkpoint of step %d: the job's agent %s" % (step, what)
                    raise CheckpointError(message)
                self._push()
                self._receive(min(left_s, 1.0))
            answer = self._answers.pop(step)
        if answer.get("note"):
            sys.stderr.write("ffdl: %s\n" % answer["note"])
            sys.stderr.flush()
        if not answer.get("ok"):
            shutil.rmtree(str(path), ignore_errors=True)
            message = "checkpoint of step %d was refused: %s" % (step, answer.get("error"))
            raise CheckpointError(message)

    def _after_fork(self) -> None:
        """A forked child must not talk on its parent's connection."""
        pending, step, metrics = self._pending, self._step, self._metrics
        if self._socket is not None:
            self._socket.close()
        self._forget()
        self._pending, self._step, self._metrics = pending, step, metrics

    def _connect(self, *, at_once: bool = False) -> bool:
        if self._socket is not None:
            return True
        if time.monotonic() < self._connect_at and not at_once:
            return False
        self._connect_at = time.monotonic() + RECONNECT_S
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.setblocking(False)
            peer.connect(self._path or "")
        except OSError:
            peer.close()
            return False
        self._socket, self._unsent, self._received = peer, b"", b""
        hello = {
            "t": "hello",
            "v": VERSION,
            "rank": _rank(),
            "attempt": int(os.environ.get("FFDL_ATTEMPT", "0")),
            "pid": os.getpid(),
        }
        self._unsent = json.dumps(hello).encode() + b"\n"
        return True

    def _send(self, message: Dict[str, Any]) -> None:
        if self._connect():
            if len(self._unsent) < UNSENT_MOST_BYTES:
                self._unsent += json.dumps(message).encode() + b"\n"
            self._push()

    def _push(self) -> None:
        if self._socket is None or not self._unsent:
            return
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            self._drop()
            return
        self._unsent = self._unsent[sent:]

    def _receive(self, wait_s: float) -> None:
        if self._socket is None:
            return
        if wait_s:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            poll.poll(max(1, int(wait_s * 1000)))
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop()
            return
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._message(json.loads(line.decode("utf-8")))

    def _message(self, message: Dict[str, Any]) -> None:
        if message.get("t") == "save":
            self._save_asked = True
        elif message.get("t") == "checkpoint":
            self._answers[int(message["step"])] = message

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def _rank() -> int:
    """This process's rank, by whatever has started it; 0 where nobody has said one."""
    for name in RANK_NAMES:
        if os.environ.get(name):
            return int(os.environ[name])
    return 0


def _whole(step: Optional[int]) -> Optional[int]:
    return None if step is None else int(step)


def _numbers(metrics: Dict[str, Tuple[Any, Optional[int]]]) -> Dict[str, Optional[float]]:
    found: Dict[str, Optional[float]] = {}
    for name, (value, _) in metrics.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            continue
        found[name] = number if abs(number) < float("inf") else None
    return found


_link = _Link()
atexit.register(_link.flush)
