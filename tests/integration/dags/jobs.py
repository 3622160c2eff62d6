"""The DAGs of the integration tests. What a run does is said by its parameters."""

from datetime import timedelta

from airflow.sdk import DAG, task
from counting_job import JOB, PARAMS

from ffdl_airflow import TrainingJobGroup, TrainingJobOperator, model_asset, run_deadline

with DAG("operator", schedule=None, params=PARAMS):
    TrainingJobOperator(task_id="train", job=JOB)

with DAG("group", schedule=None, params=PARAMS):
    TrainingJobGroup("train", job=JOB)

with DAG("blocking", schedule=None, params=PARAMS):
    TrainingJobOperator(task_id="train", job=JOB, deferrable=False)

with DAG("task_timeout", schedule=None, params=PARAMS):
    TrainingJobOperator(task_id="train", job=JOB, execution_timeout=timedelta(seconds=45))

with DAG("task_timeout_blocking", schedule=None, params=PARAMS):
    TrainingJobOperator(
        task_id="train", job=JOB, deferrable=False, execution_timeout=timedelta(seconds=45)
    )

with DAG("run_timeout", schedule=None, params=PARAMS, dagrun_timeout=timedelta(seconds=45)):
    TrainingJobGroup("train", job=JOB)

with DAG("deadline_stops", schedule=None, params=PARAMS,
         deadline=run_deadline(timedelta(seconds=45), stop=True)):  # fmt: skip
    TrainingJobOperator(task_id="train", job=JOB)

with DAG("deadline_reports", schedule=None, params=PARAMS,
         deadline=run_deadline(timedelta(seconds=10))):  # fmt: skip
    TrainingJobOperator(task_id="train", job=JOB)

with DAG("evaluate", schedule=[model_asset("asset-model")]):

    @task
    def look(triggering_asset_events=None):
        """The version that set this off, as its event tells."""
        return [event.extra for events in triggering_asset_events.values() for event in events]

    look()
