"""Kubernetes' own gangs (PodGroup, Kubernetes 1.37, off by default): whether they can be relied on.

That the API is served says nothing: with the gate off in the scheduler half a gang is bound all the
same (seen). So a group is tried with a pod that no node can take; only a scheduler that knows
groups writes a condition into its status.
"""

import secrets
import time
from typing import Any

from ffdl_airflow.engines.kubernetes import names, render
from ffdl_airflow.engines.kubernetes.client import ApiError
from ffdl_airflow.engines.kubernetes.cluster import Cluster
from ffdl_airflow.engines.kubernetes.refusals import lacks_a_right

Document = dict[str, Any]

_PROBE_S = 5.0
"""How long the scheduler is waited for; it needs some milliseconds (seen: 2.5 s under load)."""
_KNOWN_S = 600.0
"""How long what was found counts: gates change with an upgrade. Chosen."""


class PodGroups:
    """Pod groups of one namespace; remembers whether they work."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._path = f"/apis/{render.PODGROUPS}/namespaces/{cluster.settings.namespace}/podgroups"
        self._known: tuple[float, bool] | None = None

    def work(self) -> bool:
        """Whether the scheduler binds the pods of a group all or none."""
        if self._known is None or time.monotonic() - self._known[0] > _KNOWN_S:
            self._known = time.monotonic(), self._served() and self._probe()
        return self._known[1]

    def make(self, group: Document) -> None:
        """Create a group; one of its name is ours."""
        with self._cluster.saying("create podgroups"):
            try:
                self._cluster.client.create(self._path, group)
            except ApiError as error:
                if not error.conflict:
                    raise

    def read(self, name: str) -> list[Document]:
        """The group of that name, as a list of one; empty where it is gone."""
        with self._cluster.saying("read podgroups"):
            try:
                return [self._cluster.client.get(f"{self._path}/{name}")]
            except ApiError as error:
                if error.not_found:
                    return []
                raise

    def _served(self) -> bool:
        with self._cluster.saying("read what the cluster serves"):
            try:
                found = self._cluster.client.get(f"/apis/{render.PODGROUPS}")
            except ApiError as error:
                if error.not_found or error.forbidden:
                    return False
                raise
        return any(one.get("name") == "podgroups" for one in found.get("resources") or ())

    def _probe(self) -> bool:
        """Make a group of one pod for which there is no node; clean up in any case.

        Who may not make groups does without.
        """
        client, name = self._cluster.client, f"ffdl-probe-{secrets.token_hex(4)}"
        pods = self._cluster.path("pods")
        with self._cluster.saying("try podgroups"):
            try:
                client.create(self._path, render.pod_group(name, 1))
            except ApiError as error:
                if lacks_a_right(error):
                    return False
                raise
            try:
                client.create(pods, _impossible(name))
                return self._has_condition(name)
            finally:
                client.delete(f"{pods}/{name}", grace_s=0)
                client.delete(f"{self._path}/{name}")

    def _has_condition(self, name: str) -> bool:
        deadline = time.monotonic() + _PROBE_S
        while time.monotonic() < deadline:
            status = self._cluster.client.get(f"{self._path}/{name}").get("status") or {}
            if status.get("conditions"):
                return True
            time.sleep(0.2)
        return False


def _impossible(name: str) -> Document:
    spec = {
        "restartPolicy": "Never", "automountServiceAccountToken": False,
        "nodeSelector": {names.PREFIX + "no-node-has-this": "true"},
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534,
                            "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{
            "name": "none", "image": "none.invalid/none:1",
            "securityContext": {"allowPrivilegeEscalation": False,
                                "capabilities": {"drop": ["ALL"]}},
            "resources": {"requests": {"cpu": "1m", "memory": "1Mi"},
                          "limits": {"cpu": "1m", "memory": "1Mi"}},
        }],
    }  # fmt: skip
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    return render.member(pod, name)
