"""Stops the job of a task or run that has come to its end without the job.

For: the process in which a person's *mark failed* arrives (the API server), and the scheduler's own
endings (``dagrun_timeout``, a task lost for good); there Airflow calls these hooks. The trigger's
``on_kill`` is the first line, this is the second, the reaper the third. It knows the installation
of the default connection only. Not for: what happens on a worker, which knows better. Never raises
and never waits: threads do the work.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from airflow.listeners import hookimpl

from ffdl_airflow.core.goal import Goal

log = logging.getLogger(__name__)
_POOL = ThreadPoolExecutor(max_workers=4, thread_name_prefix="ffdl-listener")
_STAGES = {goal.value: goal for goal in Goal if goal is not Goal.SUBMIT}
"""Names of the tasks of a group; other tasks in it mean nothing to its job."""


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:
    """A task has failed, by hand or for good."""
    _task_ended(task_instance, "failed")


@hookimpl
def on_task_instance_success(previous_state: Any, task_instance: Any) -> None:
    """A task was marked as success."""
    _task_ended(task_instance, "success")


@hookimpl
def on_task_instance_skipped(previous_state: Any, task_instance: Any) -> None:
    """A task was marked as skipped."""
    _task_ended(task_instance, "skipped")


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    """A run was marked as failed, has timed out, or has failed with all its tasks over."""
    from ffdl_airflow.stages.look import key_of_run

    prefix = key_of_run(dag_run.dag_id, dag_run.run_id)
    _in_background(lambda key: key.startswith(prefix), why=f"the DAG run has failed ({msg})")


def _task_ended(ti: Any, state: str) -> None:
    if not _is_row(ti) or str(ti.state) != state:
        return
    from ffdl_airflow.hooks.standing import stops_job
    from ffdl_airflow.stages.look import Address

    def key(scope: str) -> str:
        return Address(
            dag_id=ti.dag_id, run_id=ti.run_id, scope=scope, map_index=ti.map_index
        ).key  # fmt: skip

    keys = {key(ti.task_id)}
    group, _, stage = str(ti.task_id).rpartition(".")
    if group and stage in _STAGES and stops_job(state, _STAGES[stage]):
        keys.add(key(group))
    _in_background(lambda key: key in keys, why=f"the task was marked {state}")


def _is_row(ti: Any) -> bool:
    """Whether this is a row of Airflow's database, and not a worker's own picture of its task."""
    return hasattr(ti, "_sa_instance_state")


def _in_background(owns: Callable[[str], bool], *, why: str) -> None:
    _POOL.submit(_stop, owns, why)


def _stop(owns: Callable[[str], bool], why: str) -> None:
    from ffdl_airflow.hooks.ffdl import DEFAULT_CONN_ID, FfdlHook
    from ffdl_airflow.hooks.stopping import stop_all
    from ffdl_airflow.stages import owned

    try:
        rows = owned.living(FfdlHook().deps({"stopping": True}), owns)
        stop_all(rows, mode="now", why=why, conn_id=DEFAULT_CONN_ID)
    except Exception:
        log.exception("the jobs of an ended task were not stopped; the reaper will find them")
