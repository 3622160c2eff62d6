"""The base of our tasks: which job, and how far. What it does then is in ``execution.py``.

Kept light, because every scheduler loop imports it: what runs is imported when it runs.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Context
from airflow.sdk.bases.operator import OPERATOR_DEFAULTS

from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.job import TrainingJob
from ffdl_airflow.hooks.ffdl import DEFAULT_CONN_ID
from ffdl_airflow.links.job import TrainingJobLink
from ffdl_airflow.operators.assets import MODELS, outlet_of
from ffdl_airflow.operators.retry_policy import FfdlRetryPolicy
from ffdl_airflow.operators.templates import Templated

if TYPE_CHECKING:
    from ffdl_airflow.operators.execution import Execution

EXTRA_TRIES = 3
"""Tries beyond ``backoffLimit``, for losses of Airflow's own parts. Chosen."""
UNKNOWN_TRIES = 6
"""Tries where the spec cannot be read when the DAG is parsed. Chosen."""
RETRY_DELAY = timedelta(seconds=2)
"""Airflow's own 300 s outlast most holds, and policies are not asked after a killed worker."""

Manifest = str | Mapping[str, Any] | TrainingJob


class StageOperator(Templated):
    """Advance a job to a stage.

    :param job: the job: a mapping, YAML text, the path of a YAML file (from the DAG's folder), or a
        TrainingJob. Templated.
    :param engine: engine by name; default: the connection's or the settings'
    :param ffdl_conn_id: connection of type ``ffdl``
    :param deferrable: wait in the triggerer instead of a worker
    :param scope: what the job is named after within the run; default: the task
    """

    template_fields: Sequence[str] = ("job", "engine")
    operator_extra_links = (TrainingJobLink(),)
    goal: Goal = Goal.REGISTER
    backstop: ClassVar[timedelta] = timedelta(minutes=5)
    """After ``execution_timeout`` and this, Airflow itself ends a deferral that our trigger has not
    ended. Chosen: longer than any save."""
    clears: ClassVar[bool] = False
    """Whether a clear of this task ends what runs and lets the job begin anew, from its data on."""

    def __init__(self, *, job: Manifest, engine: str | None = None,
                 ffdl_conn_id: str = DEFAULT_CONN_ID, deferrable: bool = True,
                 scope: str | None = None, **kwargs: Any) -> None:  # fmt: skip
        require_job(job)
        given = {**(kwargs.get("default_args") or {}), **kwargs}
        kwargs |= {key: value for key, value in _defaults(tries_for(job)).items()
                   if given.get(key) is None}  # fmt: skip
        goal = kwargs.pop("goal", type(self).goal)
        outlets = list(kwargs.get("outlets") or ())
        if goal is Goal.REGISTER and MODELS not in outlets:
            kwargs["outlets"] = [*outlets, outlet_of(job)]
        super().__init__(**kwargs)
        self.job = job.document() if isinstance(job, TrainingJob) else job
        self.engine = engine
        self.ffdl_conn_id = ffdl_conn_id
        self.deferrable = deferrable
        self.scope = scope
        self.goal = goal
        self._execution: Execution | None = None

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """The same defaults for a mapped task, for which Airflow fills in its own first."""
        made = super().partial(**kwargs)
        for key, value in _defaults(UNKNOWN_TRIES).items():
            if key not in kwargs and made.kwargs.get(key) == OPERATOR_DEFAULTS.get(key):
                made.kwargs[key] = value
        if cls.goal is Goal.REGISTER:
            made.kwargs["outlets"] = [*(made.kwargs.get("outlets") or ()), MODELS]
        return made

    def execute(self, context: Context) -> Any:
        """Submit the job where it is new, and advance it."""
        from ffdl_airflow.operators.execution import Execution

        self._execution = Execution(self, context)
        return self._execution.begin()

    def resume(self, context: Context, event: Any) -> Any:
        """After the trigger: tell what it saw."""
        from ffdl_airflow.operators.execution import Execution

        self._execution = Execution(self, context)
        return self._execution.resume(event)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None,
                         context: Context) -> Any:  # fmt: skip
        """What Airflow calls after a deferral, also after one that it has ended itself."""
        from airflow.sdk.exceptions import TaskDeferralTimeout

        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            from ffdl_airflow.operators.execution import Execution

            Execution(self, context).deferral_timed_out()

    def on_kill(self) -> None:
        """The task's process is told to end."""
        if self._execution is not None:
            self._execution.kill()


def require_job(job: object) -> None:
    """Refuse what can never be a job; what it says is known when the task runs.

    Values of other tasks and functions come to be one: Airflow resolves them.
    """
    if not isinstance(job, (str, Mapping, TrainingJob)) and not _comes_later(job):
        allowed = "a mapping, YAML text, the path of a YAML file, or a TrainingJob"
        raise ValueError(f"job: found {job!r:.80}, allowed: {allowed}")


def require_number(name: str, value: object, *, least: int) -> None:
    """Refuse a shortcut that is no whole number; a template may come to be one."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
    template = isinstance(value, str) and "{{" in value
    if value is not None and not (whole or template or _comes_later(value)):
        raise ValueError(f"{name}: found {value!r:.80}, allowed: a whole number, at least {least}")


def goal_of(until: object) -> Goal:
    """The goal of this name."""
    goals = [goal.value for goal in Goal]
    if until not in goals:
        raise ValueError(f"until: found {until!r:.80}, allowed: {', '.join(goals)}")
    return Goal(until)


def _comes_later(value: object) -> bool:
    return callable(value) or hasattr(value, "resolve")


def _defaults(tries: int) -> dict[str, Any]:
    return {"retries": tries, "retry_delay": RETRY_DELAY, "retry_policy": FfdlRetryPolicy()}


def tries_for(job: Manifest) -> int:
    """Airflow retries of a task: enough for every failure that costs, and for Airflow's own."""
    if isinstance(job, TrainingJob):
        return job.spec.backoffLimit + EXTRA_TRIES
    spec = job.get("spec") if isinstance(job, Mapping) else None
    limit = spec.get("backoffLimit", 3) if isinstance(spec, Mapping) else None
    return limit + EXTRA_TRIES if isinstance(limit, int) else UNKNOWN_TRIES
