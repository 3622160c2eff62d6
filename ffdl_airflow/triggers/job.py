"""The one trigger that drives: advances a job in threads of its own and waits in the event loop.

For: everything between ``defer`` and the task's return, and the stop of a job whose task a person
has taken away. It never raises: what goes wrong becomes the event, because Airflow answers a
raising trigger with a failure that skips our code (tried).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from ffdl_airflow.core.errors import FfdlError
from ffdl_airflow.core.events import parse_iso
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.hooks.ffdl import FfdlHook
from ffdl_airflow.hooks.standing import TaskRef, run_is_missing, stops_job, task_state
from ffdl_airflow.stages import wishes
from ffdl_airflow.stages.advance import Done, Driver, Ended, Outcome, Restarting, Waits
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.drive import FAULTS
from ffdl_airflow.stages.submit import require_ledger
from ffdl_airflow.triggers.narration import Narration
from ffdl_airflow.triggers.threads import KILLS, dwell_s, in_thread

_LOOK_S = 1.0
"""Longest wait between two looks. Chosen: an end is seen within it."""
_STOP_LOOK_S = 0.1
"""Wait between two looks at a gang that is being stopped. Chosen."""
_STOPS: set[asyncio.Task[None]] = set()
"""Stops under way. Airflow cancels ``on_kill`` after about 1 s; these tasks go on (tried)."""


@dataclass(frozen=True, kw_only=True)
class Payload:
    """What the trigger tells the task, parsed before anything is decided on it."""

    kind: str  # done, ended, restarting, timeout, error
    verdict: Mapping[str, Any]
    delay_s: float = 0.0
    text: str = ""
    told: int = 0
    retryable: bool = True
    deadline: str | None = None

    def document(self) -> dict[str, Any]:
        """Plain data for the event."""
        return {"v": 1, **asdict(self), "verdict": dict(self.verdict)}

    @classmethod
    def parse(cls, event: Any) -> "Payload":
        """From the event; raises ValueError for one that is not ours."""
        if not isinstance(event, dict) or event.get("v") != 1 or "kind" not in event:
            raise ValueError(f"the trigger's event is not ours: {event!r}")
        return cls(
            kind=event["kind"],
            verdict=dict(event.get("verdict") or {}),
            delay_s=float(event.get("delay_s", 0)),
            text=str(event.get("text", "")),
            told=int(event.get("told", 0)),
            retryable=bool(event.get("retryable", True)),
            deadline=event.get("deadline"),
        )


@dataclass(frozen=True, kw_only=True)
class Mandate:
    """What a try gives its trigger to act on.

    ``give_back``: whether a restart that costs ends the try. ``clears``: clears of the job that the
    try knows of; a stop after a newer one has no effect. ``told``: number of the last event that
    the task's log has already. ``deadline``: when ``execution_timeout`` is over, ISO 8601 or None.
    """

    give_back: bool
    clears: int
    told: int
    deadline: str | None


class TrainingJobTrigger(BaseTrigger):
    """Drive a job until it has reached a goal or cannot reach it any more.

    :param job_id: the job
    :param goal: name of a :class:`~ffdl_airflow.core.goal.Goal`
    :param ffdl_conn_id: connection; nothing secret travels in the trigger's arguments
    :param engine: engine by name, or None
    :param ledger: id and host of the ledger that the job is in; another one is refused
    :param mandate: a :class:`Mandate`, or its fields as a mapping
    """

    def __init__(self, *, job_id: str, goal: str, ffdl_conn_id: str, engine: str | None,
                 ledger: Mapping[str, str], mandate: Mandate | Mapping[str, Any],
                 ) -> None:  # fmt: skip
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's own
        self.job_id = job_id
        self.goal = goal
        self.ffdl_conn_id = ffdl_conn_id
        self.engine = engine
        self.ledger = dict(ledger)
        self.mandate = mandate if isinstance(mandate, Mandate) else Mandate(**mandate)
        self._deps: Deps | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class and arguments, from which the triggerer makes it anew."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"job_id": self.job_id, "goal": self.goal, "ffdl_conn_id": self.ffdl_conn_id,
             "engine": self.engine, "ledger": self.ledger, "mandate": asdict(self.mandate)},
        )  # fmt: skip

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Advance and wait, until there is something to tell."""
        began = time.monotonic()
        try:
            payload = await self._wait()
        except FfdlError as error:
            payload = Payload(kind="error", verdict={}, text=error.message,
                              retryable=error.retryable)  # fmt: skip
        except Exception as error:
            self.log.exception("job %s", self.job_id)
            payload = Payload(kind="error", verdict={}, text=f"{type(error).__name__}: {error}")
        await asyncio.sleep(max(0.0, dwell_s() - (time.monotonic() - began)))
        payload = replace(payload, deadline=self.mandate.deadline)
        yield TriggerEvent(payload.document())

    async def on_kill(self) -> None:
        """Stop the job where a person has taken the task away; nothing where the task still waits.

        Airflow calls this also for a trigger that another triggerer has taken over, and cuts it
        off after about a second (tried): so the state of the task decides, the first step is a
        wish in the ledger, and the rest goes on by itself.
        """
        stop = asyncio.create_task(self._stop_if_taken())
        _STOPS.add(stop)
        stop.add_done_callback(_STOPS.discard)
        await asyncio.shield(stop)

    async def _wait(self) -> Payload:
        deps = await in_thread(self._ready)
        narration = Narration(self.log, told=self.mandate.told)
        driver = Driver(deps, self.job_id, on_event=narration)
        faults, over = 0, False
        while True:
            if not over and self._is_over(deps):
                over = True
                await in_thread(lambda: self._wish(deps, mode="save", why=self._timeout_text()))
            try:
                outcome = await in_thread(
                    lambda: driver.advance(Goal(self.goal), give_back=self.mandate.give_back)
                )
                faults = 0
            except FfdlError as error:
                faults += 1
                if not error.retryable or faults >= FAULTS:
                    raise
                self.log.warning("job %s: %s", self.job_id, error.message)
                await asyncio.sleep(_LOOK_S * faults)
                continue
            if not isinstance(outcome, Waits):
                return payload_of(outcome, told=narration.told, timeout=over)
            await asyncio.sleep(min(outcome.wait.at_most_s, _LOOK_S))

    def _ready(self) -> Deps:
        """What drives, and one question to Airflow.

        A triggerer's first question takes seconds (tried: 4.8 s), and a kill has none to lose.
        """
        try:
            self._state()
        except Exception as error:  # noqa: BLE001 - `dag.test` has nobody who could be asked
            self.log.debug("Airflow cannot be asked for the task's state: %s", error)
        return self._adapters()

    def _adapters(self) -> Deps:
        if self._deps is None:
            deps = FfdlHook(self.ffdl_conn_id, engine=self.engine).deps({"trigger": True})
            require_ledger(deps, self.ledger)
            self._deps = deps
        return self._deps

    def _state(self) -> str | None:
        return task_state(TaskRef.of(self.task_instance))

    def _is_over(self, deps: Deps) -> bool:
        deadline = self.mandate.deadline
        return deadline is not None and deps.clock() >= parse_iso(deadline)

    def _timeout_text(self) -> str:
        return f"execution_timeout of the task is over ({self.mandate.deadline})"

    def _wish(self, deps: Deps, *, mode: str, why: str) -> None:
        clears = self.mandate.clears
        wishes.stop(deps, self.job_id, mode=mode, by="airflow", why=why, clears=clears)

    async def _stop_if_taken(self) -> None:
        try:
            deps = await in_thread(self._first_step, pool=KILLS)
            if deps is not None:
                await self._stop(deps)
        except Exception:
            self.log.exception("job %s: the stop did not come to its end", self.job_id)

    def _first_step(self) -> Deps | None:
        """Wish the stop; None where the task is still wanted or cannot be told."""
        try:
            state = self._state()
            if state is None and run_is_missing(TaskRef.of(self.task_instance)):
                state = "removed"
        except Exception as error:  # noqa: BLE001 - what cannot be read is not gone
            self.log.warning("job %s goes on: the task's state is unknown (%s)", self.job_id, error)
            return None
        if not stops_job(state, Goal(self.goal)):
            self.log.info("job %s goes on: its task is %s", self.job_id, state or "cleared")
            return None
        deps = self._adapters()
        self._wish(deps, mode="now", why=f"the task was marked {state}")
        return deps

    async def _stop(self, deps: Deps) -> None:
        """Drive the job to its end: what was wished is done also where nobody else drives.

        After a clear the wish has no effect, and the job is the next try's.
        """
        driver = Driver(deps, self.job_id)
        outcome: Outcome | None = None
        while outcome is None or isinstance(outcome, Waits):
            outcome = await in_thread(lambda: driver.advance(Goal(self.goal)))
            if outcome.state.clears > self.mandate.clears:
                return
            await asyncio.sleep(_STOP_LOOK_S)


def payload_of(outcome: Outcome, *, told: int = 0, timeout: bool = False) -> Payload:
    """What an outcome is told as."""
    if isinstance(outcome, Restarting):
        return Payload(kind="restarting", verdict=dict(outcome.verdict), delay_s=outcome.delay_s,
                       told=told)  # fmt: skip
    if isinstance(outcome, Done):
        return Payload(kind="done", verdict={}, told=told)
    if isinstance(outcome, Ended):
        kind = "timeout" if timeout else "ended"
        return Payload(kind=kind, verdict=dict(outcome.state.verdict or {}), told=told,
                       text=outcome.state.reason)  # fmt: skip
    raise AssertionError(outcome)  # pragma: no cover - a wait is never told
