"""A follower's tie to the coordinator: join, then beats without end, reports beside them.

Who loses the coordinator ends its ranks and leaves; a rank without a gang is of no use.
"""

import os
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional

from . import ending, fence, protocol
from .client import Channel
from .log import log
from .loop import Loop
from .plan import Plan
from .replica import Replica

OK = 200
QUICK_TRIES = 3
RETRY_S = 0.1
JOIN_RETRY_S = 0.25


class Member:
    """One follower. ``quit_loop`` is called when nothing is left to do."""

    def __init__(
        self,
        loop: Loop,
        plan: Plan,
        *,
        name: str,
        replica: Replica,
        token: str,
        quit_loop: Callable[[], None],
    ) -> None:
        self._loop, self._plan, self._name, self._replica = loop, plan, name, replica
        self._quit = quit_loop
        self._beats = Channel(loop, to=plan.meeting_point, token=token)
        self._reports = Channel(loop, to=plan.meeting_point, token=token)
        self._outbox: Deque[Dict[str, Any]] = deque()
        self._report_seq = 0
        self._reporting = False
        self._done_seq = 0
        self._misses = 0
        self._heard_at = 0.0
        self._joined = False
        self._gone = False
        self._join_until = 0.0
        self._dead_since: Optional[float] = None

    def start(self) -> None:
        """Join; the coordinator may not be there yet."""
        self._replica.report = self._report
        self._replica.on_leave = self._leave
        self._join_until = self._loop.now() + self._plan.limits.placement_s
        self._join()

    def terminated(self) -> None:
        """The agent itself was asked to end (SIGTERM): the gang may save first."""
        if not self._joined:
            self._leave("told to end")
            return
        self._report({"what": "leaving"})
        limits = self._plan.limits
        self._loop.call_later(limits.grace_s + limits.term_s, lambda: self._leave("told to end"))

    def _join(self) -> None:
        if self._gone:
            return
        body = {"v": 1, "replica": self._name, "pid": os.getpid()}
        timeout_s = self._plan.limits.silent_s
        self._beats.post(protocol.PATH_JOIN, body, timeout_s=timeout_s, done=self._join_answered)

    def _join_answered(self, status: int, document: Dict[str, Any]) -> None:
        if status == OK:
            self._joined, self._heard_at = True, self._loop.now()
            self._beat()
        elif status != 0:
            self._leave("the coordinator refuses: %s" % document.get("text"))
        elif self._loop.now() > self._join_until or not fence.is_open(self._plan.dir):
            self._leave("no coordinator was found, or the placement has been ended")
        elif self._coordinator_died():
            self._leave("the coordinator has died")
        else:
            self._loop.call_later(JOIN_RETRY_S, self._join)

    def _coordinator_died(self) -> bool:
        """Whether its lock has been there and free for as long as silence may last."""
        replica = self._plan.replica(self._plan.coordinator)
        if not (self._plan.local and fence.is_free(replica.dir)):
            self._dead_since = None
            return False
        now = self._loop.now()
        self._dead_since = self._dead_since or now
        return now - self._dead_since > self._plan.limits.silent_s

    def _beat(self) -> None:
        if self._gone:
            return
        body = {"v": 1, "replica": self._name, "done": self._done_seq, "rows": self._replica.rows()}
        left_s = self._heard_at + self._plan.limits.silent_s - self._loop.now()
        self._beats.post(
            protocol.PATH_BEAT, body, timeout_s=max(RETRY_S, left_s), done=self._beat_answered
        )

    def _beat_answered(self, status: int, document: Dict[str, Any]) -> None:
        if self._gone:
            return
        if status == OK:
            self._misses, self._heard_at = 0, self._loop.now()
            for command in document["commands"]:
                if command["seq"] > self._done_seq:
                    self._done_seq = command["seq"]
                    self._replica.handle(command)
            self._beat()
            return
        self._misses += 1
        silent = self._loop.now() - self._heard_at >= self._plan.limits.silent_s
        if status != 0 or silent or self._misses > QUICK_TRIES:
            self._lost("the coordinator is lost (%s)" % (document.get("text") or "no answer"))
        else:
            self._loop.call_later(RETRY_S, self._beat)

    def _report(self, report: Dict[str, Any]) -> None:
        self._report_seq += 1
        self._outbox.append(
            {"v": 1, "replica": self._name, "seq": self._report_seq, "report": report}
        )
        self._post_report()

    def _post_report(self) -> None:
        if self._reporting or self._gone or not self._outbox:
            return
        self._reporting = True
        self._reports.post(
            protocol.PATH_REPORT,
            self._outbox[0],
            timeout_s=self._plan.limits.silent_s,
            done=self._reported,
        )

    def _reported(self, status: int, _document: Dict[str, Any]) -> None:
        self._reporting = False
        if status == 0:  # the beats find out whether the coordinator is lost
            self._loop.call_later(RETRY_S, self._post_report)
            return
        self._outbox.popleft()
        self._post_report()

    def _leave(self, why: str) -> None:
        if self._gone:
            return
        log("leaving: %s" % why)
        self._gone = True
        self._replica.end_all(self._plan.limits.survivor_term_s, self._hang_up)

    def _lost(self, why: str) -> None:
        log(why)
        self._gone = True
        left = {"own", "others"}

        def done(part: str) -> None:
            left.discard(part)
            if not left:
                self._hang_up()

        self._replica.end_all(self._plan.limits.survivor_term_s, lambda: done("own"))
        others = [name for name in self._plan.names if name != self._name]
        if not self._plan.local:
            others = []
        find = ending.sweep(self._plan, others, kill_agents=False)

        def swept(_left: List[int]) -> None:
            done("others")

        ending.Ender(self._loop, find=find, term_s=0.0, done=swept)

    def _hang_up(self) -> None:
        self._beats.close()
        self._reports.close()
        self._quit()
