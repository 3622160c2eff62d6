"""A job that goes on from its checkpoint, whatever happens to it.

Trigger it, wait for the first checkpoint, then try any of these; the task's log and the job's page
show attempt 2, the step it resumed from, and what the interruption cost:

- kill a rank: ``pkill -9 -f train.py`` (from outside: costs nothing, and no try)
- clear the task while it waits (nothing is lost but the steps since the checkpoint)
- kill the triggerer or the scheduler, and start it again (the job does not notice)

The weights are the same as those of an undisturbed run, bit for bit.
"""

from pathlib import Path

import yaml
from airflow.sdk import DAG

from ffdl_airflow import TrainingJobOperator

job = yaml.safe_load((Path(__file__).parent / "digits.yaml").read_text())
job["metadata"]["name"] = job["spec"]["model"]["name"] = "digits-resume"
job["spec"]["training"]["args"] = ["--steps", "400", "--every", "50", "--step-delay", "0.05"]
job["spec"]["checkpoint"] = {"every": 50, "keep": 3, "onClear": "resume"}  # or: fresh
job["spec"]["backoffLimit"] = 3  # failures that cost; what comes from outside costs nothing

with DAG("training_resume", schedule=None, catchup=False, tags=["ffdl"]) as dag:
    TrainingJobOperator(task_id="digits", job=job)
