"""The job of the integration tests, without a DAG: a file that imports DAGs would own them too."""

from pathlib import Path

PARAMS = {"name": "count", "steps": 20, "every": 5, "delay": "0", "beats": "", "fail_at": "",
          "only_attempt": "", "replicas": 2, "sleep_at": "", "backoff": 2, "env": ""}  # fmt: skip
ARGS = {
    "--steps": "{{ params.steps }}", "--every": "{{ params.every }}",
    "--step-delay": "{{ params.delay }}", "--beats": "{{ params.beats }}",
    "--fail-at": "{{ params.fail_at }}", "--only-attempt": "{{ params.only_attempt }}",
    "--sleep-at": "{{ params.sleep_at }}",
}  # fmt: skip
JOB = {
    "apiVersion": "ffdl.cloud.ibm.com/v1",
    "kind": "TrainingJob",
    "metadata": {"name": "{{ params.name }}"},
    "spec": {
        "training": {
            "framework": "custom",
            "code": str(Path(__file__).parents[1] / "trainers"),
            "entryPoint": "counting.py",
            "args": [word for pair in ARGS.items() for word in pair],
        },
        "replicas": "{{ params.replicas }}",
        "checkpoint": {"every": "{{ params.every }}"},
        "model": {"name": "{{ params.name }}"},
        "backoffLimit": "{{ params.backoff }}",
    },
}
