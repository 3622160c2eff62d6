"""``run_deadline``: Airflow's Deadline Alert for a DAG run with training jobs.

::

    with DAG("nightly", deadline=run_deadline(timedelta(hours=6), stop=True)): ...

Each job of the run gets an event ``DeadlineMissed``; with ``stop`` it saves a checkpoint and ends.
Airflow tells of a missed deadline once in the life of a run, also where that is cleared later. The
deadlines of single stages are ``spec.deadlines``.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from ffdl_airflow.hooks.ffdl import DEFAULT_CONN_ID


def run_deadline(limit: timedelta, *, stop: bool = False,
                 ffdl_conn_id: str = DEFAULT_CONN_ID) -> DeadlineAlert:  # fmt: skip
    """An alert for runs that are not over ``limit`` after they were queued."""
    given: Any = limit  # not every DAG file is typed
    if not isinstance(given, timedelta) or given <= timedelta(0):
        raise ValueError(f"limit: found {limit!r}, allowed: a timedelta above 0")
    kwargs = {"limit_s": limit.total_seconds(), "stop": stop, "ffdl_conn_id": ffdl_conn_id}
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=limit,
        callback=AsyncCallback(deadline_missed, kwargs=kwargs),
    )


async def deadline_missed(*, limit_s: float, stop: bool, ffdl_conn_id: str, context: Any) -> None:
    """What Airflow runs in a triggerer when the deadline is missed."""
    from ffdl_airflow.triggers.threads import in_thread

    run = context["dag_run"]
    await in_thread(lambda: _tell(run, limit_s=limit_s, stops=stop, conn_id=ffdl_conn_id))


def _tell(run: Any, *, limit_s: float, stops: bool, conn_id: str) -> None:
    from ffdl_airflow.hooks.ffdl import FfdlHook
    from ffdl_airflow.hooks.stopping import stop_all
    from ffdl_airflow.stages import owned
    from ffdl_airflow.stages.look import key_of_run

    prefix = key_of_run(run["dag_id"], run["dag_run_id"])
    deps = FfdlHook(conn_id).deps({"deadline": True})
    rows = owned.living(deps, lambda key: key.startswith(prefix))
    for row in rows:
        owned.deadline_missed(deps, row, limit_s=limit_s, stops=stops)
    if stops:
        why = f"the deadline of the DAG run ({limit_s:g} s) was missed"
        stop_all(rows, mode="save", why=why, conn_id=conn_id)
