"""A training job that is started from Airflow's form: *Trigger* asks for every value below.

Airflow checks them against the schema of each ``Param`` before the run is made, here as in the REST
API (a wrong value is answered with 400); a value that no field asks for fails the task. ``tojson``
keeps what was typed one value of the manifest, whatever characters are in it.
"""

from difflib import get_close_matches
from typing import Any

from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import AirflowFailException

from ffdl_airflow import TrainingJobOperator

MANIFEST = """
apiVersion: ffdl.cloud.ibm.com/v1
kind: TrainingJob
metadata:
  name: digits
  labels:
    team: {{ params.team | tojson }}
    project: digits
spec:
  training:
    framework: {{ params.framework | tojson }}
    code: {{ {"jax": "digits", "pytorch": "digits_torch"}.get(params.framework, "digits_tf") }}
    entryPoint: {{ params.entry_point | tojson }}
    args:
      - --steps={{ params.steps }}
      - --every={{ params.checkpoint_every }}
      - --lr={{ params.learning_rate }}
      - --seed={{ params.seed }}
      - --step-delay={{ params.step_delay }}
  replicas: {{ params.replicas }}
  resources:
    cpu: 1
    memory: 2Gi
  dataStores:
    - name: digits
      path: digits-data
      mountPath: /data
  checkpoint:
    every: {{ params.checkpoint_every }}
  model:
    name: {{ params.model | tojson }}
"""

NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


def only_known(context: Any) -> None:
    """Airflow also takes values that no field asks for; a misspelt one would change nothing."""
    for name in context["dag_run"].conf or {}:
        if name not in dag.params:
            near = get_close_matches(name, dag.params, n=1)
            allowed = f"{near[0]} is the nearest known one" if near else ", ".join(dag.params)
            raise AirflowFailException(f"conf: found the unknown value {name}, allowed: {allowed}")


with DAG(
    "training_from_ui",
    schedule=None,
    catchup=False,
    tags=["ffdl"],
    description="Train on handwritten digits; every value can be set in the form",
    params={
        "framework": Param(
            "jax",
            type="string",
            enum=["jax", "pytorch", "tensorflow"],
            title="Framework",
            description="Each has its own program and has to be installed where the ranks run.",
        ),
        "entry_point": Param(
            "train.py",
            type="string",
            pattern=r"^[\w./-]+\.py$",
            title="Entry point",
            description="A Python file in the framework's folder beside this DAG.",
        ),
        "engine": Param(
            "local",
            type="string",
            enum=["local"],
            title="Engine",
            description="Where the gang runs. Local: on the host of the worker.",
        ),
        "replicas": Param(
            2,
            type="integer",
            enum=[1, 2, 4, 8],
            title="Replicas",
            description="Processes that train together; all are placed or none.",
        ),
        "steps": Param(
            400,
            type="integer",
            minimum=1,
            maximum=100_000,
            title="Steps",
        ),
        "checkpoint_every": Param(
            100,
            type="integer",
            minimum=1,
            maximum=100_000,
            title="Checkpoint every … steps",
            description="A retry or a clear goes on from the newest checkpoint.",
        ),
        "learning_rate": Param(
            0.1,
            type="number",
            exclusiveMinimum=0,
            maximum=10,
            title="Learning rate",
        ),
        "step_delay": Param(
            0.0,
            type="number",
            minimum=0,
            maximum=10,
            title="Pause after each step",
            description="Seconds. Above 0 there is more time to look at the job's page.",
        ),
        "seed": Param(
            0,
            type="integer",
            minimum=0,
            maximum=2**32 - 1,
            title="Seed",
            description="Same seed, same weights.",
        ),
        "model": Param(
            "digits",
            type="string",
            pattern=NAME,
            title="Model",
            description="Name in the registry; each run makes a new version.",
        ),
        "team": Param(
            "demo",
            type="string",
            pattern=NAME,
            title="Team",
            description="Who is charged for the slots.",
        ),
    },
) as dag:
    TrainingJobOperator(
        task_id="train", job=MANIFEST, engine="{{ params.engine }}", pre_execute=only_known
    )
