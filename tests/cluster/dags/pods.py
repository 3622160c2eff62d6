"""The shipped examples, as pods: only the engine and the image differ."""

import os
from pathlib import Path

import yaml
from airflow.sdk import DAG

from ffdl_airflow import TrainingJobGroup, TrainingJobOperator

HERE = Path(__file__).parent


def example(name: str) -> dict:
    job = yaml.safe_load((HERE / f"{name}.yaml").read_text())
    job["spec"]["training"]["image"] = os.environ["FFDL_TEST_IMAGE"]
    for part in (job["spec"]["training"], *job["spec"]["dataStores"]):
        key = "code" if "code" in part else "path"
        part[key] = str(HERE / part[key])
    return job


for name in ("digits", "digits_torch"):
    with DAG(f"{name}_pods", schedule=None):
        TrainingJobOperator(task_id="train", job=example(name))

with DAG("group_pods", schedule=None):
    TrainingJobGroup("train", job=example("digits"))
