"""The base of our tasks: which job, and how far. What it does then is in ``execution.py``.

Kept light, because every scheduler loop imports it: what runs is imported when it runs.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from airflow.sdk import BaseOperator, Context

from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.job import TrainingJob
from ffdl_airflow.hooks.ffdl import DEFAULT_CONN_ID
from ffdl_airflow.operators.retry_policy import FfdlRetryPolicy

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
        from ffdl_airflow.operators.execution import Execution

        return Execution(self, context).begin()

    def resume(self, context: Context, event: Any) -> Any:
        """After the trigger: tell what it saw."""
        from ffdl_airflow.operators.execution import Execution

        return Execution(self, context).resume(event)


def tries_for(job: Manifest) -> int:
    """Airflow retries of a task: enough for every failure that costs, and for Airflow's own."""
    if isinstance(job, TrainingJob):
        return job.spec.backoffLimit + EXTRA_TRIES
    spec = job.get("spec") if isinstance(job, Mapping) else None
    limit = spec.get("backoffLimit", 3) if isinstance(spec, Mapping) else None
    return limit + EXTRA_TRIES if isinstance(limit, int) else UNKNOWN_TRIES
