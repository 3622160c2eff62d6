"""What a task does when it runs. Imported then and not before: a scheduler only parses.

For: from (task, context) to the driver and back to a result or a typed error.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout
from airflow.sdk.execution_time.context import NEVER_EXPIRE

from ffdl_airflow.core.errors import (
    AttemptFailed,
    FfdlError,
    InfrastructureError,
    TrainingFailed,
)  # fmt: skip
from ffdl_airflow.core.events import iso
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.job import TrainingJob, job_id_for
from ffdl_airflow.core.lifecycle import JobState, Phase
from ffdl_airflow.core.manifests.ffdl import read_job, read_yaml
from ffdl_airflow.hooks.ffdl import FfdlHook
from ffdl_airflow.hooks.standing import TaskRef, standing_of_owner, stops_job, task_state
from ffdl_airflow.links.job import XCOM_JOB_ID
from ffdl_airflow.operators.stage import StageOperator
from ffdl_airflow.operators.templates import mistake, refusal
from ffdl_airflow.stages import wishes
from ffdl_airflow.stages.advance import Done, Driver, Ended, Outcome, Restarting, Waits
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.drive import FAULTS, drive, wait
from ffdl_airflow.stages.look import Address, find_job
from ffdl_airflow.stages.paths import resolve_paths
from ffdl_airflow.stages.reap import reap
from ffdl_airflow.stages.submit import require_ledger, submit
from ffdl_airflow.triggers.job import Mandate, Payload, TrainingJobTrigger
from ffdl_airflow.triggers.narration import Narration

_REAPED = 3
"""Ownerless placements that one try ends beside its own work, at most. Chosen."""
_PATIENCE_S = 3.0
"""How long a worker waits for a stage that ends soon, before it defers. Chosen: a deferral and the
way back cost about 8 s, for a trigger may not fire at once (see ``dwell_s``)."""
_SOON = frozenset({Goal.PREFETCH, Goal.RESERVE, Goal.RELEASE})
_KILL_S = 4.0
"""Time for a stop in ``on_kill``, which has 5 s in all before a SIGKILL (tried)."""
_SEEN = "ffdl_max_tries"
"""Key in the task's state, which survives tries and clears: ``max_tries`` when it last began."""


