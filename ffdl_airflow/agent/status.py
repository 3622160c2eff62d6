"""The status document and those who wait for a newer one.

One small document, whatever the size of the gang. Its number grows with every change of state and
at most once a heartbeat with figures; a request waits until the number is past the one it has.
"""

from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from . import protocol
from .detect import RankView
from .loop import Loop, Timer
from .server import Connection

Document = Dict[str, Any]

PUBLIC_KEYS = (
    "rank", "pid", "state", "exit", "signal", "connected", "step", "doing", "cpu_percent",
    "rss_bytes", "gpu_percent", "last_line", "at",
)  # fmt: skip


class StatusBoard:
    """Numbers the documents that ``build`` makes and answers long-polls."""

    def __init__(self, loop: Loop, build: Callable[[], Document]) -> None:
        self._loop = loop
        self._build = build
        self._waiting: List[Tuple[int, Connection, Timer]] = []
        self._callers: Set[Connection] = set()
        self.seq = 0

    def document(self) -> Document:
        """The newest document."""
        return dict(self._build(), v=protocol.VERSION, seq=self.seq)

    def publish(self) -> None:
        """Something has changed: give the document a new number and answer who waits."""
        self.seq += 1
        waiting, self._waiting = self._waiting, []
        if waiting:
            document = self.document()
            for _, connection, timer in waiting:
                timer.cancel()
                connection.respond(200, document)

    def request(self, after: int, wait_s: float, connection: Connection) -> None:
        """Answer now where there is news, else when there is or when ``wait_s`` is over."""
        wait_s = min(max(0.0, wait_s), protocol.LONG_POLL_S)
        if self.seq > after or wait_s == 0.0:
            connection.respond(200, self.document())
            return

        def late() -> None:
            self._waiting = [entry for entry in self._waiting if entry[1] is not connection]
            connection.respond(200, self.document())

        self._waiting.append((after, connection, self._loop.call_later(wait_s, late)))
        if connection not in self._callers:
            self._callers.add(connection)
            connection.when_closed(lambda: self._forget(connection))

    def _forget(self, connection: Connection) -> None:
        self._callers.discard(connection)
        for _, _, timer in [entry for entry in self._waiting if entry[1] is connection]:
            timer.cancel()
        self._waiting = [entry for entry in self._waiting if entry[1] is not connection]


def figures(views: List[RankView]) -> Document:
    """What the ranks' rows say together: the newest step, the metrics of that step, the rows.

    ``last_metrics`` has what is known of older steps only: ``{name: {"value", "step"}}``.
    """
    rows = sorted((view.row for view in views), key=lambda row: row["rank"])
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
        "ranks": sorted(ranks, key=lambda row: row["rank"]),
    }


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
