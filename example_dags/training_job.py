"""A whole training job as one task."""

from airflow.sdk import DAG

from ffdl_airflow import TrainingJobOperator

with DAG("training_job", schedule=None, catchup=False, tags=["ffdl"]) as dag:
    TrainingJobOperator(task_id="digits", job="digits.yaml")
