"""A deferral that Airflow ends before our own trigger does: as if that had got stuck."""

from datetime import timedelta

from airflow.sdk import DAG
from counting_job import JOB, PARAMS

from ffdl_airflow import TrainingJobOperator


class Impatient(TrainingJobOperator):
    backstop = timedelta(seconds=-555)


with DAG("backstop", schedule=None, params=PARAMS):
    Impatient(task_id="train", job=JOB, execution_timeout=timedelta(seconds=600))
