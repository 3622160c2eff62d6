"""Pods for tests: making them, and waiting for what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from tests.cluster import images
from tests.cluster.bed import Bed
from tests.cluster.fake_nodes import SELECTOR, TOLERATION
from tests.cluster.processes import wait_for


def manifest(name: str, command: Sequence[str], *, image: str = images.PYTHON, **spec: Any) -> Any:
    """A pod with one container, ``main``, that is not restarted; ``spec`` goes into its spec."""
    container = {"name": "main", "image": image, "command": list(command)}
    container |= spec.pop("container", {})
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, **spec}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def fake_manifest(name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> Any:
    """A pod for a fake node: see `fake_nodes` for the annotations that end it."""
    pod = manifest(name, ["ignored"], nodeSelector=SELECTOR, tolerations=[TOLERATION], **spec)
    pod["metadata"]["annotations"] = dict(annotations or {})
    return pod


def create(bed: Bed, namespace: str, pod: Any) -> Any:
    """Make a pod and return it as the API server does."""
    return bed.api("POST", f"/api/v1/namespaces/{namespace}/pods", pod)


def path_of(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def wait_until(
    bed: Bed, namespace: str, name: str, condition: Callable[[Any], bool], *, timeout_s: float = 60
) -> Any:
    """Wait until a condition on a pod holds, and return the pod."""
    path = path_of(namespace, name)

    def held() -> Any:
        pod = bed.api("GET", path)
        return pod if condition(pod) else None

    def story() -> str:
        return f"pod {name} is not as it should be: {json.dumps(bed.api('GET', path)['status'])}"

    return wait_for(held, story, timeout_s=timeout_s)


def ended(pod: Any) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def ready(pod: Any) -> bool:
    found = pod["status"].get("conditions", [])
    return any(x["type"] == "Ready" and x["status"] == "True" for x in found)


def exit_code(pod: Any) -> int:
    """Of the first container of an ended pod."""
    code: int = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
    return code
