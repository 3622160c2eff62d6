"""The driver: advance job J until goal G. Every operator, command and retry is this function.

Read the log, fold it, decide one step, perform it, append what came of it; again, until there is
something to wait for. Safe at any number of drivers: who loses a compare-and-append reads again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ffdl_airflow.core.deadlines import left_s
from ffdl_airflow.core.errors import NotFoundError, UserError
from ffdl_airflow.core.events import Event, Kind, NewEvent, recorded
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import JobState, apply, fold
from ffdl_airflow.core.next_step import (
    Append,
    EndPlacement,
    Finish,
    Go,
    Judge,
    JudgeMover,
    Launch,
    Observe,
    Prefetch,
    Register,
    Reserve,
    Save,
    Validate,
    WaitUntil,
    next_step,
    reached,
)  # fmt: skip
from ffdl_airflow.core.snapshot import restore
from ffdl_airflow.ledger.base import Conflict
from ffdl_airflow.stages import evidence, launch, prefetch, register, reserve, submit
from ffdl_airflow.stages.deps import Deps, Job, Step, Wait
from ffdl_airflow.stages.recording import batch_of

_STEPS = 200
"""Steps of one call; far more than any path through the table needs. Guards against a livelock."""


@dataclass(frozen=True)
class Done:
    """The goal is reached."""

    state: JobState


@dataclass(frozen=True)
class Ended:
    """The job is over without reaching the goal: ``state.phase`` is Failed or Stopped."""

    state: JobState


@dataclass(frozen=True)
class Restarting:
    """A restart that costs was decided: whoever has tries of its own gives this one back."""

    state: JobState
    verdict: Mapping[str, Any]
    delay_s: float


@dataclass(frozen=True)
class Waits:
    """Call again when ``wait`` is over."""

    state: JobState
    wait: Wait


Outcome = Done | Ended | Restarting | Waits

_PERFORM: Mapping[type, Callable[[Deps, Job], Step]] = {
    Validate: submit.validate,
    Prefetch: prefetch.perform,
    JudgeMover: prefetch.judge,
    Reserve: reserve.perform,
    Launch: launch.perform,
    Go: launch.go,
    Observe: reserve.observe,
    Save: launch.save,
    Judge: evidence.perform,
    Register: register.perform,
}


class Driver:
    """Drives one job. Keeps what it has read, so that a call costs what is new.

    :param on_event: called with each event of the log that is new to this driver, in order
    """

    def __init__(self, deps: Deps, job_id: str, *,
                 on_event: Callable[[Event], None] | None = None) -> None:  # fmt: skip
        self._deps = deps
        self._on_event = on_event
        self._state = JobState(job_id=job_id)
        self._job: Job | None = None
        self._adopted = False

    def refresh(self) -> JobState:
        """The state with everything that is in the log now."""
        if self._state.seq == 0:
            rows = self._deps.ledger.jobs(self._state.job_id)
            self._state = (rows and restore(rows[0].snapshot)) or self._state
        self._take(self._deps.ledger.read(self._state.job_id, after=self._state.seq))
        return self._state

    def advance(self, until: Goal, *, give_back: bool = False) -> Outcome:
        """As far as it goes now. ``give_back``: a restart that costs is the caller's to make.

        Raises NotFoundError for a job without a log, UserError for one that cannot be seen
        from here, InfrastructureError where
        ledger or engine cannot be reached; what was appended before stays.
        """
        if self.refresh().phase is None:
            raise NotFoundError(f"there is no job {self._state.job_id}")
        self._require_in_sight()
        self._adopt()
        for _ in range(_STEPS):
            action = next_step(self._state, until, self._deps.clock())
            if isinstance(action, Finish):
                return self._finish(until)
            if isinstance(action, WaitUntil):
                left = (action.moment - self._deps.clock()).total_seconds()
                return self._waits(Wait(what=action.what, at_most_s=max(0.0, left)))
            step = self._perform(action)
            if not self._append(step.facts):
                if step.wait is not None:
                    return self._waits(step.wait)
                continue
            given = self._given_back(step.facts) if give_back else None
            if given is not None:
                return given
        raise AssertionError(f"{self._state.job_id} does not come to rest")

    def _require_in_sight(self) -> None:
        """A gang that cannot be seen from here would be taken for gone."""
        state, deps = self._state, self._deps
        if state.engine != deps.engine_name:
            raise UserError(
                f"engine: found {deps.engine_name}, job {state.job_id} is on {state.engine}",
                next_step="drive it with the engine that it began with",
            )
        here = deps.source.get("host")
        if deps.one_host and not state.terminal and state.host not in (None, here):
            raise UserError(
                f"engine: found {state.engine} on host {here}, which gives away that host only; "
                f"job {state.job_id} is on host {state.host}", next_step="let all that drives jobs "
                "of this engine run on one host: workers, triggerer and API server",
            )  # fmt: skip

    def _take(self, events: Sequence[Event]) -> None:
        self._state = fold(self._state.job_id, events, self._state)
        if self._on_event is not None:
            for event in events:
                self._on_event(event)

    def _waits(self, wait: Wait) -> Waits:
        """No longer than to the deadline of a stage."""
        left = left_s(self._state, self._deps.clock())
        if left is not None and left < wait.at_most_s:
            wait = replace(wait, at_most_s=left)
        return Waits(self._state, wait)

    def _perform(self, action: object) -> Step:
        if isinstance(action, Append):
            return Step(facts=action.events)
        if self._job is None or self._job.state.spec != self._state.spec:
            self._job = Job.of(self._state)
        job = replace(self._job, state=self._state)
        if isinstance(action, EndPlacement):
            return reserve.release(self._deps, job, why=action.why, mode=action.mode)
        return _PERFORM[type(action)](self._deps, job)

    def _append(self, facts: Sequence[NewEvent]) -> bool:
        """Append the facts that are legal here and now; False where nothing new came of it."""
        if not facts:
            return False
        facts = [replace(f, source={**self._deps.source, **f.source}) for f in facts]
        before = self._state
        after = before
        for offset, fact in enumerate(facts, start=1):
            at = self._deps.clock()
            after = apply(after, recorded(before.job_id, before.seq + offset, fact, recorded_at=at))
        try:
            written = self._deps.ledger.append(batch_of(facts, before=before, after=after))
        except Conflict:
            self.refresh()
            return True
        self._take(written)
        if self._state.terminal and not before.terminal:
            self._deps.cache.release_all(job=before.job_id)
        return bool(written)

    def _adopt(self) -> None:
        """A driver that finds a living attempt says so once."""
        if self._adopted:
            return
        self._adopted = True
        if not self._state.attempt_open:
            return
        key = ":".join(str(value) for value in self._deps.source.values())
        body = {"placement": self._state.placement, "attempt": self._state.attempt}
        fact = NewEvent(
            kind=Kind.ADOPTED, at=self._deps.clock(), body=body, dedupe=f"by:{key}"[:128]
        )
        self._append([fact])

    def _finish(self, until: Goal) -> Outcome:
        return Done(self._state) if reached(self._state, until) else Ended(self._state)

    def _given_back(self, facts: Sequence[NewEvent]) -> Restarting | None:
        for fact in facts:
            if fact.kind is Kind.RESTART_DECIDED and fact.body.get("costs"):
                verdict = self._state.verdict or {}
                return Restarting(self._state, verdict, float(fact.body["delay_s"]))
        return None
