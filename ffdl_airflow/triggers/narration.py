"""A job told in a task's log while it goes on: a line an event, and the first failing rank's tail.

The events are few by themselves (a summary of the progress comes once a minute at most), so nothing
is held back here.
"""

import logging
from typing import Any

from ffdl_airflow.agent.protocol import who
from ffdl_airflow.core.events import Event, Kind
from ffdl_airflow.report import event_text

TAIL_LINES = 20
"""Lines of a failing rank's log that are repeated in the task log. Chosen."""
_WARNINGS = frozenset({
    Kind.REFUSED, Kind.PREFETCH_FAILED, Kind.CHECKPOINT_REFUSED, Kind.VERDICT,
    Kind.WATCHDOG_WARNED, Kind.DEADLINE_MISSED, Kind.HOLD_EXPIRED, Kind.FAILED, Kind.STOPPED,
})  # fmt: skip


class Narration:
    """Writes events with a number above ``told`` to a log.

    :param log: any logger; an Airflow task's or trigger's
    :param told: number of the last event that somebody has told already
    """

    def __init__(self, log: Any, *, told: int = 0) -> None:
        self._log = log
        self.told = told

    def __call__(self, event: Event) -> None:
        """Tell one event, where it has not been told."""
        if event.seq <= self.told:
            return
        self.told = event.seq
        failed = event.kind is Kind.ATTEMPT_ENDED and not event.body.get("ok")
        level = logging.WARNING if failed or event.kind in _WARNINGS else logging.INFO
        text = event_text(event)
        attempt = f" (attempt {event.attempt})" if event.attempt else ""
        self._log.log(level, "%s%s%s", event.kind.value, attempt, f": {text}" if text else "")
        if failed:
            self._tail(event)

    def _tail(self, event: Event) -> None:
        lines = str(event.body.get("tail") or "").splitlines()[-TAIL_LINES:]
        if not lines:
            return
        cause = event.body.get("cause") or {}
        whose = who(cause.get("replica"), cause.get("rank"))
        self._log.warning("the last lines of %s:\n%s", whose, "\n".join(lines))
