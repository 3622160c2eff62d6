"""Checkpoints of the running attempt: who has reported what, and one seal at a time.

A trainer's ``with ffdl.checkpoint`` ends when the answer given here has come: then the checkpoint
is on disk under its name and in the journal. Directories that a trainer writes on its own are
sealed once they have not changed for two heartbeats.
"""

import os
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple

from . import protocol, sealing
from .journal import Journal
from .log import log
from .loop import Loop
from .plan import Plan
from .roster import Roster

QUIET_BEATS = 2
"""Heartbeats without a change after which a trainer's own directory counts as written."""

Asker = Tuple[str, str]
"""(replica, request id) of a rank that waits for an answer."""


class Job:
    """One directory to seal, and who waits for it."""

    def __init__(self, step: int, source: str, askers: List[Asker]) -> None:
        self.step = step
        self.source = source
        self.askers = askers


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
        self._parts: Dict[int, List[Asker]] = {}
        self._aborted: Dict[int, int] = {}
        self._queue: Deque[Job] = deque()
        self._working = False
        self._scanning = False
        self._when_idle: List[Callable[[], None]] = []
        self._known: Dict[int, sealing.Signature] = {}
        self._seen: Dict[int, Tuple[sealing.Signature, int]] = {}
        self.newest: Optional[Dict[str, Any]] = None
        self.on_sealed: Callable[[int], None] = lambda _step: None

    def clear(self) -> None:
        """Remove leftovers of earlier attempts. Blocking, call beside the loop, before `begin`.

        Step directories that lie there unsealed belong to none of the attempts to come.
        """
        os.makedirs(self._plan.checkpoint_dir, exist_ok=True)
        for name in sealing.clear_tmp(self._plan.checkpoint_dir):
            log("left by an earlier attempt and removed: %s" % name)
        self._known = sealing.unsealed(self._plan.checkpoint_dir)

    def begin(self, attempt: int, resume_step: Optional[int]) -> None:
        """A new attempt starts."""
        self._attempt, self._resume_step = attempt, resume_step
        self._sealed.clear()
        self._parts.clear()
        self._aborted.clear()
        self._seen.clear()

    def written(self, replica: str, report: Dict[str, Any]) -> None:
        """A rank has written its part of a step."""
        step, shards = int(report["step"]), max(1, int(report["shards"]))
        asker = (replica, str(report["request"]))
        if self._aborted.get(step):
            self._aborted[step] -= 1
            self._refuse(Job(step, "", [asker]), "another rank gave its part up")
            return
        askers = self._parts.setdefault(step, [])
        askers.append(asker)
        if len(askers) >= shards:
            source = sealing.tmp_path(self._plan.checkpoint_dir, step, self._attempt)
            self._add(Job(step, source, self._parts.pop(step)))

    def aborted(self, replica: str, report: Dict[str, Any]) -> None:
        """A rank has given a step up: the whole step is refused for all of its writers."""
        step, shards = int(report["step"]), max(1, int(report["shards"]))
        askers = self._parts.pop(step, [])
        self._aborted[step] = shards - 1 - len(askers)
        source = sealing.tmp_path(self._plan.checkpoint_dir, step, self._attempt)
        text = "rank %s of %s gave up: %s" % (report.get("rank"), replica, report.get("reason"))
        self._refuse(Job(step, source, askers), text)

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
        for step, now in found.items():
            if self._known.get(step) == now or not now:
                continue
            before, beats = self._seen.get(step, (None, 0))
            beats = beats + 1 if before == now else 0
            self._seen[step] = (now, beats)
            if beats == QUIET_BEATS:
                self._add_own(step)

    def finish(self, done: Callable[[], None], *, ended_well: bool) -> None:
        """No rank writes any more. After a good end the trainer's own directories are whole."""
        self._when_idle.append(done)
        self._loop.call_later(self._plan.limits.grace_s, self._impatient)
        if not ended_well:
            self._next()
            return

        def found(unsealed: Any, _error: Optional[BaseException]) -> None:
            for step, now in (unsealed or {}).items():
                if now and self._known.get(step) != now:
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
        if all(job.source != folder for job in self._queue):
            self._add(Job(step, folder, []))

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

        def work() -> Dict[str, Any]:
            return sealing.seal(
                self._plan.checkpoint_dir,
                job.source,
                step=job.step,
                attempt=self._attempt,
                world_size=self._plan.world_size,
                generation=self._plan.generation,
            )

        self._loop.in_thread(work, lambda body, error: self._worked(job, body, error))

    def _worked(self, job: Job, body: Any, error: Optional[BaseException]) -> None:
        if error is not None:
            text = getattr(error, "strerror", None) or str(error)
            self._refuse(job, text)
            self._finished()
            return
        self._sealed.add(job.step)
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
            for replica, request in job.askers:
                self._roster.send(replica, {"do": "sealed", "request": request, "ok": True,
                                            "step": job.step, "path": body["path"]})  # fmt: skip
            self.on_sealed(job.step)
            self._finished()

        self._loop.in_thread(work, done)

    def _refuse(self, job: Job, reason: str) -> None:
        own = not job.askers and os.path.dirname(job.source) == self._plan.checkpoint_dir
        path = job.source or protocol.step_dir(job.step)
        self._journal.append(
            protocol.J_CHECKPOINT_REFUSED, self._attempt,
            {"path": path, "step": job.step, "reason": reason},
        )  # fmt: skip
        for replica, request in job.askers:
            self._roster.send(replica, {"do": "sealed", "request": request, "ok": False,
                                        "step": job.step, "error": reason})  # fmt: skip
        if job.source and not own:
            self._loop.in_thread(lambda: sealing.remove(job.source), lambda _r, _e: None)

    def _finished(self) -> None:
        self._queue.popleft()
        self._working = False
        self._next()
