"""Port of an engine: five methods, idempotent, safe to call by two drivers at once.

Promised: a gang is placed whole or not at all; nothing is created for a placement that was ended;
:meth:`Engine.end` leaves no process of the placement, whatever these processes do; a call that is
repeated has no further effect. Undefined: how long a gang waits. May be refused: any call with
InfrastructureError, when the place where gangs run cannot be reached; then nothing is known to have
changed, and the caller asks again. Long work is never done here: ``reserve`` and ``end`` start it
and say what is still missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ffdl_airflow.core.observation import Inventory, Observation
from ffdl_airflow.core.plan import GangPlan


@dataclass(frozen=True)
class Granted:
    """The placement has its resources and its agents are on the way. ``slots`` on a local pool."""

    slots: tuple[int, ...] = ()


@dataclass(frozen=True)
class Waiting:
    """Nothing was created: what is missing and who holds it, in one sentence."""

    reason: str
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Over:
    """This placement was ended before; nothing is created for it any more."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The placement is gone. ``killed``: processes that had to be killed from outside."""

    killed: int = 0
    tails: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ending:
    """The placement is on its way out; ask again. ``what`` it is waiting for."""

    what: str


@dataclass(frozen=True, kw_only=True)
class EndRequest:
    """Why and how a placement goes: ``save`` asks for a checkpoint first, within ``grace_s``."""

    why: str
    mode: str = "now"
    grace_s: float = 30.0


class AgentRefused(Exception):
    """The gang has answered *no*. ``code`` is its reason code, for example ``stale-attempt``."""

    def __init__(self, code: str, detail: Mapping[str, Any]) -> None:
        super().__init__(f"the gang refuses: {code} {dict(detail)}")
        self.code = code
        self.detail = detail


class AgentAway(Exception):
    """The coordinator does not answer; whether it lives is told by ``observe``."""


class AgentClient(Protocol):
    """Control of a placed gang; one implementation for all engines, with other transports."""

    def status(self, *, after: int = -1, wait_s: float = 0.0) -> Mapping[str, Any]:
        """The coordinator's document; held open until it is newer than ``after``, at most 55 s."""
        ...

    def go(self, order: Mapping[str, Any]) -> None:
        """Start an attempt. Refused with ``stale-attempt``, ``not-holding`` or ``expired``."""
        ...

    def save(self, why: str) -> None:
        """Ask for a checkpoint."""
        ...

    def stop(self, *, mode: str, why: str, then: str) -> None:
        """End the running attempt, ``now`` or after a ``save``; ``then`` ``hold`` or ``leave``."""
        ...

    def renew(self, hold_s: float) -> None:
        """The hold counts from now."""
        ...


class Engine(Protocol):
    """See the module's docstring for what is promised."""

    def capacity(self) -> Inventory:
        """What there is, what is free, and who has the rest."""
        ...

    def reserve(self, plan: GangPlan) -> Granted | Waiting | Over:
        """See to it that the gang is placed."""
        ...

    def connect(self, placement_id: str) -> AgentClient:
        """Control of the gang. Does not fail for a gang that is away; its calls do."""
        ...

    def observe(self, placement_id: str, after: int) -> Observation:
        """One look: presence, status, and the journal's entries after ``after``."""
        ...

    def end(self, placement_id: str, request: EndRequest) -> Evidence | Ending:
        """See to it that nothing of the placement is left."""
        ...


@runtime_checkable
class SupportsRender(Protocol):
    """An engine that can show what it would create, without creating it."""

    def render(self, plan: GangPlan) -> Sequence[Mapping[str, Any]]:
        """Plain documents."""
        ...


@runtime_checkable
class SupportsTail(Protocol):
    """An engine that can read the logs of ranks also when the gang is gone."""

    def log_paths(self, job_id: str) -> Mapping[tuple[int, int, int], str]:
        """(placement, attempt, rank) → path of the log on this host."""
        ...


@runtime_checkable
class SupportsPlacements(Protocol):
    """An engine that can list what exists, for the reaper."""

    def placements(self) -> Sequence[str]:
        """Ids of all placements of which something is left: agents, processes or slots."""
        ...
