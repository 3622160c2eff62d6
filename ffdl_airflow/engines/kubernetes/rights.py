"""What the driver's account may do: the Role of ``docker/kubernetes/``, and what it is for.

Read by the doctor, and compared with the manifests by a test, so that there is one list.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ffdl_airflow.engines.kubernetes.settings import KubernetesSettings

LEASES, PROXY = "leases", "pods/proxy"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Verbs on one resource. Without those that are not ``needed`` jobs run, and less is known."""

    group: str = ""
    resource: str
    verbs: tuple[str, ...]
    purpose: str
    needed: bool = True


@dataclass(frozen=True, kw_only=True)
class Right:
    """One verb on one resource; ``namespaced`` False: in all namespaces, or of the cluster."""

    rule: Rule
    verb: str
    namespaced: bool

    def __str__(self) -> str:
        group = f".{self.rule.group}" if self.rule.group else ""
        return f"{self.verb} {self.rule.resource}{group}"


ROLE = (
    Rule(resource="configmaps", verbs=("get", "list", "watch", "create", "patch", "delete"),
         purpose="the anchors that stand for placements, and their tombstones"),
    Rule(resource="pods", verbs=("list", "watch", "create", "delete"), purpose="the replicas"),
    Rule(resource=PROXY, verbs=("get", "create"),
         purpose="to ask a gang, and to give it orders"),
    Rule(resource="services", verbs=("get", "create", "patch", "delete"),
         purpose="the names by which replicas find one another"),
    Rule(resource="secrets", verbs=("create", "delete"),
         purpose="plan and token of a placement; none is ever read"),
    Rule(group="coordination.k8s.io", resource=LEASES, verbs=("get", "create", "update"),
         purpose="the turnstile: one gang is placed at a time"),
    Rule(group="scheduling.k8s.io", resource="podgroups", verbs=("get", "create", "delete"),
         needed=False, purpose="Kubernetes' own gangs, where they work; else the turnstile"),
    Rule(group="batch", resource="jobs", verbs=("get", "create", "delete"), needed=False,
         purpose="movers, with the setting mover_image; else data are moved by the driver's host"),
    Rule(resource="events", verbs=("list",), needed=False,
         purpose="why a volume cannot be mounted or an image cannot be pulled"),
    Rule(resource="resourcequotas", verbs=("list",), needed=False,
         purpose="to wait for a quota instead of running into it"),
    Rule(resource="limitranges", verbs=("list",), needed=False,
         purpose="to know what a pod is given that does not say what it needs"),
)  # fmt: skip
"""In the namespace of the pods."""

CLUSTER_ROLE = (
    Rule(resource="nodes", verbs=("list",), needed=False, purpose="what there is"),
    Rule(resource="pods", verbs=("list",), needed=False, purpose="what of it others have"),
    Rule(group="scheduling.k8s.io", resource="priorityclasses", verbs=("list",), needed=False,
         purpose="whose turn it is"),
)  # fmt: skip
"""In the whole cluster; optional."""

LOOK_ROLE = (
    Rule(resource="persistentvolumeclaims", verbs=("get",), needed=False,
         purpose="whether the volumes are bound"),
)  # fmt: skip
"""In the namespace; optional, for the doctor only."""


EXEC_ROLE = (
    Rule(resource="pods/exec", verbs=("get", "create"), needed=False,
         purpose="to ask a gang, and to give it orders, where the pod proxy cannot be used"),
)  # fmt: skip
"""In the namespace; optional. For a websocket *get* is needed, on newer clusters *create* too."""


def namespace_of(rule: Rule, settings: KubernetesSettings) -> str:
    """Where an installation needs the rule."""
    return settings.lease_namespace if rule.resource == LEASES else settings.namespace


_ALL = ((ROLE, True), (LOOK_ROLE, True), (EXEC_ROLE, True), (CLUSTER_ROLE, False))


def rights() -> Iterator[Right]:
    """Every verb of all rules, those of the namespace first."""
    for rules, namespaced in _ALL:
        for rule in rules:
            for verb in rule.verbs:
                yield Right(rule=rule, verb=verb, namespaced=namespaced)
