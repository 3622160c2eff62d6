"""Waiting for a training job that somebody else runs, and watching one. Both only read.

Kept light, because every scheduler loop imports it: what runs is imported when it runs.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from ffdl_airflow.core.errors import FfdlError, InfrastructureError
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.hooks.ffdl import DEFAULT_CONN_ID, FfdlHook
from ffdl_airflow.links.job import XCOM_JOB_ID, TrainingJobLink
from ffdl_airflow.operators.retry_policy import FfdlRetryPolicy
from ffdl_airflow.operators.templates import Templated

if TYPE_CHECKING:
    from ffdl_airflow.stages.deps import Deps
    from ffdl_airflow.triggers.reading import ReadingTrigger, Watch

INTERVAL_S = 5.0
"""Seconds between two looks. Chosen: a look costs some milliseconds."""
RETRIES = 3
"""For losses of Airflow's own parts: a sensor that only reads may always look again."""
RETRY_DELAY = timedelta(seconds=2)
"""As of the tasks that drive (operators/stage.py)."""
PHASES = (
    "Submitted", "Validated", "Prefetching", "DataReady", "Reserving", "Reserved", "Starting",
    "Running", "Stopping", "Trained", "Registering", "Succeeded", "Failed", "Stopped",
)  # fmt: skip
"""Names of ``core.lifecycle.Phase``, which is not imported for them; a test compares."""


class ReadingSensor(Templated, BaseSensorOperator):
    """What both sensors share: look, defer, look again.

    :param engine: engine by name; default: the connection's or the settings'
    :param ffdl_conn_id: connection of type ``ffdl``
    :param deferrable: wait in the triggerer instead of a worker
    """

    operator_extra_links = (TrainingJobLink(),)

    def __init__(self, *, engine: str | None = None, ffdl_conn_id: str = DEFAULT_CONN_ID,
                 deferrable: bool = True, **kwargs: Any) -> None:  # fmt: skip
        kwargs.setdefault("poke_interval", INTERVAL_S)
        kwargs.setdefault("retries", RETRIES)
        kwargs.setdefault("retry_delay", RETRY_DELAY)
        kwargs.setdefault("retry_policy", FfdlRetryPolicy())
        super().__init__(**kwargs)
        self.engine = engine
        self.ffdl_conn_id = ffdl_conn_id
        self.deferrable = deferrable
        self._watch: Watch | None = None

    def execute(self, context: Context) -> Any:
        """Wait in the triggerer, or in the worker where that was asked for."""
        if self.deferrable and not self.is_over(context):
            self.defer(trigger=self.trigger(context), method_name="resume",
                       timeout=timedelta(seconds=self.timeout))  # fmt: skip
        return super().execute(context)

    def is_over(self, context: Context) -> bool:
        """Whether there is nothing to wait for."""
        return False

    def poke(self, context: Context) -> PokeReturnValue:
        """One look, and the answer where it is over."""
        over = self.look(context)
        return PokeReturnValue(over is not None, None if over is None else self.answer(over))

    def look(self, context: Context) -> Mapping[str, Any] | None:
        """One look; what it tells where it is over."""
        if self._watch is None:
            self._watch = self.trigger(context).watch(self._deps())
        over = self._watch.look()
        _leave_for_the_link(context, self._watch.found)
        return over

    def resume(self, context: Context, event: Any) -> Any:
        """After the trigger: tell what it saw."""
        _leave_for_the_link(context, event.get("job_id"))
        return self.answer({key: value for key, value in event.items() if key != "v"})

    def trigger(self, context: Context) -> "ReadingTrigger":
        """The trigger that looks."""
        raise NotImplementedError

    def answer(self, over: Mapping[str, Any]) -> dict[str, Any]:
        """The task's result, or the error that Airflow shows."""
        raise NotImplementedError

    def _deps(self) -> "Deps":
        return FfdlHook(self.ffdl_conn_id, engine=self.engine).deps({"reads": True})

    def _shared(self, address: Mapping[str, Any] | None) -> dict[str, Any]:
        return {"ffdl_conn_id": self.ffdl_conn_id, "engine": self.engine, "address": address,
                "interval_s": self.poke_interval}  # fmt: skip


