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
    """What the ranks' rows say together: newest step, the metrics that came with it, the rows."""
    stepped = [view.row for view in views if view.row["step"] is not None]
    newest = max(stepped, key=lambda row: row["step"]) if stepped else None
    ranks = [
        dict({key: view.row.get(key) for key in PUBLIC_KEYS}, replica=view.replica)
        for view in views
    ]
    return {
        "step": newest["step"] if newest else None,
        "step_at": newest["step_at"] if newest else None,
        "metrics": _metrics(views),
        "samples_per_s": _total([view.row["samples_per_s"] for view in views]),
        "ranks": sorted(ranks, key=lambda row: row["rank"]),
    }


def _metrics(views: List[RankView]) -> Dict[str, Any]:
    """Metrics of all ranks; where several report one, that of the lowest rank counts."""
    found: Dict[str, Any] = {}
    for view in sorted(views, key=lambda view: view.row["rank"], reverse=True):
        found.update(view.row["metrics"])
    return found


def _total(parts: List[Optional[float]]) -> Optional[float]:
    known = [part for part in parts if part is not None]
    return round(sum(known), 3) if known else None
