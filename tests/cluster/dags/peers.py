"""One pod that sleeps, by Airflow's own operators and by ours."""

import os

from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG

from ffdl_airflow import TrainingJobOperator

IMAGE, NAMESPACE = os.environ["FFDL_TEST_IMAGE"], os.environ["FFDL_TEST_NAMESPACE"]
WORDS = ["python3", "-S", "-c", "import time; time.sleep(900)"]
POD = {"image": IMAGE, "namespace": NAMESPACE, "cmds": WORDS, "deferrable": True,
       "kubernetes_conn_id": "kubernetes_default"}  # fmt: skip

with DAG("pod_operator", schedule=None):
    KubernetesPodOperator(
        task_id="train", name="pod-operator", on_finish_action="delete_pod", **POD
    )

with DAG("job_operator", schedule=None):
    KubernetesJobOperator(task_id="train", name="job", wait_until_job_complete=True, **POD)

with DAG("steady_pods", schedule=None):
    TrainingJobOperator(task_id="train", job={
        "apiVersion": "ffdl.cloud.ibm.com/v1", "kind": "TrainingJob",
        "metadata": {"name": "steady"},
        "spec": {"training": {"framework": "custom", "command": WORDS, "image": IMAGE},
                 "resources": {"cpu": "100m"}},
    })  # fmt: skip
