"""Every night: each manifest of a folder is trained, a few at a time, and all are gone by morning.

Put TrainingJob manifests (``*.yaml``) into the folder; what changes there is seen by the next run.
A wrong manifest fails its own task and no other. When the window closes, what trains saves a
checkpoint and stops; ten minutes later the run is over, and what has not begun by then does not.
Clear a task that was stopped, and its job goes on from the checkpoint; that run ends with its
timeout, without a save of its own, since Airflow tells of a deadline once.
"""

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Param, task
from airflow.sdk.exceptions import AirflowSkipException

from ffdl_airflow import TrainingJobOperator, run_deadline

WINDOW = timedelta(hours=8)
AT_ONCE = 2
"""Jobs that run side by side; the others wait for a place."""

with DAG(
    "nightly_training",
    schedule="0 22 * * *",
    catchup=False,
    max_active_runs=1,
    deadline=run_deadline(WINDOW, stop=True),
    dagrun_timeout=WINDOW + timedelta(minutes=10),
    tags=["ffdl", "operations"],
    params={
        "folder": Param(
            str(Path(__file__).parent / "nightly"),
            type="string",
            title="Folder",
            description="Its *.yaml files are trained, one job each.",
        )
    },
) as dag:

    @task
    def manifests(params: dict | None = None) -> list[str]:
        """Paths of the manifests, in the order of their names."""
        folder = Path((params or {})["folder"])
        found = sorted(str(path) for path in folder.glob("*.yaml"))
        if not found:
            raise AirflowSkipException(f"no *.yaml in {folder}: nothing to train tonight")
        return found

    TrainingJobOperator.partial(
        task_id="train",
        max_active_tis_per_dagrun=AT_ONCE,
        map_index_template="{{ task.job.rpartition('/')[2] }}",
    ).expand(job=manifests())
