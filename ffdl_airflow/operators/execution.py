"""What a task does when it runs. Imported then and not before: a scheduler only parses.

For: from (task, context) to the driver and back to a result or a typed error.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from ffdl_airflow.core.errors import (
    AttemptFailed,
    FfdlError,
    InfrastructureError,
    TrainingFailed,
)  # fmt: skip
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.job import TrainingJob, job_id_for
from ffdl_airflow.core.manifests.ffdl import read_job, read_yaml
from ffdl_airflow.hooks.ffdl import FfdlHook
from ffdl_airflow.operators.stage import StageOperator
from ffdl_airflow.stages import wishes
from ffdl_airflow.stages.advance import Done, Driver, Ended, Outcome, Restarting, Waits
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.drive import drive
from ffdl_airflow.stages.paths import resolve_paths
from ffdl_airflow.stages.submit import require_ledger, submit
from ffdl_airflow.triggers.job import Payload, TrainingJobTrigger


class Execution:
    """One try of one task."""

    def __init__(self, task: StageOperator, context: Context) -> None:
        self._task = task
        self._context = context
        self._ti = context["ti"]
        self._max_tries = int(getattr(self._ti, "max_tries", 0) or 0)

    def begin(self) -> Any:
        """Submit the job where it is new, and advance it."""
        deps = self._deps()
        try:
            self._require_ledger(deps)
            job = self.read()
            job_id = self._job_id(job)
            submit(deps, job, job_id=job_id, owner=self._owner())
        except FfdlError as error:
            raise _translated(error) from error
        self._clear(deps, job, job_id)
        return self._go_on(deps, job_id)

    def resume(self, event: Any) -> Any:
        """After the trigger: tell what it saw."""
        payload = Payload.parse(event)
        if payload.kind == "error":
            raise InfrastructureError(payload.text)
        if payload.kind == "restarting":
            raise AttemptFailed(
                str(payload.verdict.get("cause")),
                verdict={**payload.verdict, "delay_s": payload.delay_s},
            )
        return self._go_on(self._deps(), self._job_id(self.read()))

    def read(self) -> TrainingJob:
        """The job as this run means it: rendered, with absolute paths."""
        job: Any = self._task.job
        base = Path(self._task.dag.fileloc).parent
        source = f"job of task {self._task.task_id}"
        if isinstance(job, str):
            path = base / job
            if "\n" not in job and path.suffix in (".yaml", ".yml"):
                source, base = str(path), path.parent
                job = self._task.render_template(_text(path), self._context)
            job = read_yaml(str(job), source=source)
        document = resolve_paths(job, base) if isinstance(job, Mapping) else job
        return read_job(document, source=source)

    def _job_id(self, job: TrainingJob) -> str:
        """Id of the job: the same in every try and after every clear."""
        return job_id_for(job.metadata.name, self._scope())

    def _scope(self) -> str:
        ti = self._ti
        return f"{ti.dag_id}/{ti.run_id}/{self._task.scope or ti.task_id}/{ti.map_index}"

    def _owner(self) -> dict[str, Any]:
        ti = self._ti
        return {
            "key": f"airflow {self._scope()}", "dag_id": ti.dag_id, "run_id": ti.run_id,
            "task_id": ti.task_id, "map_index": ti.map_index,
        }  # fmt: skip

    def _deps(self) -> Deps:
        source = {"task": self._ti.task_id, "try": self._ti.try_number, "pid": os.getpid()}
        return FfdlHook(self._task.ffdl_conn_id, engine=self._task.engine).deps(source)

    def _clear(self, deps: Deps, job: TrainingJob, job_id: str) -> None:
        """Tell the job of a clear: the first try of this generation is not the first of all."""
        first = self._max_tries - int(self._task.retries or 0) + 1
        if self._task.clears_to is not None and first > 1:
            wishes.clear(deps, job_id, task=self._task.task_id, number=first,
                         mode=job.spec.checkpoint.onClear, to=self._task.clears_to)  # fmt: skip

    def _go_on(self, deps: Deps, job_id: str) -> Any:
        task, driver = self._task, Driver(deps, job_id)
        give_back = self._ti.try_number <= self._max_tries
        outcome: Outcome = driver.advance(task.goal, give_back=give_back)
        if isinstance(outcome, Waits) and task.deferrable:
            task.log.info("job %s waits: %s", job_id, outcome.wait.what)
            task.defer(
                trigger=TrainingJobTrigger(
                    job_id=job_id, goal=task.goal.value, ffdl_conn_id=task.ffdl_conn_id,
                    engine=task.engine, give_back=give_back, ledger=_identity(deps),
                ),
                method_name="resume",
            )  # fmt: skip
        if isinstance(outcome, Waits):
            outcome = drive(deps, driver, task.goal, give_back=give_back)
        return answer(job_id, outcome) | {"ledger": _identity(deps)}

    def _require_ledger(self, deps: Deps) -> None:
        """The stages of a group look into one ledger; the first one says into which."""
        group = self._task.scope
        if group is None or self._task.goal is Goal.PREFETCH:
            return
        first = self._ti.xcom_pull(task_ids=f"{group}.prefetch", map_indexes=self._ti.map_index)
        known = first.get("ledger") if isinstance(first, Mapping) else None
        require_ledger(deps, known)


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
    except (OSError, UnicodeDecodeError) as error:
        message = f"job: found {path} ({error}), allowed: a file that can be read"
        raise AirflowFailException(message) from None


def _translated(error: FfdlError) -> Exception:
    """A user's mistake fails the task at once; Airflow does not try it again."""
    return error if error.retryable else AirflowFailException(error.message)
