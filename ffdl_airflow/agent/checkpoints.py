"""Checkpoints of the running attempt: who has reported what, and one seal at a time.

A trainer's ``with ffdl.checkpoint`` ends when the answer given here has come: then the checkpoint
is on disk under its name and in the journal. Each rank writes into a directory of its own. Where
several ranks save the same step with ``shards=1``, the first that has written makes the checkpoint
and the others are dropped; with more shards the parts are moved together. Directories that a
trainer writes on its own are sealed once they have not changed for two heartbeats.
"""

import functools
import os
from collections import deque
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Set, Tuple

from . import protocol, sealing
from .journal import Journal
from .log import log
from .loop import Loop
from .plan import Plan
from .roster import Roster

QUIET_BEATS = 2
"""Heartbeats without a change after which a trainer's own directory counts as written."""


class Part(NamedTuple):
    """What one rank has written of a step; the rank waits for the answer to its ``request``."""

    replica: str
    request: str
    writer: str
    rank: int
    folder: str


class Job(NamedTuple):
    """A step to seal: the parts of ranks, or the trainer's own directory ``own``."""

    step: int
    parts: List[Part]
    own: Optional[str] = None


class Checkpoints:
    """Seals, keeps and forgets. ``on_sealed`` is told each step that is on disk."""

    def __init__(self, loop: Loop, plan: Plan, *, roster: Roster, journal: Journal) -> None:
        self._loop = loop
        self._plan = plan
        self._roster = roster
        self._journal = journal
        self._attempt = 0
        self._resume_step: Optional[int] = None
        self._sealed: Set[int] = set()
        self._sealed_by: Dict[int, Part] = {}
        self._compared: Set[str] = set()
        self._warned: Set[str] = set()
        self._parts: Dict[int, List[Part]] = {}
        self._writers: Dict[int, Set[str]] = {}
        self._aborted: Dict[int, int] = {}
        self._queue: Deque[Job] = deque()
        self._working = False
        self._scanning = False
        self._when_idle: List[Callable[[], None]] = []
        self._known: Dict[int, sealing.Signature] = {}
        self._seen: Dict[int, Tuple[sealing.Signature, int]] = {}
        self.newest: Optional[Dict[str, Any]] = None
        self.warnings: List[str] = []
        self.on_sealed: Callable[[int], None] = lambda _step: None

    def take_over(self) -> None:
        """Become the writer, and remove leftovers of earlier attempts. Blocking, call beside the
        loop, before `begin`.

        A placement that was given up and lives on seals nothing from now on. Step directories that
        lie there unsealed belong to none of the attempts to come.
        """
        os.makedirs(self._plan.checkpoint_dir, exist_ok=True)
        sealing.become_writer(self._plan.checkpoint_dir, self._plan.placement)
        for name in sealing.clear_tmp(self._plan.checkpoint_dir):
            log("left by an earlier attempt and removed: %s" % name)
        self._known = sealing.unsealed(self._plan.checkpoint_dir)

    def begin(self, attempt: int, resume_step: Optional[int]) -> None:
        """A new attempt starts."""
        self._attempt, self._resume_step = attempt, resume_step
        self._sealed.clear()
        self._sealed_by.clear()
        self._compared.clear()
        self._warned.clear()
        self.warnings.clear()
        self._parts.clear()
        self._writers.clear()
        self._aborted.clear()
        self._seen.clear()

    def written(self, replica: str, report: Dict[str, Any]) -> None:
        """A rank has written its part of a step."""
        step, shards = int(report["step"]), max(1, int(report["shards"]))
        part = self._part(replica, report)
        if shards == 1:
            self._add(Job(step, [part]))
            return
        if self._aborted.get(step):
            self._aborted[step] -= 1
            self._refuse(Job(step, [part]), "another rank gave its part up")
            return
        if part.writer not in self._writers.get(step, {part.writer}):
            text = "more than %d ranks save it: pass shards=k, with k the number of them" % shards
            self._refuse(Job(step, [part]), text)
            return
        parts = self._parts.setdefault(step, [])
        parts[:] = [other for other in parts if other.writer != part.writer] + [part]
        if len(parts) >= shards:
            self._writers[step] = {other.writer for other in parts}
            self._add(Job(step, self._parts.pop(step)))

    def aborted(self, replica: str, report: Dict[str, Any]) -> None:
        """A rank has given a step up: with shards the step is refused for all of its writers."""
        step, shards = int(report["step"]), max(1, int(report["shards"]))
        parts = self._parts.pop(step, []) if shards > 1 else []
        if shards > 1:
            self._aborted[step] = shards - 1 - len(parts)
        text = "rank %s of %s gave up: %s" % (report.get("rank"), replica, report.get("reason"))
        self._refuse(Job(step, parts), text)

    def _part(self, replica: str, report: Dict[str, Any]) -> Part:
        folder = sealing.part_path(self._plan.checkpoint_dir, str(report["folder"]))
        rank = int(report["rank"] or 0)
        return Part(replica, str(report["request"]), str(report["writer"]), rank, folder)

    def scan(self) -> None:
        """Look for directories that a trainer wrote on its own; to be called each heartbeat."""
        if not self._scanning:
            self._scanning = True
            folder = self._plan.checkpoint_dir
            self._loop.in_thread(lambda: sealing.unsealed(folder), self._scanned)

    def _scanned(self, found: Any, error: Optional[BaseException]) -> None:
        self._scanning = False
        if error is not None:
            log("%s cannot be read: %s" % (self._plan.checkpoint_dir, error))
            return
        for step, now in sorted(found.items()):
            if self._known.get(step) == now or not now:
                continue
            before, beats = self._seen.get(step, (None, 0))
            beats = beats + 1 if before == now else 0
            self._seen[step] = (now, beats)
            if beats == QUIET_BEATS:
                self._add_own(step)

    def finish(self, done: Callable[[], None], *, ended_well: bool) -> None:
        """No rank writes any more. After a good end the trainer's own directories are whole.

        After a failure those are that have a newer one beside them; the newest may be half-written.
        """
        self._when_idle.append(done)
        self._loop.call_later(self._plan.limits.grace_s, self._impatient)

        def found(unsealed: Any, _error: Optional[BaseException]) -> None:
            own = {s: now for s, now in (unsealed or {}).items() if self._known.get(s) != now}
            newest = max([*own, *self._sealed], default=-1)
            for step in sorted(step for step, now in own.items() if now):
                if ended_well or step < newest:
                    self._add_own(step)
            self._next()

        self._loop.in_thread(lambda: sealing.unsealed(self._plan.checkpoint_dir), found)

    def _impatient(self) -> None:
        """A full disk under the journal must not keep a gang that is to end."""
        if self._journal.waiting:
            self._call_idle()
        elif self._when_idle:
            self._loop.call_later(self._plan.limits.grace_s, self._impatient)

    def _call_idle(self) -> None:
        waiting, self._when_idle = self._when_idle, []
        for callback in waiting:
            callback()

    def _add_own(self, step: int) -> None:
        folder = os.path.join(self._plan.checkpoint_dir, protocol.step_dir(step))
        if all(job.own != folder for job in self._queue):
            self._add(Job(step, [], folder))

    def _add(self, job: Job) -> None:
        self._queue.append(job)
        self._next()

    def _next(self) -> None:
        if self._working:
            return
        if not self._queue:
            self._call_idle()
            return
        self._working = True
        job = self._queue[0]
        kept = self._sealed_by.get(job.step)
        if len(job.parts) == 1 and kept is not None and kept.writer != job.parts[0].writer:
            self._drop(job, kept)
        else:
            self._seal(job)

    def _seal(self, job: Job) -> None:
        def work() -> Dict[str, Any]:
            parts = [("rank %d" % part.rank, part.folder) for part in job.parts]
            return sealing.seal(
                self._plan.checkpoint_dir,
                job.own or sealing.merge(parts),
                step=job.step,
                by=sealing.Writer(self._plan.placement, self._attempt),
                world_size=self._plan.world_size,
                generation=self._plan.generation,
            )

        self._loop.in_thread(work, lambda body, error: self._worked(job, body, error))

    def _drop(self, job: Job, kept: Part) -> None:
        """The step has been sealed by another rank: keep that one, and say so where they differ.

        Bytes are compared once for each rank and attempt, later only names and sizes, so that a
        rank does not wait for its files to be hashed at every step.
        """
        part, final = job.parts[0], protocol.step_dir(job.step)
        sealed = os.path.join(self._plan.checkpoint_dir, final)
        by_content = part.writer not in self._compared
        self._compared.add(part.writer)

        def work() -> bool:
            try:
                return sealing.differs(part.folder, sealed, by_content=by_content)
            finally:
                sealing.remove(part.folder)

        def done(differs: Any, error: Optional[BaseException]) -> None:
            if error is not None:
                log("%s cannot be compared with %s: %s" % (part.folder, sealed, error))
            note = None
            if differs and part.writer not in self._warned:
                note = self._warn(job.step, part, kept)
            self._answer(part, {"ok": True, "step": job.step, "path": sealed, "note": note})
            self._finished()

        self._loop.in_thread(work, done)

    def _warn(self, step: int, part: Part, kept: Part) -> str:
        """Once for each rank and attempt. Returns the line for the rank's log."""
        self._warned.add(part.writer)
        text = (
            "rank %d saved other files than rank %d at step %d: with shards=1 only the checkpoint "
            "of the rank that is first is kept; where each rank has files of its own, pass "
            "shards=%d" % (part.rank, kept.rank, step, self._plan.world_size)
        )
        self.warnings.append(text)
        self._journal.append(protocol.J_WARNED, self._attempt, {"text": text})
        return text

    def _answer(self, part: Part, answer: Dict[str, Any]) -> None:
        self._roster.send(part.replica, dict(answer, do="sealed", request=part.request))

    def _worked(self, job: Job, body: Any, error: Optional[BaseException]) -> None:
        if error is not None:
            text = getattr(error, "strerror", None) or str(error)
            self._refuse(job, text)
            self._finished()
            return
        self._sealed.add(job.step)
        if job.parts:
            self._sealed_by[job.step] = job.parts[0]
        if job.step == max(self._sealed):
            self.newest = {"step": job.step, "at": protocol.now_iso()}
        self._journal.append(
            protocol.J_CHECKPOINT, self._attempt, body, durable=lambda: self._expire(job, body)
        )

    def _expire(self, job: Job, body: Dict[str, Any]) -> None:
        def work() -> List[str]:
            return sealing.expire(
                self._plan.checkpoint_dir,
                keep=self._plan.keep,
                sealed_now=set(self._sealed),
                resume_step=self._resume_step,
            )

        def done(_deleted: Any, error: Optional[BaseException]) -> None:
            if error is not None:
                log("old checkpoints cannot be removed: %s" % error)
            for part in job.parts:
                self._answer(part, {"ok": True, "step": job.step, "path": body["path"]})
            self.on_sealed(job.step)
            self._finished()

        self._loop.in_thread(work, done)

    def _refuse(self, job: Job, reason: str) -> None:
        path = job.own or protocol.step_dir(job.step)
        self._journal.append(
            protocol.J_CHECKPOINT_REFUSED, self._attempt,
            {"path": path, "step": job.step, "reason": reason},
        )  # fmt: skip
        for part in job.parts:
            self._answer(part, {"ok": False, "step": job.step, "error": reason})
        for folder in [part.folder for part in job.parts]:
            remove = functools.partial(sealing.remove, folder)
            self._loop.in_thread(remove, lambda _r, _e: None)

    def _finished(self) -> None:
        self._queue.popleft()
        self._working = False
        self._next()
