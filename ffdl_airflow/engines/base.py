"""Port of an engine: five methods, idempotent, safe to call by two drivers at once.

A *placement* is a gang that holds its resources: one agent for each replica, alive, waiting or
running. Its id is ``<job id>/<number>``; a driver uses a number once, and the engine never again.
How an engine is written and set: ``docs/engines.md``.

Promised, and tried by ``testing/contracts/engine.py`` on every engine:

- A gang is placed whole or not at all, and of two drivers that ask at once both get the same one.
- A name that was ended is closed for good, also when nothing had been made under it: a driver that
  slept between its intent and its act creates nothing.
- :meth:`Engine.end` leaves no process of the placement, whatever these processes do, and nothing of
  another placement or another installation is touched.
- A gang that is not renewed leaves when its hold ends, a gang that lost its agents is gone; in both
  cases the resources go to whoever reserves next, without a word from the gang's driver.
- What a gang has written to its journal is observed, in order and with one dedupe key for each
  entry, also when the gang is gone.
- A call that is repeated has no further effect.

Undefined: how long a gang waits, in which order those of equal rank come, and whether a gang that
has left or was lost is placed anew when it is reserved again, or Over. May be refused: any
call with InfrastructureError, when the place where gangs run cannot be reached; then nothing is
known to have changed, and the caller asks again. Long work is never done here: ``reserve`` and
``end`` start it and say what is still missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ffdl_airflow.agent.detached import Runner
from ffdl_airflow.core.errors import FieldProblem
from ffdl_airflow.core.findings import Finding
from ffdl_airflow.core.job import TrainingJob
from ffdl_airflow.core.observation import Inventory, Observation
from ffdl_airflow.core.plan import GangPlan


@dataclass(frozen=True)
class Granted:
    """The placement has its resources and its agents are on the way. ``slots`` on a local pool.

    Whether they have all come is told by ``observe``: the facts Placed, then Reserved.
    """

    slots: tuple[int, ...] = ()


@dataclass(frozen=True)
class Waiting:
    """The gang is not placed: what is missing and which placements hold it, in one sentence.

    What was created on the way holds nothing that another gang could have. A reason that changes
    is an event, so figures that change all the time are rounded in it, or are only in ``detail``.
    ``again_s``: asked sooner, the answer would be the same.
    """

    reason: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    again_s: float = 0.2


@dataclass(frozen=True)
class Over:
    """This placement was ended before; nothing is created for it any more."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The placement is gone. ``killed``: processes that had to be killed from outside.

    ``abandoned``: replica → host that does not answer, so that nobody has seen its processes end.
    They end by themselves, and cannot seal a checkpoint once the next attempt has begun.
    """

    killed: int = 0
    abandoned: Mapping[str, str] = field(default_factory=dict)


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
    """The gang has answered *no*; nothing has changed. ``code`` is its reason, one word."""

    def __init__(self, code: str, detail: Mapping[str, Any]) -> None:
        super().__init__(f"the gang refuses: {code} {dict(detail)}")
        self.code = code
        self.detail = detail


class AgentAway(Exception):
    """The coordinator does not answer; whether it lives is told by ``observe``."""


class AgentClient(Protocol):
    """Control of a placed gang; one implementation for all engines, with other transports."""

    def status(self, *, after: int = -1, wait_s: float = 0.0) -> Mapping[str, Any]:
        """The coordinator's document, at least ``seq``, ``state`` (agent/protocol.py), ``attempt``.

        ``seq`` only grows. Held open until it is above ``after``, at most ``wait_s`` or 55 s.
        """
        ...

    def go(self, order: Mapping[str, Any]) -> None:
        """Start an attempt.

        ``order`` has ``attempt``, ``resume_from``, ``resume_step``, ``time_left_s``, ``env``. The
        number that was given before is answered as before. Refused with ``stale-attempt`` (a
        newer one was given), ``not-holding`` (one runs, or the gang is not complete yet) or
        ``expired`` (the gang leaves).
        """
        ...

    def save(self, why: str) -> None:
        """Ask for a checkpoint. Refused with ``not-running``."""
        ...

    def stop(self, *, mode: str, why: str, then: str) -> None:
        """End the running attempt, ``now`` or after a ``save``; ``then`` ``hold`` or ``leave``.

        Answered at once. With ``hold`` the place is kept and the next attempt may be started on it.
        """
        ...

    def renew(self, hold_s: float) -> None:
        """The hold counts from now."""
        ...


class Engine(Protocol):
    """See the module's docstring for what is promised."""

    def capacity(self) -> Inventory:
        """What there is, what is free, and who has the rest.

        A gang that left by itself may be counted until somebody reserves or ends it.
        """
        ...

    def reserve(self, plan: GangPlan) -> Granted | Waiting | Over:
        """See to it that the gang is placed: the same answer however often it is asked for.

        Who comes after a driver that died on the way goes on from there: agents that were not
        started are started now.
        """
        ...

    def connect(self, placement_id: str) -> AgentClient:
        """Control of the gang. Does not fail for a gang that is away; its calls do."""
        ...

    def observe(self, placement_id: str, after: int) -> Observation:
        """One look: presence, status, and the journal's entries whose number is above ``after``.

        ABSENT: never made and never ended. ALIVE: its coordinator lives, from the moment in which
        its agent is started. GONE: it does not, and what may be left of the others is leaving. The
        status is None where nobody answers, which by itself does not mean GONE.
        ``core/observation.py:with_journal`` turns entries into facts.
        """
        ...

    def end(self, placement_id: str, request: EndRequest) -> Evidence | Ending:
        """Close the name for good, and see to it that nothing of the placement is left.

        Asked again until it is Evidence. What ran is told to stop first, as the request says, so
        that its last words are in the journal; what does not listen is killed.
        """
        ...


