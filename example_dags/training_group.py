"""A training job with one task for each stage of its life."""

from airflow.sdk import DAG

from ffdl_airflow import TrainingJobGroup

with DAG("training_group", schedule=None, catchup=False, tags=["ffdl"]) as dag:
    TrainingJobGroup("digits", job="digits.yaml")
