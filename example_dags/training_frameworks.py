"""The same data in two frameworks, side by side; the better model is told at the end.

PyTorch and TensorFlow have to be installed where the ranks run.
"""

from airflow.sdk import DAG, task

from ffdl_airflow import TrainingJobOperator

with DAG("training_frameworks", schedule=None, catchup=False, tags=["ffdl"]) as dag:

    @task
    def best(results: list[dict]) -> str:
        """Name and accuracy of the better model; each result is what its task has returned."""
        result = max(results, key=lambda result: result["metrics"]["accuracy"])
        return f"{result['model']['name']}: {result['metrics']['accuracy']:.3f}"

    trained = [
        TrainingJobOperator(task_id=name, job=f"digits_{name}.yaml") for name in ("torch", "tf")
    ]
    best([job.output for job in trained])