class Execution:
    """One try of one task."""

    def __init__(self, task: StageOperator, context: Context) -> None:
        self._task = task
        self._context = context
        self._ti = context["ti"]
        self._max_tries = int(getattr(self._ti, "max_tries", 0) or 0)
        self._job_id: str | None = None

    def begin(self) -> Any:
        """Submit the job where it is new, and advance it."""
        try:
            deps = self._deps()
            self._require_ledger(deps)
            job = self.read()
            job_id = self._submit(deps, job)
        except FfdlError as error:
            raise _translated(error) from error
        self._reap(deps)
        self._clear(deps, job, job_id)
        return self._go_on(deps, job_id, deadline=self._deadline(deps))

    def resume(self, event: Any) -> Any:
        """After the trigger: tell what it saw."""
        payload = Payload.parse(event)
        job_id = self._job_id = self._left_job_id()
        if payload.kind == "error" and payload.retryable:
            raise InfrastructureError(payload.text)
        if payload.kind == "error":
            raise AirflowFailException(payload.text)
        if payload.kind == "restarting":
            raise AttemptFailed(
                str(payload.verdict.get("cause")),
                verdict={**payload.verdict, "delay_s": payload.delay_s},
            )
        deps = self._deps()
        if payload.kind == "timeout":
            self._timed_out(Driver(deps, job_id).refresh())
        return self._go_on(deps, job_id, told=payload.told, deadline=payload.deadline)

    def deferral_timed_out(self) -> NoReturn:
        """Airflow has ended the deferral: our trigger did not keep ``execution_timeout``."""
        why = "execution_timeout of the task is over"
        state = self._stop(self._deps(), self._left_job_id(), mode="save", why=why)
        self._timed_out(state)

    def kill(self) -> None:
        """The task's process is told to end: stop the job where a person wanted that.

        A worker is also ended by a restart of its executor; then the gang trains on, and the next
        try takes it up. So the state of the task decides, asked in a thread of its own, because
        this runs in a signal handler that may have interrupted another question. What does not
        come to its end here is left to listener and reaper.
        """
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ffdl-kill")
        with suppress(Exception):
            pool.submit(self._stop_if_taken).result(timeout=_KILL_S)

    def read(self) -> TrainingJob:
        """The job as this run means it: rendered, with absolute paths."""
        job: Any = self._task.job
        base = Path(self._task.dag.fileloc).parent
        source = f"job of task {self._task.task_id}"
        if isinstance(job, str):
            path = base / job
            if "\n" not in job and path.suffix in (".yaml", ".yml"):
                source, base = str(path), path.parent
                job = self._rendered(path)
            job = read_yaml(str(job), source=source)
        document = resolve_paths(job, base) if isinstance(job, Mapping) else job
        return read_job(document, source=source)

    def _rendered(self, path: Path) -> Any:
        try:
            return self._task.render_template(_text(path), self._context)
        except Exception as error:
            why = mistake(error, rendering=True)
            if why is None:
                raise
            raise AirflowFailException(refusal("job", str(path), why)) from error

    def _submit(self, deps: Deps, job: TrainingJob) -> str:
        """Id of the job: the same in every try and after every clear, also under a new name.

        The link has it as soon as there is a page, and not before.
        """
        address = self._address()
        known = find_job(deps.ledger, address)
        job_id = self._job_id = known or job_id_for(job.metadata.name, address.key)
        if known is None:
            submit(deps, job, job_id=job_id, owner=self._owner())
        self._ti.xcom_push(key=XCOM_JOB_ID, value=job_id)
        if known is not None:
            submit(deps, job, job_id=job_id, owner=self._owner())
        return job_id

    def _left_job_id(self) -> str:
        """What this try's own start has left: the manifest may have changed since."""
        ti = self._ti
        found = ti.xcom_pull(key=XCOM_JOB_ID, task_ids=ti.task_id, map_indexes=ti.map_index)
        return str(found)

    def _address(self) -> Address:
        ti = TaskRef.of(self._ti)
        return Address(dag_id=ti.dag_id, run_id=ti.run_id, scope=self._task.scope or ti.task_id,
                       map_index=ti.map_index)  # fmt: skip

    def _owner(self) -> dict[str, Any]:
        ti, group = self._ti, self._task.scope
        return {
            "key": self._address().key, "dag_id": ti.dag_id, "run_id": ti.run_id,
            "task_id": ti.task_id, "map_index": ti.map_index,
            "holder": f"{group}.launch" if group else ti.task_id,
        }  # fmt: skip

    def _deps(self) -> Deps:
        source = {"task": self._ti.task_id, "try": self._ti.try_number, "pid": os.getpid()}
        return FfdlHook(self._task.ffdl_conn_id, engine=self._task.engine).deps(source)

    def _deadline(self, deps: Deps) -> str | None:
        limit = self._task.execution_timeout
        return None if limit is None else iso(deps.clock() + limit)

    def _reap(self, deps: Deps) -> None:
        """End a few placements that nobody will come back for; a fault of it is not this job's."""
        try:
            for found in reap(deps, standing=standing_of_owner, at_most=_REAPED):
                self._task.log.warning("%s", found.text)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is another job's
            self._task.log.warning("ownerless placements were not all looked at: %s", error)

    def _clear(self, deps: Deps, job: TrainingJob, job_id: str) -> None:
        """Tell the job of a clear, once.

        Where prefetch was cleared before it, reserve finds a job that has just been cleared.
        """
        if not self._task.clears:
            return
        store = self._context.get("task_state_store")
        if self._was_cleared(store):
            fresh_data = Driver(deps, job_id).refresh().phase is Phase.DATA_READY
            if not (fresh_data and self._task.goal is Goal.RESERVE):
                wishes.clear(deps, job_id, task=self._task.task_id, number=self._max_tries,
                             mode=job.spec.checkpoint.onClear)  # fmt: skip
        if store is not None:
            store.set(_SEEN, self._max_tries, retention=NEVER_EXPIRE)

    def _was_cleared(self, store: Any) -> bool:
        """Airflow gives a task new tries by a clear, and by nothing else.

        What this task has seen before tells it apart from a ``retries`` that was changed; where
        nothing is known the number of its tries has to do.
        """
        seen = None if store is None else store.get(_SEEN)
        if seen is None:
            return self._max_tries > int(self._task.retries or 0)
        return bool(seen != self._max_tries)

    def _stop_if_taken(self) -> None:
        state = task_state(TaskRef.of(self._ti))
        if self._job_id is not None and stops_job(state, self._task.goal):
            why = f"the task was marked {state}"
            self._stop(self._deps(), self._job_id, mode="now", why=why)

    def _go_on(self, deps: Deps, job_id: str, *, told: int = 0,
               deadline: str | None = None) -> Any:  # fmt: skip
        task, narration = self._task, Narration(self._task.log, told=told)
        driver = Driver(deps, job_id, on_event=narration)
        give_back = self._ti.try_number <= self._max_tries
        try:
            outcome = self._first(deps, driver, give_back=give_back)
            if isinstance(outcome, Waits) and task.deferrable:
                task.log.info("job %s waits: %s", job_id, outcome.wait.what)
                limit = task.execution_timeout
                mandate = Mandate(give_back=give_back, clears=outcome.state.clears,
                                  told=narration.told, deadline=deadline)  # fmt: skip
                task.defer(
                    trigger=TrainingJobTrigger(
                        job_id=job_id, goal=task.goal.value, ffdl_conn_id=task.ffdl_conn_id,
                        engine=task.engine, ledger=_identity(deps), mandate=mandate,
                    ),
                    method_name="resume",
                    timeout=None if limit is None else limit + task.backstop,
                )  # fmt: skip
            if isinstance(outcome, Waits):
                outcome = drive(deps, driver, task.goal, give_back=give_back, faults=FAULTS)
        except AirflowTaskTimeout:
            self._timed_out(self._stop(deps, job_id, mode="save", why="execution_timeout is over"))
        return self._answer(job_id, outcome) | {"ledger": _identity(deps)}

    def _first(self, deps: Deps, driver: Driver, *, give_back: bool) -> Outcome:
        """The first looks: a stage that ends soon is waited for."""
        goal = self._task.goal
        until = deps.clock() + timedelta(seconds=_PATIENCE_S)
        outcome = driver.advance(goal, give_back=give_back)
        while isinstance(outcome, Waits) and deps.clock() < until:
            if goal not in _SOON and outcome.state.phase is not Phase.REGISTERING:
                break
            wait(deps, outcome.wait, at_most_s=_PATIENCE_S / 10)
            outcome = driver.advance(goal, give_back=give_back)
        return outcome

    def _stop(self, deps: Deps, job_id: str, *, mode: str, why: str) -> JobState:
        driver = Driver(deps, job_id)
        clears = driver.refresh().clears
        wishes.stop(deps, job_id, mode=mode, by="airflow", why=why, clears=clears)
        return drive(deps, driver, self._task.goal).state

    def _timed_out(self, state: JobState) -> NoReturn:
        kept = f"step {state.checkpoint['step']}" if state.checkpoint else "nothing"
        raise AirflowFailException(
            f"execution_timeout of {self._task.execution_timeout} is over: job {state.job_id} was "
            f"stopped. Kept: {kept}. Clear the task to go on from there."
        )

    def _require_ledger(self, deps: Deps) -> None:
        """The stages of a group look into one ledger; the first one says into which."""
        group = self._task.scope
        if group is None or self._task.goal is Goal.PREFETCH:
            return
        first = self._ti.xcom_pull(task_ids=f"{group}.prefetch", map_indexes=self._ti.map_index)
        known = first.get("ledger") if isinstance(first, Mapping) else None
        require_ledger(deps, known)

    def _answer(self, job_id: str, outcome: Outcome) -> dict[str, Any]:
        result = answer(job_id, outcome)
        model = outcome.state.model
        if model and self._task.goal is Goal.REGISTER:
            self._announce(model)
        return result

    def _announce(self, model: Mapping[str, Any]) -> None:
        """The model version as an asset event, for DAGs that wait for it."""
        from ffdl_airflow.operators.assets import MODELS, model_asset

        extra = {key: model.get(key) for key in ("name", "version", "sha256", "path", "metrics")}
        asset, events = model_asset(str(model["name"])), self._context["outlet_events"]
        if asset in self._task.outlets:
            events[asset].extra = extra
        else:
            events[MODELS].add(asset, extra=extra)


