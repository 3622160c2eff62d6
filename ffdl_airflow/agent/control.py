"""The coordinator's paths: from an HTTP request to a call on the gang, and back."""

from typing import Any, Callable, Dict, Tuple

from . import launcher, protocol
from .gang import HOLD, LEAVE, Gang
from .plan import Plan, Process, ReplicaPlan
from .server import Connection
from .status import Asked
from .wire import Request, WireError

Route = Callable[[Request, Connection], None]

TAIL_MOST_BYTES = 1 << 20


class Control:
    """Routes requests; what a caller gets wrong is answered with 400 and the field's name."""

    def __init__(self, plan: Plan, gang: Gang) -> None:
        self._plan = plan
        self._gang = gang
        self._routes: Dict[Tuple[str, str], Route] = {
            ("GET", protocol.PATH_STATUS): self._status,
            ("GET", protocol.PATH_TAIL): self._tail,
            ("POST", protocol.PATH_GO): self._go,
            ("POST", protocol.PATH_SAVE): self._save,
            ("POST", protocol.PATH_STOP): self._stop,
            ("POST", protocol.PATH_RENEW): self._renew,
            ("POST", protocol.PATH_JOIN): self._join,
            ("POST", protocol.PATH_BEAT): lambda r, c: gang.roster.beat(r.body, c),
            ("POST", protocol.PATH_REPORT): lambda r, c: gang.roster.report(r.body, c),
        }

    def __call__(self, request: Request, connection: Connection) -> None:
        """Serve one request."""
        route = self._routes.get((request.method, request.path))
        if route is None:
            raise WireError(404, "there is no %s %s" % (request.method, request.path))
        try:
            route(request, connection)
        except (ValueError, TypeError) as error:
            raise WireError(400, str(error)) from error

    def _status(self, request: Request, connection: Connection) -> None:
        after = int(_number(request.query, "after", -1))
        wait_s = _number(request.query, "wait", 0)
        journal = int(_number(request.query, "journal", 0)) if "journal" in request.query else None
        self._gang.board.request(Asked(after, journal), wait_s, connection)

    def _tail(self, request: Request, connection: Connection) -> None:
        replica = self._plan.replica(request.query.get("replica", self._plan.coordinator))
        process = _process(replica, request.query)
        size = int(_number(request.query, "bytes", protocol.TAIL_BYTES))
        path = launcher.log_path(replica, process, self._gang.current_attempt())
        text = launcher.tail(path, max(0, min(size, TAIL_MOST_BYTES)))
        connection.respond(200, {"v": 1, "text": text})

    def _go(self, request: Request, connection: Connection) -> None:
        connection.respond(*self._gang.go(request.body))

    def _save(self, request: Request, connection: Connection) -> None:
        connection.respond(*self._gang.save(_why(request.body)))

    def _stop(self, request: Request, connection: Connection) -> None:
        mode = _choice(request.body, "mode", (protocol.STOP_NOW, protocol.STOP_SAVE))
        then = _choice(request.body, "then", (HOLD, LEAVE))
        connection.respond(*self._gang.stop(mode, _why(request.body), then=then))

    def _renew(self, request: Request, connection: Connection) -> None:
        hold_s = request.body.get("hold_s")
        if not isinstance(hold_s, (int, float)) or hold_s < 0:
            raise WireError(400, "hold_s: %r is not a number of seconds" % (hold_s,))
        connection.respond(*self._gang.renew(float(hold_s)))

    def _join(self, request: Request, connection: Connection) -> None:
        failed = request.body.get("failed")
        if failed is None:
            self._gang.roster.join(request.body, connection)
            return
        connection.respond(200, {"v": 1, "ok": True})
        self._gang.refused(str(request.body.get("replica")), str(failed))


def _why(body: Dict[str, Any]) -> str:
    return str(body.get("why") or "asked for, no reason given")


def _choice(body: Dict[str, Any], field: str, allowed: Tuple[str, str]) -> str:
    value = body.get(field, allowed[0])
    if value not in allowed:
        raise WireError(400, "%s: %r, allowed are %s" % (field, value, " and ".join(allowed)))
    return str(value)


def _number(query: Dict[str, str], field: str, default: float) -> float:
    try:
        return float(query.get(field, default))
    except ValueError:
        raise WireError(400, "%s: %r is not a number" % (field, query.get(field))) from None


def _process(replica: ReplicaPlan, query: Dict[str, str]) -> Process:
    """The process of that rank; the replica's first where none is asked for."""
    for process in replica.processes:
        if query.get("rank") in (None, str(process.rank)):
            return process
    message = "replica %s has no process of rank %s" % (replica.name, query.get("rank"))
    raise WireError(400, message)
