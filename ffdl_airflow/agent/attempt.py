"""One attempt, from *go* to its end, as the coordinator drives it.

preparing -> starting -> running -> (finishing | saving) -> ending -> over. Takes reports and
decides; all that is done is done by the replicas. The first failure is not judged at once: for a
moment exits are collected, so that the earliest real one is the cause and not a survivor's noise.
"""

import errno
import functools
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

from . import attempt_record, detect, fence, preflight, protocol
from .attempt_record import Cause, Record, cause_of, make_cause
from .checkpoints import Checkpoints
from .journal import Journal
from .log import log
from .loop import Loop, Timers
from .plan import Plan
from .roster import Roster

PREPARING, STARTING, RUNNING = "preparing", "starting", "running"
FINISHING, SAVING, ENDING, OVER = "finishing", "saving", "ending", "over"

HOLD, LEAVE = "hold", "leave"
CHECKPOINT_CHECK = "*"
"""Stands among the replicas that are waited for, for the coordinator's own check."""


class Parts(NamedTuple):
    """What an attempt works with."""

    loop: Loop
    plan: Plan
    roster: Roster
    journal: Journal
    checkpoints: Checkpoints


class Attempt:
    """``changed`` is called when :attr:`state` may have changed, ``over`` once at the end."""

    def __init__(
        self,
        parts: Parts,
        order: Dict[str, Any],
        *,
        changed: Callable[[], None],
        over: Callable[[], None],
    ) -> None:
        self._loop, self._plan = parts.loop, parts.plan
        self._roster, self._journal = parts.roster, parts.journal
        self._checkpoints = parts.checkpoints
        self._changed, self._over = changed, over
        self._timers, self._start_timer = Timers(self._loop), Timers(self._loop)
        self._waiting: Set[str] = set()
        self._untold: Set[str] = set()
        self._order = order
        self._save_until = 0.0
        self._settling = False
        self._ports: Dict[str, int] = {}
        self.phase = PREPARING
        self.then = HOLD
        self.record = Record(self._plan, int(order["attempt"]), order.get("resume_step"))

    @property
    def number(self) -> int:
        """The attempt's number, from 1."""
        return self.record.attempt

    @property
    def state(self) -> str:
        """The gang's state for the status document."""
        if self.phase in (PREPARING, STARTING):
            return protocol.STARTING
        return protocol.RUNNING if self.phase == RUNNING else protocol.STOPPING

    def begin(self) -> None:
        """Have every replica check itself, then start."""
        self._roster.forget_rows()
        self._waiting = self._roster.living | {CHECKPOINT_CHECK}
        self._start_timer.later(self._plan.limits.placement_s, self._too_slow)
        self._loop.in_thread(self._check_checkpoint, self._checked_checkpoint)
        order = {key: self._order.get(key) for key in ("attempt", "resume_from", "env")}
        self._roster.broadcast(dict(order, do="prepare"))
        self._changed()

    def on_report(self, name: str, report: Dict[str, Any]) -> None:
        """News of a replica."""
        if report.get("attempt") != self.number or self.phase == OVER:
            return
        take = {
            "prepared": self._prepared,
            "unfit": self._unfit,
            "started": self._started,
            "start-failed": self._start_failed,
            "exited": self._exited,
            "save-asked": self._save_asked,
            "stopped": self._stopped,
            "checkpoint": self._checkpoints.written,
            "checkpoint-abort": self._checkpoints.aborted,
        }.get(str(report["what"]))
        if take is not None:
            take(name, report)

    def on_lost(self, name: str, why: str) -> None:
        """A replica's agent is gone: the gang cannot go on, here or in a next attempt."""
        self.then = LEAVE
        text = "the agent of %s %s" % (name, why)
        self._end(make_cause(protocol.CAUSE_AGENT_LOST, text, replica=name), survivors=True)
        self._waiting.add(name)

    def swept(self, name: str) -> None:
        """Nothing is left of a lost replica, as far as can be seen from here."""
        self._waiting.discard(name)
        self._stopped_all()

    def tick(self, views: List[detect.RankView], *, known: bool) -> None:
        """Look for a hang and for checkpoints that nobody announces, each heartbeat."""
        if self.phase in (RUNNING, FINISHING, SAVING):
            self._checkpoints.scan()
        self.record.see(views)
        if self.phase != RUNNING:
            return
        hang = detect.find_hang(
            views, running_s=self.record.running_s(), known=known, limits=self._plan.limits
        )
        if hang is not None:
            cause = make_cause(protocol.CAUSE_HANG, hang.text, replica=hang.replica, rank=hang.rank)
            self._end(dict(cause, phase=hang.phase), survivors=True)

    def ask_save(self, why: str) -> None:
        """Ask for a checkpoint and go on."""
        if self.phase == RUNNING:
            self._journal.append(protocol.J_SAVE, self.number, {"why": why})
            self._roster.broadcast({"do": "save", "attempt": self.number, "why": why})

    def stop(self, mode: str, cause: Cause, *, then: str) -> None:
        """End the attempt from outside; with mode ``save`` after a chance to save."""
        if then == LEAVE:
            self.then = LEAVE
        if self._settling:
            return  # a rank has failed just now: that is the cause, and the end is under way
        if mode != protocol.STOP_SAVE or self.phase in (PREPARING, STARTING, ENDING):
            self._end(self.record.cause or cause, survivors=False)
        elif self.phase == RUNNING:
            self.phase, self.record.cause = SAVING, cause
            self._save_until = self._loop.now() + self._plan.limits.grace_s
            self._untold = self._roster.living
            why = {"why": cause["text"]}
            self._journal.append(protocol.J_SAVE, self.number, dict(why, stop=True))
            self._timers.later(self._plan.limits.grace_s, self._stop_saving)
            self._roster.broadcast(dict(why, do="save", attempt=self.number))
            self._changed()

    def on_sealed(self, step: int) -> None:
        """A checkpoint is safe: what a stop with save was waiting for."""
        self.record.last_checkpoint = max(self.record.last_checkpoint or 0, step)
        if self.phase == SAVING:
            self._stop_saving()

    def _check_checkpoint(self) -> Any:
        self._checkpoints.take_over()
        return preflight.check_resume(self._order.get("resume_from"))

    def _checked_checkpoint(self, fault: Any, error: Optional[BaseException]) -> None:
        name = self._plan.coordinator
        if fault is not None or error is not None:
            full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
            check, text = fault or ("disk" if full else "checkpoint-dir", "not usable: %s" % error)
            self._unfit(name, {"check": check, "text": text})
        else:
            self._prepared(CHECKPOINT_CHECK, {})

    def _prepared(self, name: str, report: Dict[str, Any]) -> None:
        self._ports.update(report.get("ports") or {})
        self._waiting.discard(name)
        if self.phase != PREPARING or self._waiting:
            return
        if not fence.is_open(self._plan.dir):
            cause = make_cause(protocol.CAUSE_STOP, "the placement has been ended")
            self.stop(protocol.STOP_NOW, cause, then=LEAVE)
            return
        self.phase = STARTING
        self._waiting = self._roster.living
        self._checkpoints.begin(self.number, self.record.resume_step)
        self._checkpoints.on_sealed = self.on_sealed
        self._roster.broadcast(dict(self._order, do="start", ports=self._ports))

    def _unfit(self, name: str, report: Dict[str, Any]) -> None:
        text = "%s, check %s: %s" % (name, report["check"], report["text"])
        cause = make_cause(protocol.CAUSE_PREFLIGHT, text, replica=name)
        self._end(dict(cause, check=report["check"]), survivors=False)

    def _started(self, name: str, report: Dict[str, Any]) -> None:
        self.record.started(name, report["pids"], tuned=report.get("tuned") or [])
        self._waiting.discard(name)
        if self.phase != STARTING or self._waiting:
            return
        self.phase = RUNNING
        body = self.record.run()
        self._journal.append(protocol.J_RUNNING, self.number, body)
        self._start_timer.cancel()
        left_s = self._order.get("time_left_s")
        if left_s is not None:
            self._timers.later(float(left_s), self._out_of_time)
        self._changed()
        self._check_ended_well()

    def _start_failed(self, name: str, report: Dict[str, Any]) -> None:
        cause = make_cause(
            protocol.CAUSE_START, "%s: %s" % (name, report["text"]),
            replica=name, rank=report["rank"],
        )  # fmt: skip
        self._end(cause, survivors=True)

    def _exited(self, name: str, report: Dict[str, Any]) -> None:
        entry = self.record.exited(name, report)
        self.record.see([detect.RankView(name, report["row"], 0.0)])
        self._journal.append(protocol.J_RANK_EXITED, self.number, attempt_record.public(entry))
        if self.phase == SAVING:
            if not self.record.running(self._plan.names):
                self._stop_saving()
        elif self.phase in (STARTING, RUNNING):
            if entry["failed"]:
                self._settle()
            self._check_ended_well()
        elif self._evaluator_done(name):
            self._send_stop(name)
        if self._settling and not self.record.running(self._plan.names):
            self._settled()

    def _evaluator_done(self, name: str) -> bool:
        waited_for = self.phase == FINISHING and name in self._plan.evaluators
        return waited_for and not self.record.running([name])

    def _settle(self) -> None:
        if not self._settling:
            self._settling = True
            self._timers.later(self._plan.limits.settle_s, self._settled)

    def _settled(self) -> None:
        first = self.record.first_failure()
        if self._settling and first is not None:
            self._end(cause_of(first), survivors=True)

    def _check_ended_well(self) -> None:
        if self.phase != RUNNING or self._settling or self.record.running(self._plan.deciding):
            return
        self.phase, self.then = FINISHING, LEAVE
        self.record.cause = make_cause(protocol.CAUSE_OK, "all deciding replicas ended with 0")
        self._waiting = self._roster.living
        for name in self._roster.joined:
            if name in self._plan.evaluators and self.record.running([name]):
                grace_s = self._plan.limits.evaluator_grace_s
                self._timers.later(grace_s, functools.partial(self._send_stop, name))
            else:
                self._send_stop(name)
        self._changed()

    def _send_stop(self, name: str, term_s: Optional[float] = None) -> None:
        term_s = self._plan.limits.term_s if term_s is None else term_s
        order = {"do": "stop", "attempt": self.number, "term_s": term_s}
        self._roster.send(name, order)

    def _save_asked(self, name: str, report: Dict[str, Any]) -> None:
        if self.phase != SAVING:
            return
        if report["told"]:
            self._untold.clear()
        elif name in self._untold:
            self._untold.discard(name)
            if not self._untold:
                log("no process can be asked to save, SIGTERM is what is left")
                self._end(self.record.cause, term_s=self._save_until - self._loop.now())

    def _stop_saving(self) -> None:
        if self.phase == SAVING:
            self._end(self.record.cause, survivors=False)

    def _out_of_time(self) -> None:
        cause = make_cause(protocol.CAUSE_DEADLINE, "the time limit is reached")
        self.stop(protocol.STOP_SAVE, cause, then=LEAVE)

    def _too_slow(self) -> None:
        text = "not all replicas have started within %.0f s: %s" % (
            self._plan.limits.placement_s, ", ".join(sorted(self._waiting - {CHECKPOINT_CHECK})),
        )  # fmt: skip
        self._end(make_cause(protocol.CAUSE_PLACEMENT_TIMEOUT, text), survivors=True)

    def _end(
        self,
        cause: Optional[Cause],
        *,
        survivors: bool = False,
        term_s: Optional[float] = None,
    ) -> None:
        """End every process; what ended first as the cause stays the cause."""
        limits = self._plan.limits
        if term_s is None:
            term_s = limits.survivor_term_s if survivors else limits.term_s
        if self.phase == OVER:
            return
        if self.phase in (ENDING, FINISHING):
            for name in sorted(self._waiting):
                self._send_stop(name, term_s)
            return
        failure = self.record.first_failure() if self._settling else None
        self._settling = False
        self.record.cause = self.record.cause or (cause_of(failure) if failure else cause)
        self._start_timer.cancel()
        self._timers.cancel()
        self.phase = ENDING
        self._waiting = self._roster.living
        for name in self._roster.joined:
            self._send_stop(name, term_s)
        self._changed()

    def _stopped(self, name: str, report: Dict[str, Any]) -> None:
        self.record.stopped(name, report)
        if report["left"]:
            self.then = LEAVE
        self._waiting.discard(name)
        self._stopped_all()

    def _stopped_all(self) -> None:
        if self._waiting or self.phase not in (ENDING, FINISHING):
            return
        self.phase = OVER
        self._start_timer.cancel()
        self._timers.cancel()
        ran = self.record.running_at is not None
        well = self.record.ok or (ran and not self.record.failures())
        self._checkpoints.finish(self._conclude, ended_well=well)

    def _conclude(self) -> None:
        body = self.record.body()
        self._journal.append(protocol.J_ATTEMPT_ENDED, self.number, body)
        log("attempt %d ended: %s" % (self.number, body["cause"]["text"]))
        self._over()
