"""The jobs whose documents are kept in ``tests/golden/kubernetes``.

A test compares; ``python -m tests.engines.kubernetes.rendered`` writes the files anew, to be read
before they are committed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ffdl_airflow.console import yaml_text
from ffdl_airflow.core.plan import GangPlan, Places, Timing, build
from ffdl_airflow.engines.kubernetes import names
from ffdl_airflow.engines.kubernetes.preview import everything
from ffdl_airflow.engines.kubernetes.settings import KubernetesSettings, from_values
from ffdl_airflow.testing.builders import T0, job

GOLDEN = Path(__file__).parents[2] / "golden" / "kubernetes"
KEY = b"the key of the golden files"
VALUES = {
    "namespace": "training", "agent_image": "registry.internal/ffdl-agent:0.1.0",
    "volumes": "ffdl-shared:/mnt/shared",
}  # fmt: skip
IMAGE = "registry.internal/bert:7"
TOKEN = {"HF_TOKEN": {"secretName": "hub", "key": "token"}}
PYTORCH = {"framework": "pytorch", "code": "/src", "entryPoint": "train.py", "image": IMAGE,
           "env": {"SEED": "7", **TOKEN}}  # fmt: skip
CODE = "/mnt/shared/cache/code/0011223344556677/data"
COMMAND = ["python3", "train.py"]
CASES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "pytorch": ({
        "training": PYTORCH, "replicas": 2,
        "resources": {"gpu": 1, "cpu": 4, "memory": "16Gi", "sharedMemory": "2Gi"},
    }, {}),
    "tensorflow": ({
        "training": {"framework": "tensorflow", "command": COMMAND, "image": "reg/tf:1"},
        "replicas": None, "resources": {"gpu": 2, "cpu": 8, "memory": "32Gi"},
        "roles": [{"name": "chief"}, {"name": "worker", "replicas": 2},
                  {"name": "ps", "image": "reg/tf-cpu:1",
                   "resources": {"gpu": 0, "cpu": 2, "memory": "4Gi"}}],
    }, {}),
    "mpi": ({
        "training": {"framework": "mpi", "command": ["./solve"], "image": "reg/mpi:3"},
        "replicas": None, "resources": {"cpu": 4},
        "roles": [{"name": "launcher", "command": ["mpirun", "./solve"],
                   "resources": {"cpu": "500m"}},
                  {"name": "worker", "replicas": 2, "processesPerReplica": 2}],
    }, {}),
    "host-network": ({
        "training": {"framework": "pytorch", "command": COMMAND, "image": IMAGE},
        "resources": {"gpu": 8}, "network": {"hostNetwork": True, "interface": "ib0"},
        "priority": "online-high", "gracePeriod": 90,
    }, {}),
    "placed-apart": ({
        "training": {"framework": "jax", "command": COMMAND, "image": IMAGE}, "replicas": 2,
        "reservation": {"gang": "podgroup"},
    }, {
        "volumes": "ffdl-shared:/mnt/shared,ffdl-data:/mnt/data:ro", "run_as_user": "image",
        "fs_group": "2000", "service_account": "ffdl-trainer", "pod_python": "/opt/bin/python3",
        "tolerations": "ffdl.airflow/training=true:NoSchedule,nvidia.com/gpu:NoSchedule",
    }),
}  # fmt: skip
"""Name → what the spec says, and the settings that differ."""


def settings_of(name: str) -> KubernetesSettings:
    return from_values({**VALUES, **CASES[name][1]}, installation_key=KEY)


def plan_of(name: str, *, placement: int = 1) -> GangPlan:
    spec, job_id = CASES[name][0], f"{name}-0123456789"
    root = f"/mnt/shared/checkpoints/{job_id}"
    places = Places(
        checkpoint_dir=root, output_dir=f"{root}/output", log_dir=f"{root}/output/logs",
        python="python3", host=names.host_of(f"{job_id}/{placement}"), asked_at=T0,
        code=CODE if "code" in spec["training"] else None,
    )  # fmt: skip
    return build(job(**spec), job_id=job_id, placement=placement, places=places, timing=Timing(),
                 generations={})  # fmt: skip


def text_of(name: str) -> str:
    documents = everything(plan_of(name), settings_of(name))
    return "".join(f"---\n{yaml_text(document)}" for document in documents)


if __name__ == "__main__":
    for case in CASES:
        (GOLDEN / f"{case}.yaml").write_text(text_of(case), encoding="utf-8")
