"""Jobs that are cleared, changed or left behind. `changing.yaml` is written by the test."""

import time
from pathlib import Path

from airflow.sdk import DAG, task
from counting_job import JOB, PARAMS

from ffdl_airflow import ReapOperator, TrainingJobGroup, TrainingJobOperator

CHECKPOINT = {**JOB["spec"]["checkpoint"], "onClear": "fresh"}
FRESH = {**JOB, "spec": {**JOB["spec"], "checkpoint": CHECKPOINT}}

with DAG("fresh", schedule=None, params=PARAMS):
    TrainingJobOperator(task_id="train", job=FRESH)

with DAG("changing", schedule=None, params=PARAMS):
    TrainingJobOperator(task_id="train", job="changing.yaml")

DATA = [{"name": "slow", "path": str(Path(__file__).parents[1] / "trainers")}]

with DAG("fetches", schedule=None, params=PARAMS):
    TrainingJobGroup("train", job={**JOB, "spec": {**JOB["spec"], "dataStores": DATA}})

with DAG("deleted", schedule=None, params=PARAMS):
    TrainingJobOperator(task_id="train", job=JOB)

LIMITS = {"hold_s": 600, "prefetch_s": 600, "reserve_s": 600, "register_s": 600}
DEADLINES = {name: f"{{{{ params.{name}_s }}}}" for name in ("prefetch", "reserve", "register")}
LIMITED = {**JOB, "spec": {
    **JOB["spec"], "dataStores": DATA, "reservation": {"hold": "{{ params.hold_s }}"},
    "deadlines": DEADLINES,
}}  # fmt: skip

with DAG("limited", schedule=None, params=PARAMS | LIMITS | {"go": ""}):

    @task
    def wait(params=None):
        """Until there is a file of this name: launch comes after it."""
        while params["go"] and not Path(params["go"]).exists():
            time.sleep(0.2)

    group = TrainingJobGroup("train", job=LIMITED)
    wait() >> group.get_child_by_label("launch")

with DAG("reaper", schedule=None):
    ReapOperator(task_id="reap")
