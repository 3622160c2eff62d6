"""A group whose trainer is told how to use the machine, and a sensor that waits for its job."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG

from ffdl_airflow import TrainingJobGroup, TrainingJobSensor

PARAMS = {"words": "work:1", "beats": "", "launch_s": 600}
JOB = {
    "apiVersion": "ffdl.cloud.ibm.com/v1",
    "kind": "TrainingJob",
    "metadata": {"name": "watched"},
    "spec": {
        "training": {
            "framework": "custom",
            "code": str(Path(__file__).parents[1] / "trainers"),
            "entryPoint": "using.py",
            "args": ["{{ params.words }}"],
        },
        "model": {"name": "watched"},
        "resources": {"minGpuUtilization": 5},
        "watchdog": {"window": 4},
        "deadlines": {"launch": "{{ params.launch_s }}"},
        "backoffLimit": 0,
    },
}

with DAG("watched", schedule=None, params=PARAMS):
    group = TrainingJobGroup("train", job=JOB)

with DAG("waits", schedule=None, params=PARAMS | {"run": ""}):
    TrainingJobSensor(task_id="running", from_dag="watched", from_task="train", until="Running")
    TrainingJobSensor(task_id="registered", from_dag="watched", from_task="train",
                      from_run="{{ params.run }}", poke_interval=1)  # fmt: skip
