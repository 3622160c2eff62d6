"""Triggers of the sensors: they look at a job now and then, and never act.

They never raise, as the one that drives (``job.py``). Not for: driving; whoever only looks must not
change what a job does.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from ffdl_airflow.core import utilization
from ffdl_airflow.core.errors import FfdlError
from ffdl_airflow.core.events import Event, Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import JobState, Phase
from ffdl_airflow.core.next_step import reached
from ffdl_airflow.hooks.ffdl import FfdlHook
from ffdl_airflow.hooks.standing import TAKEN, TaskRef, task_state
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.drive import FAULTS
from ffdl_airflow.stages.look import Address, Glance, Reader, find_job
from ffdl_airflow.stages.submit import require_ledger
from ffdl_airflow.triggers.narration import Narration
from ffdl_airflow.triggers.threads import dwell_s, in_thread

FIGURES_S = 60.0
"""Longest time between two lines of figures; a change is told at once. Chosen for short logs."""
SHOWN = frozenset({
    Kind.RUNNING, Kind.WATCHDOG_WARNED, Kind.WATCHDOG_RECOVERED, Kind.ATTEMPT_ENDED, Kind.VERDICT,
    Kind.RESTART_DECIDED, Kind.FAILED, Kind.STOPPED,
})  # fmt: skip
"""Events that the watchdog tells; all of them are in the log of the stage that drives."""

Over = dict[str, Any]


class Watch:
    """Looks at a job until something is over; what that is, is a subclass's.

    ``found`` is the job's id as soon as there is such a job.
    """

    def __init__(self, deps: Deps, *, job_id: str | None, address: Address | None) -> None:
        self._deps = deps
        self._address = address
        self.job_id = job_id
        self.found: str | None = None
        self._reader: Reader | None = None

    def look(self) -> Over | None:
        """One look; what to tell the task when it is over, None while it is not."""
        if self.job_id is None and self._address is not None:
            self.job_id = find_job(self._deps.ledger, self._address)
        if self.job_id is None:
            return self.no_job()
        self._reader = self._reader or Reader(self._deps, self.job_id)
        seen = self._reader.glance()
        self.found = self.job_id if seen.state.phase else None
        return self.judge(seen)

    def no_job(self) -> Over | None:
        """There is no such job yet."""
        return None

    def judge(self, seen: Glance) -> Over | None:
        """What a look means."""
        raise NotImplementedError


class GoalWatch(Watch):
    """Until the job has reached a goal or has been in a phase, or cannot come there any more."""

    def __init__(self, deps: Deps, *, job_id: str | None, address: Address | None,
                 until: str) -> None:  # fmt: skip
        super().__init__(deps, job_id=job_id, address=address)
        self._until = until

    def judge(self, seen: Glance) -> Over | None:
        """Reached, lost, or neither yet."""
        state = seen.state
        if _has_reached(state, self._until):
            return {"kind": "reached", **_result(state)}
        if state.terminal:
            text = f"job {state.job_id} {state.phase}: {state.reason}"
            return {"kind": "lost", "text": text, **_result(state)}
        return None


class UseWatch(Watch):
    """Tells use and warnings of a job, until it or its launch is over."""

    def __init__(self, deps: Deps, log: Any, *, address: Address, launch: TaskRef) -> None:
        super().__init__(deps, job_id=None, address=address)
        self._log = log
        self._tell = Narration(log)
        self._launch = launch
        self._told: tuple[object, float] = (None, 0.0)
        self._warnings = 0

    def no_job(self) -> Over | None:
        """No job will come when launch is over."""
        return {"kind": "over", "job_id": None, "warnings": 0} if self._launch_is_over() else None

    def judge(self, seen: Glance) -> Over | None:
        """Tell what is new."""
        for event in seen.events:
            self._event(event)
        if seen.state.phase is Phase.RUNNING:
            self._figures(seen)
        over = seen.state.terminal or reached(seen.state, Goal.LAUNCH) or self._launch_is_over()
        return {"kind": "over", "warnings": self._warnings, **_result(seen.state)} if over else None

    def _event(self, event: Event) -> None:
        if event.kind in SHOWN:
            self._tell(event)
        self._warnings += event.kind is Kind.WATCHDOG_WARNED

    def _figures(self, seen: Glance) -> None:
        """A line when the judgement changes, and now and then."""
        found = utilization.reading(seen.status)
        now = self._deps.clock().timestamp()
        use, told_at = self._told
        same = (found.use, found.exempt) == use
        if seen.status is None or (same and now - told_at < FIGURES_S):
            return
        self._told = ((found.use, found.exempt), now)
        step = seen.status.get("step")
        at = "no step yet" if step is None else f"step {step}"
        self._log.info("%s, %s", at, utilization.text(found))

    def _launch_is_over(self) -> bool:
        """Whether launch comes back no more; what cannot be read is not over."""
        try:
            return task_state(self._launch) in TAKEN
        except Exception as error:  # noqa: BLE001 - `dag.test` has nobody who could be asked
            self._log.debug("Airflow cannot be asked for the state of launch: %s", error)
            return False


class ReadingTrigger(BaseTrigger):
    """Look every ``interval_s`` seconds until something is over.

    :param ffdl_conn_id: connection; nothing secret travels in the trigger's arguments
    :param engine: engine by name, or None
    :param address: fields of :class:`~ffdl_airflow.stages.look.Address`, or None
    :param interval_s: seconds between two looks
    """

    def __init__(self, *, ffdl_conn_id: str, engine: str | None,
                 address: Mapping[str, Any] | None, interval_s: float) -> None:  # fmt: skip
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's own
        self.ffdl_conn_id = ffdl_conn_id
        self.engine = engine
        self.address = None if address is None else dict(address)
        self.interval_s = interval_s

    def arguments(self) -> dict[str, Any]:
        """What the triggerer makes it anew from."""
        return {"ffdl_conn_id": self.ffdl_conn_id, "engine": self.engine, "address": self.address,
                "interval_s": self.interval_s}  # fmt: skip

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class and arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self.arguments()

    def watch(self, deps: Deps) -> Watch:
        """What is looked at."""
        raise NotImplementedError

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until it is over; what goes wrong is told."""
        try:
            over = await self._wait()
        except FfdlError as error:
            over = {"kind": "error", "text": error.message, "retryable": error.retryable}
        except Exception as error:
            self.log.exception("the job cannot be watched")
            text = f"{type(error).__name__}: {error}"
            over = {"kind": "error", "text": text, "retryable": True}
        yield TriggerEvent({"v": 1, **over})

    async def _wait(self) -> Over:
        await asyncio.sleep(max(dwell_s(), self.interval_s))
        watch = await in_thread(lambda: self.watch(self._deps()))
        faults = 0
        while True:
            try:
                over = await in_thread(watch.look)
                faults = 0
            except FfdlError as error:
                faults += 1
                if not error.retryable or faults >= FAULTS:
                    raise
                self.log.warning("the job cannot be read now: %s", error.message)
                over = None
            if over is not None:
                return over
            await asyncio.sleep(self.interval_s)

    def _deps(self) -> Deps:
        return FfdlHook(self.ffdl_conn_id, engine=self.engine).deps({"reads": True})

    def _address(self) -> Address | None:
        return None if self.address is None else Address(**self.address)


