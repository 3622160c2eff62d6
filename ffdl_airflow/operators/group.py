"""``TrainingJobGroup``: the same job with one task for each stage.

::

    prefetch ─► reserve (setup) ─► launch ─► release (teardown of reserve)
       └──────► watchdog             └─────► register            (both outside the setup's scope)

With this wiring clearing launch reserves again, and clearing the watchdog or register touches
nothing else (tried).
"""

from typing import Any, ClassVar

from airflow.sdk import TaskGroup

from ffdl_airflow.core.goal import Goal
from ffdl_airflow.hooks.ffdl import DEFAULT_CONN_ID
from ffdl_airflow.operators.stage import Manifest, StageOperator
from ffdl_airflow.sensors.job import UtilizationWatchdogSensor


class PrefetchOperator(StageOperator):
    """The job's data and code become verified generations. Nothing is reserved."""

    goal: Goal = Goal.PREFETCH
    clears: ClassVar[bool] = True


class ReserveOperator(StageOperator):
    """The whole gang holds its resources, for as long as the hold lasts."""

    goal: Goal = Goal.RESERVE
    clears: ClassVar[bool] = True


class LaunchOperator(StageOperator):
    """The gang trains to its end. A hold that has run out in between is reserved again."""

    goal: Goal = Goal.LAUNCH


class ReleaseOperator(StageOperator):
    """Nothing of the job holds a resource any more. The backstop: launch gives back by itself."""

    goal: Goal = Goal.RELEASE


class RegisterOperator(StageOperator):
    """The last checkpoint becomes a model version."""

    goal: Goal = Goal.REGISTER


class TrainingJobGroup(TaskGroup):
    """A training job with one task for each stage.

    :param group_id: id of the group; with the run it names the job
    :param job: see :class:`~ffdl_airflow.operators.stage.StageOperator`
    :param engine: engine by name; default: the connection's or the settings'
    :param ffdl_conn_id: connection of type ``ffdl``
    :param deferrable: wait in the triggerer instead of a worker
    :param show_watchdog: with a task that shows utilization and warnings beside launch; the ladder
        acts without it. ``dag.test`` runs one task at a time, so there it would block launch
    """

    def __init__(self, group_id: str, *, job: Manifest, engine: str | None = None,
                 ffdl_conn_id: str = DEFAULT_CONN_ID, deferrable: bool = True,
                 show_watchdog: bool = True, **kwargs: Any) -> None:  # fmt: skip
        if not kwargs.get("prefix_group_id", True):
            raise ValueError("prefix_group_id: found False, allowed: True, which names the stages")
        super().__init__(group_id=group_id, **kwargs)
        shared: dict[str, Any] = {
            "job": job, "engine": engine, "ffdl_conn_id": ffdl_conn_id, "deferrable": deferrable,
            "scope": self.group_id,
        }  # fmt: skip
        with self:
            prefetch = PrefetchOperator(task_id="prefetch", **shared)
            reserve = ReserveOperator(task_id="reserve", **shared)
            reserve.as_setup()  # type: ignore[no-untyped-call] # Airflow's own
            launch = LaunchOperator(task_id="launch", **shared)
            release = ReleaseOperator(task_id="release", **shared)
            release.as_teardown(setups=reserve)
            register = RegisterOperator(task_id="register", **shared)
            prefetch >> reserve >> launch >> release
            launch >> register
            if show_watchdog:
                watchdog = UtilizationWatchdogSensor(
                    task_id="watchdog", group=str(self.group_id), launch_task_id=launch.task_id,
                    engine=engine, ffdl_conn_id=ffdl_conn_id, deferrable=deferrable,
                )  # fmt: skip
                prefetch >> watchdog
        self.register = register
