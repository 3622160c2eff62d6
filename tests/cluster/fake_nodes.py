"""Fake nodes, by kwok: objects in the API that say Ready, and pods on them that say Running.

A pod on a fake node ends when it has the annotation ``ffdl-test/exit`` (an exit code), after
``ffdl-test/delay`` (a Go duration such as ``8s``; one second without it).
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.cluster import tools
from tests.cluster.api_client import Api
from tests.cluster.cleanup import Journal
from tests.cluster.places import FAKE_POD_RANGE, HOST_IP, BedError, Layout, free_port
from tests.cluster.processes import Daemon, answers, wait_for
from tests.cluster.real_node import is_ready

ANNOTATION = "kwok.x-k8s.io/node"
SELECTOR = {"ffdl-test/node": "fake"}
"""A label of each fake node, for a pod's nodeSelector."""
TAINT = {"key": ANNOTATION, "value": "fake", "effect": "NoSchedule"}
TOLERATION = {"key": ANNOTATION, "operator": "Exists", "effect": "NoSchedule"}
EXIT, DELAY = "ffdl-test/exit", "ffdl-test/delay"
STOCK_STAGES = (
    "node/fast/node-initialize.yaml", "pod/fast/pod-ready.yaml", "pod/fast/pod-delete.yaml"
)  # fmt: skip
CONFIG = """\
apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  podPlayStageParallelism: 32
  nodePlayStageParallelism: 8
"""
END_STAGE = """\
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata:
  name: pod-end
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Running]}
    - {key: '.metadata.annotations["ffdl-test/exit"]', operator: Exists}
  delay:
    durationMilliseconds: 1000
    durationFrom:
      expressionFrom: '.metadata.annotations["ffdl-test/delay"]'
  next:
    statusTemplate: |
      {{ $now := Now }}
      {{ $code := index .metadata.annotations "ffdl-test/exit" }}
      {{ $fine := eq $code "0" }}
      phase: {{ if $fine }}Succeeded{{ else }}Failed{{ end }}
      conditions:
      - type: Ready
        status: "False"
        reason: PodCompleted
        lastTransitionTime: {{ $now | Quote }}
      containerStatuses:
      {{ range .spec.containers }}
      - name: {{ .name | Quote }}
        image: {{ .image | Quote }}
        ready: false
        restartCount: 0
        state:
          terminated:
            exitCode: {{ $code }}
            reason: {{ if $fine }}Completed{{ else }}Error{{ end }}
            startedAt: {{ $now | Quote }}
            finishedAt: {{ $now | Quote }}
      {{ end }}
"""


class FakeNodes:
    """kwok, and the nodes it plays."""

    def __init__(self, layout: Layout, journal: Journal, kubeconfig: Path, api: Api) -> None:
        self._api = api
        self._numbers = itertools.count()
        self._port = free_port()
        stages = layout.folder / "stages.yaml"
        stages.write_text("\n---\n".join([CONFIG, *_stock_stages(), END_STAGE]))
        words = [
            tools.path_of("kwok"), f"--kubeconfig={kubeconfig}", f"--config={stages}",
            f"--manage-nodes-with-annotation-selector={ANNOTATION}=fake",
            f"--cidr={FAKE_POD_RANGE}", f"--node-ip={HOST_IP}",
            f"--server-address=127.0.0.1:{self._port}",
            "--node-lease-duration-seconds=8", "-v=WARN",
        ]  # fmt: skip
        self.daemon = Daemon(layout, journal, "kwok", words)

    def start(self) -> None:
        self.daemon.start()
        self.daemon.wait_until(lambda: answers(f"http://127.0.0.1:{self._port}/healthz"))

    def add(
        self, prefix: str, count: int, *, capacity: dict[str, str], labels: dict[str, str]
    ) -> list[str]:
        """Make nodes, wait until they are Ready, and return their names."""
        names = [f"{prefix}-{next(self._numbers)}" for _ in range(count)]

        def make(name: str) -> None:
            self._api("POST", "/api/v1/nodes", _node(name, capacity, labels))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(make, names))
        wait_for(
            lambda: set(names) <= {x["metadata"]["name"] for x in self._list() if is_ready(x)},
            lambda: f"fake nodes are not ready:\n{self.daemon.tail()}",
        )
        return names

    def remove(self) -> None:
        """Remove all fake nodes, and the pods on them."""
        nodes = {node["metadata"]["name"] for node in self._list()}
        pods = self._api("GET", "/api/v1/pods")["items"]
        paths = [
            f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
            for pod in pods
            if pod["spec"].get("nodeName") in nodes
        ]
        paths += [f"/api/v1/nodes/{node}" for node in nodes]

        def delete(path: str) -> None:
            self._api.raw("DELETE", path, params={"gracePeriodSeconds": 0})

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(delete, paths))

    def _list(self) -> list[dict[str, Any]]:
        params = {"labelSelector": ",".join(f"{k}={v}" for k, v in SELECTOR.items())}
        found: list[dict[str, Any]] = self._api("GET", "/api/v1/nodes", params=params)["items"]
        return found


def _node(name: str, capacity: dict[str, str], labels: dict[str, str]) -> dict[str, Any]:
    metadata = {
        "name": name, "annotations": {ANNOTATION: "fake"},
        "labels": {"kubernetes.io/hostname": name, **SELECTOR, **labels},
    }  # fmt: skip
    status = {"capacity": capacity, "allocatable": capacity}
    return {"metadata": metadata, "spec": {"taints": [TAINT]}, "status": status}


def _stock_stages() -> list[str]:
    folder = tools.source_of("kwok", "sigs.k8s.io/kwok") / "kustomize" / "stage"
    if not folder.is_dir():
        raise BedError("the source of kwok is not unpacked: `go mod download` in its folder")
    return [(folder / name).read_text() for name in STOCK_STAGES]
