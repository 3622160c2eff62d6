"""The job of the integration tests, as pods."""

import os

from airflow.sdk import DAG
from counting_job import JOB, PARAMS

from ffdl_airflow import TrainingJobGroup, TrainingJobOperator

SPEC = JOB["spec"]
PODS = {**JOB, "spec": {
    **SPEC, "training": {**SPEC["training"], "image": os.environ["FFDL_TEST_IMAGE"]},
    "resources": {"cpu": "100m"},
}}  # fmt: skip

with DAG("counting", schedule=None, params=PARAMS):
    TrainingJobOperator(task_id="train", job=PODS)

with DAG("counting_group", schedule=None, params=PARAMS):
    TrainingJobGroup("train", job=PODS)
