"""The coordinator's list of agents: who has joined, who lives, and what each is to be told.

A follower holds a *beat* open here. It is answered at once when there is a command for it, else
after a heartbeat; the follower sends the next one with its newest figures. The end of that
connection, or silence, means that the agent is lost.
"""

from typing import Any, Callable, Dict, List, Optional, Set

from .log import log
from .loop import Loop, Timer
from .plan import Plan
from .server import Connection

RECONNECT_S = 0.4
"""How long an agent whose connection broke may take to come back. Chosen: it needs milliseconds."""

Command = Dict[str, Any]


class Seat:
    """One replica's agent as the coordinator sees it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.joined = False
        self.lost = False
        self.rows: List[Dict[str, Any]] = []
        self.rows_at = 0.0
        self.seen_at = 0.0
        self.report_seq = 0
        self.command_seq = 0
        self.commands: List[Command] = []
        self.connection: Optional[Connection] = None
        self.held: Optional[Connection] = None
        self.timer: Optional[Timer] = None


class Roster:
    """All seats. ``local`` takes the commands of the coordinator's own replica."""

    def __init__(self, loop: Loop, plan: Plan, *, local: Callable[[Command], None]) -> None:
        self._loop = loop
        self._plan = plan
        self._local = local
        self.seats = {name: Seat(name) for name in plan.names}
        self.on_joined: Callable[[str], None] = lambda _name: None
        self.on_report: Callable[[str, Command], None] = lambda _name, _report: None
        self.on_lost: Callable[[str, str], None] = lambda _name, _why: None
        self.on_gone: Callable[[], None] = lambda: None

    @property
    def joined(self) -> List[str]:
        """Names of the agents that have joined and are not lost."""
        return [seat.name for seat in self.seats.values() if seat.joined and not seat.lost]

    @property
    def living(self) -> Set[str]:
        """The same as a set to be worked off."""
        return set(self.joined)

    @property
    def connected(self) -> List[str]:
        """Followers whose connection stands."""
        return [seat.name for seat in self.seats.values() if seat.connection is not None]

    def join_local(self) -> None:
        """The coordinator's own replica takes its seat."""
        self._join(self.seats[self._plan.coordinator])

    def send(self, name: str, command: Command) -> None:
        """Tell one agent something; it gets commands in order, each once."""
        seat = self.seats[name]
        if seat.lost or not seat.joined:
            return
        if name == self._plan.coordinator:
            self._loop.soon(lambda: self._local(command))
            return
        seat.command_seq += 1
        seat.commands.append(dict(command, seq=seat.command_seq))
        self._answer(seat)

    def broadcast(self, command: Command) -> None:
        """Tell all agents that live."""
        for name in self.joined:
            self.send(name, command)

    def local_report(self, report: Command) -> None:
        """News of the coordinator's own replica."""
        self._loop.soon(lambda: self._deliver(self.seats[self._plan.coordinator], report))

    def rows_of(self, name: str, rows: List[Dict[str, Any]]) -> None:
        """Newest figures of a replica."""
        seat = self.seats[name]
        seat.rows, seat.rows_at = rows, self._loop.now()

    def forget_rows(self) -> None:
        """A new attempt starts: what was known of ranks is of the old one."""
        for seat in self.seats.values():
            seat.rows = []

    def join(self, body: Command, connection: Connection) -> None:
        """A follower's first request."""
        seat = self._seat(body, connection)
        if seat is None:
            return
        if seat.joined or seat.name == self._plan.coordinator:
            text = "replica %s has joined already" % seat.name
            connection.respond(409, {"v": 1, "error": "joined-already", "text": text})
            return
        self._touch(seat, connection)
        connection.respond(200, {"v": 1, "ok": True})
        self._join(seat)

    def beat(self, body: Command, connection: Connection) -> None:
        """A follower's figures; the answer carries its commands."""
        seat = self._seat(body, connection)
        if seat is None:
            return
        self._touch(seat, connection)
        self.rows_of(seat.name, list(body.get("rows") or []))
        done = int(body.get("done", 0))
        seat.commands = [command for command in seat.commands if command["seq"] > done]
        seat.held = connection
        seat.timer = self._loop.call_later(
            self._plan.limits.heartbeat_s, lambda: self._answer(seat, idle=True)
        )
        self._answer(seat)

    def report(self, body: Command, connection: Connection) -> None:
        """News of a follower, in order; what was told already is only acknowledged."""
        seat = self._seat(body, connection)
        if seat is None:
            return
        seat.seen_at = self._loop.now()
        number = int(body["seq"])
        connection.respond(200, {"v": 1, "ok": True})
        if number > seat.report_seq:
            seat.report_seq = number
            self._deliver(seat, dict(body["report"]))

    def check(self) -> None:
        """Find agents that have been silent for too long; to be called each heartbeat."""
        silent_s = self._plan.limits.silent_s
        for seat in self.seats.values():
            quiet = self._loop.now() - seat.seen_at
            if seat.name != self._plan.coordinator and seat.joined and quiet > silent_s:
                self._lose(seat, "was silent for %.1f s" % quiet)

    def lose(self, name: str, why: str) -> None:
        """An agent has said of itself that it cannot go on."""
        self._lose(self.seats[name], why)

    def _deliver(self, seat: Seat, report: Command) -> None:
        row = report.get("row")
        if row is not None:
            local = row["local_rank"]
            seat.rows = [old for old in seat.rows if old["local_rank"] != local] + [row]
            seat.rows_at = self._loop.now()
        self.on_report(seat.name, report)

    def _seat(self, body: Command, connection: Connection) -> Optional[Seat]:
        seat = self.seats.get(str(body.get("replica")))
        if seat is None or seat.lost:
            text = "replica %r has no seat here" % body.get("replica")
            connection.respond(410, {"v": 1, "error": "no-seat", "text": text})
            return None
        return seat

    def _join(self, seat: Seat) -> None:
        seat.joined = True
        seat.seen_at = self._loop.now()
        log("%s has joined" % seat.name)
        self.on_joined(seat.name)

    def _touch(self, seat: Seat, connection: Connection) -> None:
        seat.seen_at = self._loop.now()
        if seat.connection is not connection:
            seat.connection = connection
            connection.when_closed(lambda: self._closed(seat, connection))

    def _closed(self, seat: Seat, connection: Connection) -> None:
        if seat.connection is not connection:
            return
        seat.connection = seat.held = None
        closed_at = self._loop.now()

        def judge() -> None:
            if seat.connection is None and seat.seen_at <= closed_at:
                self._lose(seat, "has closed its connection")

        self._loop.call_later(RECONNECT_S, judge)
        self.on_gone()

    def _lose(self, seat: Seat, why: str) -> None:
        if not seat.lost:
            seat.lost = True
            log("the agent of %s %s" % (seat.name, why))
            self.on_lost(seat.name, why)

    def _answer(self, seat: Seat, *, idle: bool = False) -> None:
        if seat.held is None or not (seat.commands or idle):
            return
        held, seat.held = seat.held, None
        if seat.timer is not None:
            seat.timer.cancel()
        held.respond(200, {"v": 1, "commands": seat.commands})
