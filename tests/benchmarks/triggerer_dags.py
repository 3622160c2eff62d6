"""100 jobs that never end, on a stub engine, and a look at the triggerer that has them all."""

from airflow.sdk import DAG

from ffdl_airflow import TrainingJobOperator
from tests.benchmarks.lag import LagOperator

JOBS = 100
JOB = {"metadata": {"name": "stub"}, "spec": {"training": {"framework": "custom",
       "command": ["true"]}, "replicas": 2}}  # fmt: skip

with DAG("many", schedule=None, max_active_tasks=JOBS):
    TrainingJobOperator.partial(task_id="train", engine="tests.benchmarks.stub_engine:make").expand(
        job=[JOB] * JOBS
    )

with DAG("lag", schedule=None, params={"until": ""}):
    LagOperator(task_id="lag", until="{{ params.until }}", retries=2)
