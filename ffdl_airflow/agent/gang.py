"""The coordinator: gathers the gang, holds its place, runs attempts on it, lets it go.

joining -> holding -> (starting -> running -> stopping -> holding)* -> gone. *Go* or *expired* is
decided here and nowhere else, in one thread, so never both.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

from . import detect, ending, fence, protocol, status
from .attempt import HOLD, LEAVE, Attempt, Parts
from .attempt_record import make_cause
from .checkpoints import Checkpoints
from .journal import Journal
from .log import log
from .loop import Loop, Timer
from .plan import Plan
from .replica import Replica
from .roster import Roster
from .usage import Usage

Answer = Tuple[int, Dict[str, Any]]

PROGRESS_S = 60.0
"""Shortest time between two ``ProgressSummary`` entries. Chosen."""
FAREWELL_S = 2.0
"""How long to wait for followers to leave; they need milliseconds. Chosen."""


class Gang:
    """All agents of a placement, seen from the first. ``quit_loop`` is called at the very end."""

    def __init__(
        self,
        loop: Loop,
        plan: Plan,
        *,
        replica: Replica,
        journal: Journal,
        quit_loop: Callable[[], None],
    ) -> None:
        self._loop, self._plan, self._replica = loop, plan, replica
        self._quit = quit_loop
        self._journal = journal
        self.roster = Roster(loop, plan, local=replica.handle)
        self.roster.on_joined = self._joined
        self.roster.on_report = self._report
        self.roster.on_lost = self._lost
        self.roster.on_gone = self._farewell
        self.checkpoints = Checkpoints(loop, plan, roster=self.roster, journal=journal)
        self.usage = Usage(plan)
        self.board = status.StatusBoard(loop, self._document, journal)
        journal.on_durable = lambda: loop.soon(self.board.publish)
        self._idle_state = protocol.JOINING
        self._attempt: Optional[Attempt] = None
        self._record_state = protocol.JOINING
        self._hold_s = plan.limits.hold_s
        self._hold_since = 0.0
        self._hold_timer: Optional[Timer] = None
        self._answers: Dict[int, Answer] = {}
        self._last_attempt = max([int(e.get("attempt") or 0) for e in journal.earlier] or [0])
        self._progress_known = False
        self._progress_at = -PROGRESS_S
        self._progress_step: Optional[int] = None
        self._leaving: Optional[str] = None
        self._released = False

    @property
    def state(self) -> str:
        """One of protocol.py's states of a gang."""
        return self._attempt.state if self._attempt is not None else self._idle_state

    def start(self) -> None:
        """Take the own seat and wait for the others."""
        self._replica.report = self.roster.local_report
        self._replica.on_leave = lambda _why: None
        self._hold_timer = self._loop.call_later(self._plan.limits.placement_s, self._not_placed)
        self.roster.join_local()
        self._tick()

    def go(self, body: Dict[str, Any]) -> Answer:
        """Begin an attempt; the same attempt again gets the same answer."""
        order = _order(body)
        number = order["attempt"]
        if number in self._answers:
            return self._answers[number]
        if self._idle_state == protocol.GONE:
            return _error(410, "expired", "the placement is over: %s" % self._leaving)
        if number <= self._last_attempt:
            text = "attempt %d is older than attempt %d" % (number, self._last_attempt)
            return _error(409, "stale-attempt", text)
        if self.state != protocol.HOLDING:
            text = "the gang is %s" % self.state
            status_code, document = _error(409, "not-holding", text)
            return status_code, dict(document, state=self.state)
        self._stop_hold()
        self._last_attempt = number
        parts = Parts(self._loop, self._plan, self.roster, self._journal, self.checkpoints)
        self._attempt = Attempt(parts, order, changed=self.board.publish, over=self._over)
        self._attempt.begin()
        self.usage.begin()
        self._answers[number] = 200, {"v": 1, "ok": True, "attempt": number}
        return self._answers[number]

    def save(self, why: str) -> Answer:
        """Ask the running attempt for a checkpoint."""
        if self._attempt is None or self.state != protocol.RUNNING:
            return _error(409, "not-running", "the gang is %s" % self.state)
        self._attempt.ask_save(why)
        return 202, {"v": 1, "ok": True}

    def stop(self, mode: str, why: str, *, then: str) -> Answer:
        """End the running attempt, then hold again or leave."""
        log("stop %s, then %s: %s" % (mode, then, why))
        if self._attempt is not None:
            self._attempt.stop(mode, make_cause(protocol.CAUSE_STOP, why), then=then)
        elif then == LEAVE:
            self.leave(why)
        return 202, {"v": 1, "ok": True, "state": self.state}

    def renew(self, hold_s: float) -> Answer:
        """The hold runs anew from now."""
        if self._idle_state == protocol.GONE:
            return _error(410, "expired", "the placement is over: %s" % self._leaving)
        self._hold_s, self._hold_since = hold_s, self._loop.now()
        if self.state == protocol.HOLDING:
            self._start_hold(self._hold_since)
        return 200, {"v": 1, "ok": True, "hold_s": hold_s}

    def terminated(self) -> None:
        """The agent itself was asked to end (SIGTERM)."""
        self._told_to_end(self._plan.coordinator)

    def _told_to_end(self, name: str) -> None:
        why = "the agent of %s was told to end" % name
        log(why)
        if self._attempt is None:
            self.leave(why)
        else:
            cause = make_cause(protocol.CAUSE_TERMINATED, why, replica=name)
            self._attempt.stop(protocol.STOP_SAVE, cause, then=LEAVE)

    def refused(self, name: str, why: str) -> None:
        """An agent says that it cannot take its place, or that it cannot go on."""
        if name in self.roster.joined:
            self.roster.lose(name, why)
        else:
            self.leave("%s cannot take its place: %s" % (name, why))

    def broken(self, why: str) -> None:
        """This agent is at its end by a fault: write down as the cause what nobody else can say."""
        text = "the agent of %s %s" % (self._plan.coordinator, why)
        if self._attempt is None:
            self._journal.append(protocol.J_RELEASED, None, {"why": text})
            return
        record = self._attempt.record
        if record.cause is None or record.ok:
            kind, name = protocol.CAUSE_AGENT_LOST, self._plan.coordinator
            record.cause = make_cause(kind, text, replica=name)
        self._journal.append(protocol.J_ATTEMPT_ENDED, record.attempt, record.body())

    def leave(self, why: str) -> None:
        """Let everybody go, then write ``Released`` as the last entry and end."""
        if self._attempt is not None:
            self.stop(protocol.STOP_NOW, why, then=LEAVE)
            return
        if self._leaving is not None:
            return
        log("leaving: %s" % why)
        self._leaving = why
        self._stop_hold()
        self._idle_state = protocol.GONE
        self.board.publish()
        self.roster.broadcast({"do": "leave", "why": why})
        self._loop.call_later(FAREWELL_S, self._release)
        self._farewell()

    def current_attempt(self) -> int:
        """Number of the newest attempt, 0 before the first."""
        return self._last_attempt

    def _farewell(self) -> None:
        if self._leaving is not None and not self.roster.connected:
            self._loop.soon(self._release)

    def _release(self) -> None:
        if self._released:
            return
        self._released = True
        self._replica.end_all(0.0, self._write_released)

    def _write_released(self) -> None:
        self._journal.append(protocol.J_RELEASED, None, {"why": self._leaving})
        deadline = self._loop.now() + self._plan.limits.grace_s

        def finished() -> None:
            if self._journal.waiting and self._loop.now() < deadline:
                self._loop.call_later(0.5, finished)
            else:
                self._quit()

        finished()

    def _joined(self, _name: str) -> None:
        if self._idle_state != protocol.JOINING or len(self.roster.joined) < len(self._plan.names):
            self.board.publish()
            return
        self._stop_hold()
        self._idle_state = protocol.HOLDING
        self._journal.append(protocol.J_PLACED, None, {"joined": self.roster.joined})
        self._journal.append(protocol.J_RESERVED, None, {"hold_s": self._hold_s})
        self._start_hold(self._loop.now())
        self.board.publish()

    def _not_placed(self) -> None:
        missing = sorted(set(self._plan.names) - set(self.roster.joined))
        limit_s = self._plan.limits.placement_s
        self.leave("not joined within %.0f s: %s" % (limit_s, ", ".join(missing)))

    def _report(self, name: str, report: Dict[str, Any]) -> None:
        if report["what"] == "leaving":
            self._told_to_end(name)
        elif self._attempt is not None:
            self._attempt.on_report(name, report)

    def _lost(self, name: str, why: str) -> None:
        attempt = self._attempt
        if self._leaving is not None:
            self._farewell()
        if attempt is not None:
            attempt.on_lost(name, why)

        def swept(_left: List[int]) -> None:
            if attempt is not None:
                attempt.swept(name)
            elif self._leaving is None:
                self.leave("the agent of %s %s" % (name, why))

        if self._plan.local:
            find = ending.sweep(self._plan, [name], kill_agents=True)
            ending.Ender(self._loop, find=find, term_s=0.0, done=swept)
        else:
            swept([])

    def _over(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        if attempt.then == LEAVE:  # nobody may see it hold on its way out
            self.leave(str((attempt.record.cause or {}).get("text")))
        else:
            self._start_hold(max(self._hold_since, self._loop.now()))
            self.board.publish()

    def _start_hold(self, since: float) -> None:
        self._stop_hold()
        self._hold_since = since
        left_s = since + self._hold_s - self._loop.now()
        self._hold_timer = self._loop.call_later(left_s, self._expire)

    def _stop_hold(self) -> None:
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None

    def _expire(self) -> None:
        held_s = round(self._loop.now() - self._hold_since, 3)
        self._journal.append(protocol.J_HOLD_EXPIRED, None, {"held_s": held_s})
        self.leave("the hold of %.0f s has ended" % self._hold_s)

    def _tick(self) -> None:
        self._loop.call_later(self._plan.limits.heartbeat_s, self._tick)
        if self._leaving is not None:
            return
        ended = fence.end_mode(self._plan.dir)
        if ended == protocol.STOP_SAVE and self._attempt is not None:
            # The mark is there before the order that goes with it; the grace bounds both.
            self.stop(ended, "the placement has been ended", then=LEAVE)
        elif ended is not None:
            self.leave("the placement has been ended")
            return
        self.roster.check()
        if self._attempt is None:
            return
        self.roster.rows_of(self._plan.coordinator, self._replica.rows())
        views = self._views()
        self._progress_known = self._progress_known or detect.progress_known(views)
        if self.state == protocol.RUNNING:
            running_s, known = self._attempt.record.running_s(), self._progress_known
            self.usage.see(views, now=self._loop.now(), known=known, running_s=running_s)
        self._attempt.tick(views, known=self._progress_known)
        self._summarize()
        self.board.publish()

    def _views(self) -> List[detect.RankView]:
        now = self._loop.now()
        seats = self.roster.seats.values()
        return [detect.RankView(s.name, row, now - s.rows_at) for s in seats for row in s.rows]

    def _summarize(self) -> None:
        now, known = self._loop.now(), status.figures(self._views())
        if known["step"] in (None, self._progress_step) or now - self._progress_at < PROGRESS_S:
            return
        self._progress_at, self._progress_step = now, known["step"]
        body = {"step": known["step"], "samples_per_s": known["samples_per_s"]}
        body.update(known["metrics"])
        if known["last_metrics"]:
            body["last_metrics"] = known["last_metrics"]
        self._journal.append(protocol.J_PROGRESS, self._last_attempt, body)

    def _document(self) -> Dict[str, Any]:
        attempt = self._attempt
        left_s = None
        if self.state == protocol.HOLDING:
            left_s = round(self._hold_since + self._hold_s - self._loop.now(), 1)
        trouble = [self._journal.trouble] if self._journal.trouble else []
        return dict(
            status.figures(self._views()),
            placement_id=self._plan.placement_id,
            state=self.state,
            joined=self.roster.joined,
            hold_left_s=left_s,
            attempt=attempt.number if attempt else None,
            checkpoint=self.checkpoints.newest,
            running_s=round(attempt.record.running_s(), 1) if attempt else None,
            utilization=self.usage.document() if attempt else None,
            journal_seq=self._journal.durable_seq,
            warnings=trouble + self.checkpoints.warnings,
        )


def _order(body: Dict[str, Any]) -> Dict[str, Any]:
    """A checked order; raises ``ValueError`` that names the field."""
    attempt, left_s, step = body.get("attempt"), body.get("time_left_s"), body.get("resume_step")
    if not isinstance(attempt, int) or attempt < 1:
        message = "attempt: %r is not a number from 1" % (attempt,)
        raise ValueError(message)
    if left_s is not None and not isinstance(left_s, (int, float)):
        message = "time_left_s: %r is not a number of seconds" % (left_s,)
        raise ValueError(message)
    return {
        "attempt": attempt,
        "resume_from": body.get("resume_from"),
        "resume_step": None if step is None else int(step),
        "time_left_s": left_s,
        "env": {str(name): str(value) for name, value in dict(body.get("env") or {}).items()},
    }


def _error(code: int, reason: str, text: str) -> Answer:
    return code, {"v": 1, "error": reason, "text": text}


__all__ = ["HOLD", "LEAVE", "Gang"]
