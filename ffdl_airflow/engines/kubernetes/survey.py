"""What the cluster has and who has it, read when somebody wants to place: not watched all day.

Nodes, the pods of other namespaces, quotas and priority classes belong to the administrators, so we
may be forbidden to read them; what is then not known is left open (``capacity.py`` says so).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ffdl_airflow.engines.kubernetes.capacity import Cluster as Survey
from ffdl_airflow.engines.kubernetes.client import ApiError
from ffdl_airflow.engines.kubernetes.cluster import Cluster, is_bound, is_over
from ffdl_airflow.engines.kubernetes.needs import Plain, amounts, requests_of
from ffdl_airflow.engines.kubernetes.node_match import obstacle
from ffdl_airflow.engines.kubernetes.render import GPU

Document = dict[str, Any]
_PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def survey(cluster: Cluster) -> Survey:
    """One look at everything that a decision needs."""
    namespace = f"/api/v1/namespaces/{cluster.settings.namespace}"
    nodes = _list(cluster, "/api/v1/nodes")
    pods = _list(cluster, "/api/v1/pods") if nodes is not None else None
    return Survey(
        nodes=nodes if pods is not None else None,
        pods=pods or (),
        quotas=_list(cluster, f"{namespace}/resourcequotas") or (),
        limit_ranges=_list(cluster, f"{namespace}/limitranges") or (),
    )


def priorities(cluster: Cluster) -> Mapping[str, int]:
    """Name → value of the priority classes; empty where they may not be read."""
    return known_priorities(cluster) or {}


def known_priorities(cluster: Cluster) -> Mapping[str, int] | None:
    """The same, None where they may not be read."""
    found = _list(cluster, _PRIORITIES)
    if found is None:
        return None
    return {entry["metadata"]["name"]: int(entry["value"]) for entry in found}


def gpus_of_node(cluster: Cluster, node: Plain) -> int:
    """GPUs that a node can give; none while it is not ready, or where our pods may not go."""
    tolerations = [one.document() for one in cluster.settings.tolerations]
    usable = obstacle({"tolerations": tolerations}, node) is None
    return amounts(node["status"].get("allocatable")).get(GPU, 0) if usable else 0


def gpus_of_pod(pod: Plain) -> int:
    """GPUs that a pod has: those of one that has a node and is not over."""
    holds = is_bound(pod) and not is_over(pod)
    return requests_of(pod).get(GPU, 0) if holds else 0


def _list(cluster: Cluster, path: str) -> Sequence[Document] | None:
    """None where we may not read it."""
    with cluster.saying(f"read {path.rpartition('/')[2]}"):
        try:
            items: Sequence[Document] = cluster.client.list(path)["items"]
        except ApiError as error:
            if error.forbidden:
                return None
            raise
    return items
