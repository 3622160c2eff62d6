"""The manifests of ``docker/kubernetes/`` on the test cluster, and who they let in."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ffdl_airflow.engines.kubernetes.rights import ROLE
from ffdl_airflow.engines.kubernetes.settings import Credentials
from tests.cluster.bed import Bed
from tests.cluster.processes import wait_for

MANIFESTS = Path(__file__).parents[2] / "docker" / "kubernetes"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass(frozen=True)
class Shipped:
    """One namespace with what is shipped for it."""

    bed: Bed
    namespace: str
    folder: Path

    def apply(self, *components: str) -> None:
        """Everything, in an overlay for the namespace."""
        overlay: dict[str, Any] = {"namespace": self.namespace, "resources": [self._to("base")]}
        if components:
            overlay["components"] = [self._to(name) for name in components]
        self.folder.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(overlay)
        (self.folder / "kustomization.yaml").write_text(text, encoding="utf-8")
        self.bed.kubectl("apply", "-k", str(self.folder))
        for rule in ROLE:
            self._until_it_acts(rule.group, rule.resource, rule.verbs[0], may=True)

    def _to(self, name: str) -> str:
        return os.path.relpath(MANIFESTS / name, self.folder)

    def token(self, account: str) -> str:
        """A token as the kubelet gets one for a pod."""
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token: str = self.bed.api("POST", path, body)["status"]["token"]
        return token

    def credentials(self, account: str) -> Credentials:
        """A kubeconfig in which one is that account and nobody else."""
        here = {"server": self.bed.server_url, "certificate-authority": str(self.bed.ca_file)}
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": here}],
            "users": [{"name": "test", "user": {"token": self.token(account)}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }  # fmt: skip
        return Credentials(kubeconfig=yaml.safe_dump(document))

    @property
    def role(self) -> str:
        return f"{RBAC}/namespaces/{self.namespace}/roles/ffdl-driver"

    def rules(self) -> list[dict[str, Any]]:
        """Those of the driver's Role, as they are now."""
        rules: list[dict[str, Any]] = self.bed.api("GET", self.role)["rules"]
        return rules

    def set_rules(self, rules: list[dict[str, Any]]) -> None:
        self.bed.api("PATCH", self.role, {"rules": rules})

    def allow(self, rules: list[dict[str, Any]], resource: str, verb: str, *, may: bool) -> None:
        """Give the Role those rules, with or without that verb, and wait until that acts."""
        kept = [
            {**rule, "verbs": [one for one in rule["verbs"] if one != verb]}
            if not may and rule["resources"] == [resource] else rule
            for rule in rules
        ]  # fmt: skip
        self.set_rules([rule for rule in kept if rule["verbs"]])
        (group,) = [rule["apiGroups"][0] for rule in rules if rule["resources"] == [resource]]
        self._until_it_acts(group, resource, verb, may=may)

    def _until_it_acts(self, group: str, resource: str, verb: str, *, may: bool) -> None:
        name, _, subresource = resource.partition("/")
        attributes = {"namespace": self.namespace, "verb": verb, "group": group,
                      "resource": name, "subresource": subresource}  # fmt: skip
        user = f"system:serviceaccount:{self.namespace}:ffdl-driver"
        body = {"spec": {"user": user, "resourceAttributes": attributes}}

        def acts() -> bool:
            answer = self.bed.api("POST", REVIEWS, body)
            return bool(answer["status"]["allowed"]) is may

        wait_for(acts, f"{verb} {resource} is not {'given' if may else 'taken'}")