def _identity(deps: Deps) -> dict[str, str]:
    return {"id": deps.ledger.ledger_id, "host": str(deps.source["host"])}


def answer(job_id: str, outcome: Outcome) -> dict[str, Any]:
    """The task's result, or the typed error that Airflow shows."""
    if isinstance(outcome, Restarting):
        verdict = {**outcome.verdict, "delay_s": outcome.delay_s}
        raise AttemptFailed(str(verdict.get("cause")), verdict=verdict)
    state = outcome.state
    if isinstance(outcome, Ended):
        failed = TrainingFailed(
            f"job {job_id} {state.phase}: {state.reason}", verdict=state.verdict or {},
            evidence=f"ffdl evidence {job_id}",
            next_step=str((state.verdict or {}).get("next_step") or ""),
        )  # fmt: skip
        raise AirflowFailException(failed.message) from failed
    if not isinstance(outcome, Done):
        raise AssertionError(outcome)  # noqa: TRY004 - a bug of ours
    model = state.model or {}
    return {
        "job_id": job_id, "phase": str(state.phase),
        "model": {key: model.get(key) for key in ("name", "version", "sha256")} if model else None,
        "metrics": dict(model.get("metrics") or {}),
        "checkpoint": dict(state.checkpoint) if state.checkpoint else None,
    }  # fmt: skip


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        message = f"job: found {path} ({error}), allowed: a file that can be read"
        raise AirflowFailException(message) from None


def _translated(error: FfdlError) -> Exception:
    """A user's mistake fails the task at once; Airflow does not try it again."""
    return error if error.retryable else AirflowFailException(error.message)
