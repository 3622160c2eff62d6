"""Asks a cluster everything that tells whether gangs can run on it; ``diagnosis.py`` judges it.

Pods are sent with ``dryRun``, so that the API server's own answer is heard (priority class, service
account, pod security, quota) and nothing is made. Only the trial makes something, if one is wanted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ffdl_airflow.core.errors import FfdlError
from ffdl_airflow.core.findings import Finding, of_error
from ffdl_airflow.engines.kubernetes import admission, diagnosis, rights, trial
from ffdl_airflow.engines.kubernetes.client import ApiError, AwayError
from ffdl_airflow.engines.kubernetes.cluster import Cluster, Document
from ffdl_airflow.engines.kubernetes.diagnosis import Refused, Seen
from ffdl_airflow.engines.kubernetes.needs import Plain, name_of
from ffdl_airflow.engines.kubernetes.refusals import explain, lacks_a_right, over_quota
from ffdl_airflow.engines.kubernetes.survey import known_priorities, survey

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def examine(cluster: Cluster, folders: Mapping[str, str], *, image: str | None) -> list[Finding]:
    """See ``SupportsDoctor``."""
    try:
        seen = _Doctor(cluster).look()
    except (ApiError, AwayError) as error:
        return [of_error("cluster", explain(error, doing="look", host=cluster.client.host))]
    except FfdlError as error:
        return [of_error("cluster", error)]
    tried = trial.run(cluster, image) if image is not None and seen.namespace_exists else None
    return diagnosis.findings(seen, cluster.settings, folders=folders, tried=tried)


@dataclass(frozen=True)
class _Doctor:
    cluster: Cluster
    _cached: dict[str, Any] = field(default_factory=dict)

    def look(self) -> Seen:
        """All answers. Raises ApiError or AwayError where the cluster answers nobody."""
        client = self.cluster.client
        version = client.version()
        may_not = tuple(right for right in rights.rights() if not self._may(right))
        view = survey(self.cluster)
        return Seen(
            host=client.host, version=version, gang_apis=tuple(self._gang_apis()),
            may_not=may_not,
            nodes=view.nodes, kubelets=self._kubelets(view.nodes or ()), quotas=view.quotas,
            priorities=known_priorities(self.cluster),
            admission={name: self._admission(name) for name in diagnosis.PRIORITIES},
            claims={one.claim: self._claim(one.claim) for one in self.cluster.settings.volumes},
        )  # fmt: skip

    def _kubelets(self, nodes: Sequence[Plain]) -> dict[str, Document]:
        """Settings of the kubelets of nodes that serve online, as far as we are let through."""
        found = {}
        for name in map(name_of, filter(diagnosis.serves_online, nodes)):
            try:
                answer = self.cluster.client.get(f"/api/v1/nodes/{name}/proxy/configz")
            except ApiError:
                continue
            found[name] = answer.get("kubeletconfig") or {}
        return found

    def _may(self, right: rights.Right) -> bool:
        rule, settings = right.rule, self.cluster.settings
        resource, _, subresource = rule.resource.partition("/")
        attributes: Document = {"group": rule.group, "resource": resource, "verb": right.verb}
        if subresource:
            attributes["subresource"] = subresource
        if right.namespaced:
            attributes["namespace"] = rights.namespace_of(rule, settings)
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes}}  # fmt: skip
        found = self.cluster.client.create(_REVIEWS, body).get("status") or {}
        return bool(found.get("allowed"))

    def _gang_apis(self) -> Iterator[diagnosis.GangApi]:
        """Those of the known ones that are served, by any of the group's versions."""
        groups: Sequence[Document] = self.cluster.client.get("/apis").get("groups") or ()
        served = {group["name"]: group.get("versions") or () for group in groups}
        for group, resource, name in diagnosis.GANG_APIS:
            for version in served.get(group, ()):
                path = f"/apis/{version['groupVersion']}"
                found = self.cluster.client.get(path).get("resources") or ()
                if any(entry.get("name") == resource for entry in found):
                    yield diagnosis.GangApi(
                        name=name, resource=f"{resource}.{group}", version=str(version["version"])
                    )

    def _admission(self, priority: str) -> Refused | None:
        """What the API server would answer to a pod of that priority class; None: it lets it in."""
        pod = trial.pod(self.cluster.settings, priority=priority)
        error = admission.refusal(self.cluster, pod)
        return None if error is None else _refused(error)

    def _claim(self, name: str) -> Document | Refused:
        try:
            return self.cluster.client.get(self.cluster.path("persistentvolumeclaims", name))
        except ApiError as error:
            return _refused(error)


def _refused(error: ApiError) -> Refused:
    return Refused(
        text=error.text, not_found=error.not_found, no_right=lacks_a_right(error),
        over_quota=over_quota(error.text),
        no_namespace=error.namespace_missing,
    )  # fmt: skip