class TrainingJobReachedTrigger(ReadingTrigger):
    """Wait until a job has reached a goal or a phase.

    :param job_id: the job, or None where ``address`` says where it comes from
    :param until: name of a goal or of a phase
    """

    def __init__(self, *, job_id: str | None, until: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.job_id = job_id
        self.until = until

    def arguments(self) -> dict[str, Any]:
        """With the own ones."""
        return {**super().arguments(), "job_id": self.job_id, "until": self.until}

    def watch(self, deps: Deps) -> Watch:
        """The job, until the goal."""
        return GoalWatch(deps, job_id=self.job_id, address=self._address(), until=self.until)


class UtilizationTrigger(ReadingTrigger):
    """Tell use and warnings of a job in the task's log, until it or its launch is over.

    :param launch: fields of :class:`~ffdl_airflow.hooks.standing.TaskRef` of the launch task
    :param ledger: id and host of the ledger that the job is in; another one is refused
    """

    def __init__(self, *, launch: Mapping[str, Any], ledger: Mapping[str, str] | None,
                 **arguments: Any) -> None:  # fmt: skip
        super().__init__(**arguments)
        self.launch = dict(launch)
        self.ledger = None if ledger is None else dict(ledger)

    def arguments(self) -> dict[str, Any]:
        """With the own ones."""
        return {**super().arguments(), "launch": self.launch, "ledger": self.ledger}

    def watch(self, deps: Deps) -> Watch:
        """The group's job."""
        require_ledger(deps, self.ledger)
        address = self._address()
        if address is None:
            raise ValueError("a utilization trigger needs the address of its group")
        return UseWatch(deps, self.log, address=address, launch=TaskRef(**self.launch))


def _has_reached(state: JobState, until: str) -> bool:
    if until in {goal.value for goal in Goal}:
        return reached(state, Goal(until))
    return any(phase == until for phase, _ in state.story)


def _result(state: JobState) -> dict[str, Any]:
    model = state.model or {}
    return {"job_id": state.job_id, "phase": str(state.phase), "step": state.step,
            "model": {key: model.get(key) for key in ("name", "version", "sha256")} if model
            else None}  # fmt: skip
