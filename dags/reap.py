"""Every ten minutes: stop what runs for a task or DAG run that will not come back.

The triggers stop a job when its task is taken away, and each try of a task reaps a little; this
catches what both have missed, after a crash of everything at the wrong moment. Safe beside running
jobs: what cannot be told counts as wanted, jobs of ``ffdl run`` always do.
"""

from airflow.sdk import DAG

from ffdl_airflow import ReapOperator

with DAG(
    "ffdl_reap",
    schedule="*/10 * * * *",
    catchup=False,
    max_active_runs=1,
    tags=["ffdl", "operations"],
) as dag:
    ReapOperator(task_id="reap")
