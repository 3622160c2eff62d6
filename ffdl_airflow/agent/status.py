"""The status document and those who wait for a newer one.

One small document, whatever the size of the gang. Its number grows with every change of state and
at most once a heartbeat with figures; a request waits until the number is past the one it has. Who
reads from afar asks for the journal instead: such a request waits for an entry that is younger than
those it knows, and the document brings the new ones along.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from . import protocol
from .detect import RankView
from .journal import Journal
from .loop import Loop, Timer
from .server import Connection

Document = Dict[str, Any]

PUBLIC_KEYS = (
    "rank", "local_rank", "pid", "state", "exit", "signal", "connected", "step", "doing",
    "cpu_percent", "rss_bytes", "gpu_percent", "gpus", "last_line", "at",
)  # fmt: skip


class Asked(NamedTuple):
    """What a caller knows already: a number of the document, or one of the journal."""

    after: int
    journal: Optional[int]


class Waiting(NamedTuple):
    """A request that is held open."""

    asked: Asked
    connection: Connection
    timer: Timer


class StatusBoard:
    """Numbers the documents that ``build`` makes and answers long-polls."""

    def __init__(self, loop: Loop, build: Callable[[], Document], journal: Journal) -> None:
        self._loop = loop
        self._build = build
        self._journal = journal
        self._waiting: List[Waiting] = []
        self._callers: Set[Connection] = set()
        self.seq = 0

    def document(self, asked: Asked) -> Document:
        """The newest document, with the entries of the journal that the caller asks for."""
        document = dict(self._build(), v=protocol.VERSION, seq=self.seq)
        if asked.journal is not None:
            document["journal"] = self._journal.after(asked.journal)
        return document

    def publish(self) -> None:
        """Something has changed: give the document a new number and answer who waits."""
        self.seq += 1
        served = [entry for entry in self._waiting if self._has_news(entry.asked)]
        self._waiting = [entry for entry in self._waiting if entry not in served]
        for entry in served:
            entry.timer.cancel()
            entry.connection.respond(200, self.document(entry.asked))

    def request(self, asked: Asked, wait_s: float, connection: Connection) -> None:
        """Answer now where there is news, else when there is or when ``wait_s`` is over."""
        wait_s = min(max(0.0, wait_s), protocol.LONG_POLL_S)
        if self._has_news(asked) or wait_s == 0.0:
            connection.respond(200, self.document(asked))
            return

        def late() -> None:
            self._drop(connection)
            connection.respond(200, self.document(asked))

        self._waiting.append(Waiting(asked, connection, self._loop.call_later(wait_s, late)))
        if connection not in self._callers:
            self._callers.add(connection)
            connection.when_closed(lambda: self._forget(connection))

    def _forget(self, connection: Connection) -> None:
        self._callers.discard(connection)
        for entry in self._waiting:
            if entry.connection is connection:
                entry.timer.cancel()
        self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._waiting = [entry for entry in self._waiting if entry.connection is not connection]

    def _has_news(self, asked: Asked) -> bool:
        if asked.journal is None:
            return self.seq > asked.after
        return self._journal.durable_seq > asked.journal


def figures(views: List[RankView]) -> Document:
    """What the ranks' rows say together: the newest step, the metrics of that step, the rows.

    ``last_metrics`` has what is known of older steps only: ``{name: {"value", "step"}}``.
    """
    views = sorted(views, key=_place)
    rows = [view.row for view in views]
    stepped = [row for row in rows if row["step"] is not None]
    newest = max(stepped, key=lambda row: row["step"]) if stepped else None
    step = newest["step"] if newest else None
    ranks = [
        dict({key: view.row.get(key) for key in PUBLIC_KEYS}, replica=view.replica)
        for view in views
    ]
    latest = _latest(rows)
    return {
        "step": step,
        "step_at": newest["step_at"] if newest else None,
        "metrics": {name: m["value"] for name, m in latest.items() if m["step"] == step},
        "last_metrics": {name: m for name, m in latest.items() if m["step"] != step},
        "samples_per_s": _total([row["samples_per_s"] for row in rows]),
        "ranks": ranks,
    }


def _place(view: RankView) -> Tuple[bool, int, str, int]:
    """By rank; those without one come last, by replica."""
    rank = view.row["rank"]
    return rank is None, rank or 0, view.replica, view.row["local_rank"]


def _latest(rows: List[Dict[str, Any]]) -> Dict[str, Dict[str, Any]]:
    """Each metric of its newest step; where several ranks have that, the lowest rank counts."""
    found: Dict[str, Dict[str, Any]] = {}
    for row in rows:
        for name, value in row["metrics"].items():
            step = row["metric_steps"].get(name)
            if name not in found or (step or 0) > (found[name]["step"] or 0):
                found[name] = {"value": value, "step": step}
    return found


def _total(parts: List[Optional[float]]) -> Optional[float]:
    known = [part for part in parts if part is not None]
    return round(sum(known), 3) if known else None
