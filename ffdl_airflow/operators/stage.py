"""The base of our tasks: submit, advance to a goal, defer once, answer or raise.

Everything that decides is in ``core`` and ``stages``; a task only says which job and how far.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from ffdl_airflow.core.errors import AttemptFailed, FfdlError, InfrastructureError, TrainingFailed
from ffdl_airflow.core.job import TrainingJob, job_id_for
from ffdl_airflow.core.manifests.ffdl import read_job, read_yaml
from ffdl_airflow.core.next_step import Goal
from ffdl_airflow.hooks.ffdl import DEFAULT_CONN_ID, FfdlHook
from ffdl_airflow.operators.retry_policy import FfdlRetryPolicy
from ffdl_airflow.stages import wishes
from ffdl_airflow.stages.advance import Done, Driver, Ended, Outcome, Restarting, Waits
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.drive import drive
from ffdl_airflow.stages.paths import resolve_paths
from ffdl_airflow.stages.submit import submit
from ffdl_airflow.triggers.job import Payload, TrainingJobTrigger

EXTRA_TRIES = 3
"""Tries beyond ``backoffLimit``, for losses of Airflow's own parts (DESIGN 1)."""
UNKNOWN_TRIES = 6
"""Tries where the spec cannot be read when the DAG is parsed (DESIGN 1)."""
RETRY_DELAY = timedelta(seconds=2)
"""Airflow's own 300 s outlast most holds, and policies are not asked after a killed worker."""

Manifest = str | Mapping[str, Any] | TrainingJob


class StageOperator(BaseOperator):
    """Advance a job to a stage.

    :param job: the job: a mapping, YAML text, the path of a YAML file (from the DAG's folder), or a
        TrainingJob. Templated.
    :param engine: engine by name; default: the connection's or the settings'
    :param ffdl_conn_id: connection of type ``ffdl``
    :param deferrable: wait in the triggerer instead of a worker
    :param scope: what the job is named after within the run; default: the task
    """

    template_fields: Sequence[str] = ("job",)
    goal: Goal = Goal.REGISTER
    clears_to: ClassVar[str | None] = None
    """Phase to which a clear of this task leads; None: a clear of it means nothing to the job."""

    def __init__(self, *, job: Manifest, engine: str | None = None,
                 ffdl_conn_id: str = DEFAULT_CONN_ID, deferrable: bool = True,
                 scope: str | None = None, **kwargs: Any) -> None:  # fmt: skip
        if kwargs.get("retries") is None:
            kwargs["retries"] = tries_for(job)
        kwargs.setdefault("retry_delay", RETRY_DELAY)
        kwargs.setdefault("retry_policy", FfdlRetryPolicy())
        super().__init__(**kwargs)
        self.job = job.document() if isinstance(job, TrainingJob) else job
        self.engine = engine
        self.ffdl_conn_id = ffdl_conn_id
        self.deferrable = deferrable
        self.scope = scope

    def execute(self, context: Context) -> Any:
        """Submit the job where it is new, and advance it."""
        deps = self._deps(context)
        try:
            job = self.read(context)
            job_id = self.job_id(context, job)
            submit(deps, job, job_id=job_id, owner=self._owner(context))
        except FfdlError as error:
            raise _translated(error) from error
        self._clear(deps, context, job, job_id)
        return self._go_on(deps, job_id, context)

    def resume(self, context: Context, event: Any) -> Any:
        """After the trigger: tell what it saw."""
        payload = Payload.parse(event)
        if payload.kind == "error":
            raise InfrastructureError(payload.text)
        if payload.kind == "restarting":
            raise AttemptFailed(
                str(payload.verdict.get("cause")),
                verdict={**payload.verdict, "delay_s": payload.delay_s},
            )
        job_id = self.job_id(context, self.read(context))
        return self._go_on(self._deps(context), job_id, context)

    def read(self, context: Context) -> TrainingJob:
        """The job as this run means it: rendered, with absolute paths."""
        job: Any = self.job
        base = Path(self.dag.fileloc).parent
        source = f"job of task {self.task_id}"
        if isinstance(job, str):
            path = base / job
            if "\n" not in job and path.suffix in (".yaml", ".yml"):
                source, base = str(path), path.parent
                try:
                    job = self.render_template(path.read_text(encoding="utf-8"), context)
                except OSError as error:
                    raise AirflowFailException(f"job: found {path} ({error}), allowed: a file "
                                               "that can be read") from None  # fmt: skip
            job = read_yaml(str(job), source=source)
        return read_job(resolve_paths(job, base) if isinstance(job, Mapping) else job,
                        source=source)  # fmt: skip

    def job_id(self, context: Context, job: TrainingJob) -> str:
        """Id of the job: the same in every try and after every clear."""
        return job_id_for(job.metadata.name, self._scope(context))

    def _scope(self, context: Context) -> str:
        ti = context["ti"]
        return f"{ti.dag_id}/{ti.run_id}/{self.scope or ti.task_id}/{ti.map_index}"

    def _owner(self, context: Context) -> dict[str, Any]:
        ti = context["ti"]
        return {
            "key": f"airflow {self._scope(context)}", "dag_id": ti.dag_id, "run_id": ti.run_id,
            "task_id": ti.task_id, "map_index": ti.map_index,
        }  # fmt: skip

    def _deps(self, context: Context) -> Deps:
        ti = context["ti"]
        source = {"task": ti.task_id, "try": ti.try_number, "pid": os.getpid()}
        return FfdlHook(self.ffdl_conn_id, engine=self.engine).deps(source)

    def _clear(self, deps: Deps, context: Context, job: TrainingJob, job_id: str) -> None:
        """Tell the job of a clear: the first try of this generation is not the first of all."""
        first = _max_tries(context) - self._own_retries() + 1
        if self.clears_to is not None and first > 1:
            wishes.clear(deps, job_id, task=self.task_id, number=first,
                         mode=job.spec.checkpoint.onClear, to=self.clears_to)  # fmt: skip

    def _go_on(self, deps: Deps, job_id: str, context: Context) -> Any:
        driver = Driver(deps, job_id)
        give_back = context["ti"].try_number <= _max_tries(context)
        outcome: Outcome = driver.advance(self.goal, give_back=give_back)
        if isinstance(outcome, Waits) and self.deferrable:
            self.log.info("job %s waits: %s", job_id, outcome.wait.what)
            self.defer(
                trigger=TrainingJobTrigger(
                    job_id=job_id, goal=self.goal.value, ffdl_conn_id=self.ffdl_conn_id,
                    engine=self.engine, give_back=give_back,
                ),
                method_name="resume",
            )  # fmt: skip
        if isinstance(outcome, Waits):
            outcome = drive(deps, driver, self.goal, give_back=give_back)
        return answer(job_id, outcome)

    def _own_retries(self) -> int:
        return int(self.retries or 0)


def tries_for(job: Manifest) -> int:
    """Airflow retries of a task: enough for every failure that costs, and for Airflow's own."""
    if isinstance(job, TrainingJob):
        return job.spec.backoffLimit + EXTRA_TRIES
    spec = job.get("spec") if isinstance(job, Mapping) else None
    limit = spec.get("backoffLimit", 3) if isinstance(spec, Mapping) else None
    return limit + EXTRA_TRIES if isinstance(limit, int) else UNKNOWN_TRIES


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


def _max_tries(context: Context) -> int:
    return int(getattr(context["ti"], "max_tries", 0) or 0)


def _translated(error: FfdlError) -> Exception:
    """A user's mistake fails the task at once; Airflow does not try it again."""
    return error if error.retryable else AirflowFailException(error.message)