@runtime_checkable
class SupportsCheck(Protocol):
    """An engine with demands of its own; without it a job has to fit the slots of one host."""

    def check(self, job: TrainingJob) -> Sequence[FieldProblem]:
        """What of the job it cannot serve, before anything is created."""
        ...


@runtime_checkable
class SupportsHosts(Protocol):
    """An engine whose replicas have addresses of their own.

    Without it all of them are on the host of their driver, are seen from there only, and see all
    that it sees. With it they see what lies below the checkpoints, the cache and the models.
    """

    def host(self, placement_id: str) -> str:
        """Address of a replica for the others of its gang; ``{replica}`` stands for its name."""
        ...


@runtime_checkable
class SupportsMover(Protocol):
    """An engine that can do data work near the data; without it the driver's host does it."""

    def mover(self, folders: Sequence[str]) -> Runner | None:
        """Where to run what reads and writes these folders; None: on the driver's host."""
        ...


@runtime_checkable
class SupportsRender(Protocol):
    """An engine that can show what it would create, without creating it."""

    def render(self, plan: GangPlan) -> Sequence[Mapping[str, Any]]:
        """Plain documents."""
        ...


@runtime_checkable
class SupportsDoctor(Protocol):
    """An engine that can look whether what it runs on is fit for it."""

    def examine(self, folders: Mapping[str, str], *, image: str | None) -> Sequence[Finding]:
        """What was found, in the order in which it should be mended. Raises nothing of ours.

        ``folders``: setting → folder of this host that gangs have to see too. With ``image`` a
        gang of one is tried with it, and taken back; else nothing is created.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ProcessLog:
    """What one process of one attempt has printed: a file on this host.

    ``rank`` None: it has none (parameter server, evaluator, launcher). ``label`` tells it from the
    others of its attempt: the rank as text, else the name of the process.
    """

    placement: int
    attempt: int
    replica: str
    rank: int | None
    label: str
    path: str


@runtime_checkable
class SupportsTail(Protocol):
    """An engine that can read the logs of processes also when the gang is gone."""

    def logs(self, job_id: str) -> Sequence[ProcessLog]:
        """Logs that are on this host: by placement and attempt, ranks first, in their order."""
        ...


@runtime_checkable
class SupportsPlacements(Protocol):
    """An engine that can list what exists, for the reaper."""

    def placements(self) -> Sequence[str]:
        """Ids of all placements of which something is left: agents, processes or slots."""
        ...
