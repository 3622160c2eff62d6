"""Plain Kubernetes objects as the API gives them, shortened to what is read."""

from __future__ import annotations

from typing import Any

GPU = "nvidia.com/gpu"
Plain = dict[str, Any]


def node(name: str, *, gpu: int = 8, pods: int = 110, labels: dict[str, str] | None = None,
         ready: str = "True", **spec: Any) -> Plain:  # fmt: skip
    """A node with 64 cores and 512Gi."""
    offers = {"cpu": "64", "memory": "512Gi", "pods": str(pods)}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": spec,
        "status": {
            "allocatable": {**offers, **({GPU: str(gpu)} if gpu else {})},
            "conditions": [{"type": "Ready", "status": ready, "reason": "KubeletReady"}],
        },
    }


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> Plain:
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def container(name: str = "worker", *, gpu: int = 0, cpu: str | None = "4",
              memory: str | None = "16Gi", **more: Any) -> Plain:  # fmt: skip
    requests = {**({"cpu": cpu} if cpu else {}), **({"memory": memory} if memory else {})}
    limits = {GPU: str(gpu)} if gpu else {}
    image = "reg.example/train:v9"
    return {"name": name, "image": image, "resources": {"requests": requests, "limits": limits},
            **more}  # fmt: skip


def pod(name: str, *containers: Plain, on: str | None = None, meta: Plain | None = None,
        status: Plain | None = None, **spec: Any) -> Plain:  # fmt: skip
    """A pod; bound and running where ``on`` names a node."""
    return {
        "metadata": {"name": name, "namespace": "ml", **(meta or {})},
        "spec": {"containers": list(containers or [container(gpu=8)]), **spec,
                 **({"nodeName": on} if on else {})},
        "status": {"phase": "Running" if on else "Pending", **(status or {})},
    }  # fmt: skip


def gang(count: int, *containers: Plain, role: str = "worker", **spec: Any) -> list[Plain]:
    return [pod(f"{role}-{i}", *containers, **spec) for i in range(count)]


def holder(job: str, placement: int, name: str, on: str, gpu: int = 8) -> Plain:
    """A running pod of another placement."""
    labels = {"ffdl.airflow/job": job, "ffdl.airflow/placement": str(placement)}
    return pod(name, container(gpu=gpu), on=on, meta={"labels": labels})


def quota(name: str, hard: Plain, used: Plain | None = None, **spec: Any) -> Plain:
    return {"metadata": {"name": name}, "spec": {"hard": hard, **spec},
            "status": {"hard": hard, "used": used or {}}}  # fmt: skip


def limit_range(name: str, **item: Any) -> Plain:
    return {"metadata": {"name": name}, "spec": {"limits": [{"type": "Container", **item}]}}