class TrainingJobSensor(ReadingSensor):
    """Wait until a training job has reached a goal, or has been in a phase.

    It fails when the job has ended without that; ``soft_fail`` makes it a skip. The job is named by
    its id, or by what started it: the task of an operator or the id of a group.

    :param job_id: id of the job. Templated.
    :param from_task: task id of a ``TrainingJobOperator``, or id of a ``TrainingJobGroup``.
        Templated.
    :param from_dag: its DAG; default: this one. Templated.
    :param from_run: its run; default: this run in this DAG, in another DAG the newest run that has
        such a job. Templated.
    :param from_map_index: its map index, where it is mapped
    :param until: goal (``launch``, ``register``, …) or phase (``Running``, …)
    """

    template_fields: Sequence[str] = ("job_id", "from_task", "from_dag", "from_run", "until")

    def __init__(self, *, job_id: str | None = None, from_task: str | None = None,
                 from_dag: str | None = None, from_run: str | None = None,
                 from_map_index: int = -1, until: str = Goal.REGISTER.value,
                 **kwargs: Any) -> None:  # fmt: skip
        super().__init__(**kwargs)
        if (job_id is None) == (from_task is None):
            found = "neither" if job_id is None else "both"
            raise ValueError(f"job_id, from_task: found {found}, allowed: one of the two")
        self.job_id = job_id
        self.from_task = from_task
        self.from_dag = from_dag
        self.from_run = from_run
        self.from_map_index = from_map_index
        self.until = until

    def is_over(self, context: Context) -> bool:
        """What is reached already needs no deferral."""
        try:
            return self.look(context) is not None
        except FfdlError as error:
            self.log.warning("the job cannot be read now: %s", error.message)
            return False

    def trigger(self, context: Context) -> "ReadingTrigger":
        """With the job's id, or where it comes from."""
        from ffdl_airflow.triggers.reading import TrainingJobReachedTrigger

        goals = [goal.value for goal in Goal]
        if self.until not in (*goals, *PHASES):
            allowed = ", ".join((*goals, *PHASES))
            raise AirflowFailException(f"until: found {self.until!r}, allowed: {allowed}")
        return TrainingJobReachedTrigger(
            job_id=self.job_id, until=self.until, **self._shared(self._address(context))
        )

    def answer(self, over: Mapping[str, Any]) -> dict[str, Any]:
        """Job, phase, step and model; an error where the goal cannot be reached.

        A fault of the looking alone is InfrastructureError where another try may see more.
        """
        if over["kind"] == "error" and over.get("retryable", True):
            raise InfrastructureError(str(over["text"]))
        if over["kind"] != "reached":
            raise AirflowFailException(str(over["text"]))
        return {key: value for key, value in over.items() if key != "kind"}

    def _address(self, context: Context) -> dict[str, Any] | None:
        if self.from_task is None:
            return None
        ti = context["ti"]
        own = self.from_dag in (None, ti.dag_id)
        return {"dag_id": self.from_dag or ti.dag_id, "scope": self.from_task,
                "run_id": self.from_run or (ti.run_id if own else None),
                "map_index": self.from_map_index}  # fmt: skip


class UtilizationWatchdogSensor(ReadingSensor):
    """Show utilization and warnings of a group's job in the task log, while launch runs.

    It never acts, and never fails the run by itself: what it cannot read makes it a skip. It ends
    with the job, or when launch comes back no more.

    :param group: id of the group
    :param launch_task_id: task that drives the gang
    """

    def __init__(self, *, group: str, launch_task_id: str, **kwargs: Any) -> None:
        kwargs.setdefault("never_fail", True)
        super().__init__(**kwargs)
        self.group = group
        self.launch_task_id = launch_task_id

    def trigger(self, context: Context) -> "ReadingTrigger":
        """With the group's address, and the ledger that its first stage has told."""
        from ffdl_airflow.triggers.reading import UtilizationTrigger

        ti = context["ti"]
        map_index = -1 if ti.map_index is None else ti.map_index
        first = ti.xcom_pull(task_ids=f"{self.group}.prefetch", map_indexes=map_index)
        known: Mapping[str, Any] = first if isinstance(first, Mapping) else {}
        _leave_for_the_link(context, known.get("job_id"))
        place = {"dag_id": ti.dag_id, "run_id": ti.run_id, "map_index": map_index}
        return UtilizationTrigger(
            launch={**place, "task_id": self.launch_task_id}, ledger=known.get("ledger"),
            **self._shared({**place, "scope": self.group}),
        )  # fmt: skip

    def answer(self, over: Mapping[str, Any]) -> dict[str, Any]:
        """How it went; a skip where it could not be watched."""
        if over["kind"] != "over":
            raise AirflowSkipException(f"not watched: {over['text']}")
        return {key: value for key, value in over.items() if key != "kind"}


def _leave_for_the_link(context: Context, job_id: str | None) -> None:
    if job_id is not None:
        context["ti"].xcom_push(key=XCOM_JOB_ID, value=job_id)
