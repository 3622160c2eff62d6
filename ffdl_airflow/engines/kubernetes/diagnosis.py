"""What the answers of a cluster mean for gangs: one line each. Pure; ``doctor.py`` asks."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ffdl_airflow.core.findings import Finding, ok, problem, warning
from ffdl_airflow.engines.kubernetes import names, needs
from ffdl_airflow.engines.kubernetes.node_match import obstacle
from ffdl_airflow.engines.kubernetes.render import GPU
from ffdl_airflow.engines.kubernetes.rights import EXEC_ROLE, PROXY, ROLE, Right, namespace_of
from ffdl_airflow.engines.kubernetes.settings import KubernetesSettings

PRIORITIES = ("offline-batch", "online-high")
"""The classes that specs name; the first one is the default."""
OWN_GROUP = "scheduling.k8s.io"
GANG_APIS = (
    (OWN_GROUP, "podgroups", "Kubernetes' gang scheduling"),
    ("scheduling.x-k8s.io", "podgroups", "coscheduling"),
    ("scheduling.volcano.sh", "podgroups", "Volcano"),
    ("kueue.x-k8s.io", "localqueues", "Kueue"),
)
"""API group, resource and name of what places gangs in some clusters."""
OLDEST = (1, 35)
"""Since then resource versions are promised to grow, by which we know what is newer."""
BASE, LOOK = "docker/kubernetes/base", "docker/kubernetes/look"
ONLINE, MIXED = "online", "mixed"
"""Roles of nodes, see ``names.NODE_ROLE``."""
ONLINE_TAINT = "ffdl.airflow/online=true:NoSchedule"
_KEEP_OFF = ("NoSchedule", "NoExecute")
_NAMED = 3
EXEC = "docker/kubernetes/exec"
_OWN = "gangs are placed by our own turnstile"
_SHARED_MODES = {"ReadWriteMany", "ReadOnlyMany"}


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The API server has said no, with ``text``."""

    text: str
    not_found: bool = False
    no_right: bool = False
    over_quota: bool = False
    no_namespace: bool = False


@dataclass(frozen=True, kw_only=True)
class GangApi:
    """An API for gangs that the cluster serves."""

    name: str
    resource: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came of the gang that was tried, until the first thing that went wrong.

    ``start``, ``proxy``, ``command``, ``names``: what went wrong there, None where it went well or
    was not reached. ``addresses``: what ``host`` was resolved to. ``groups``: whether the scheduler
    places pod groups, None where that was not reached.
    """

    image: str
    start: str | None = None
    proxy: str | None = None
    command: str | None = None
    names: str | None = None
    host: str = ""
    addresses: Sequence[str] = ()
    groups: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """All answers. None: it may not be read. ``admission``: of a pod, by its priority class.

    ``kubelets``: settings by node, of those nodes that serve online and could be asked.
    """

    host: str
    version: str
    gang_apis: Sequence[GangApi]
    may_not: Sequence[Right]
    nodes: Sequence[Mapping[str, Any]] | None
    kubelets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quotas: Sequence[Mapping[str, Any]]
    priorities: Mapping[str, int] | None
    admission: Mapping[str, Refused | None]
    claims: Mapping[str, Mapping[str, Any] | Refused]

    @property
    def may_exec(self) -> bool:
        """Whether commands may be run in pods."""
        return not any(right.rule in EXEC_ROLE for right in self.may_not)

    @property
    def may_not_proxy(self) -> bool:
        """Whether the pod proxy is forbidden."""
        return any(right.rule.resource == PROXY for right in self.may_not)

    @property
    def namespace_exists(self) -> bool:
        """Whether pods can be made there at all."""
        answers = [*self.admission.values(), *self.claims.values()]
        return not any(isinstance(one, Refused) and one.no_namespace for one in answers)


def findings(seen: Seen, settings: KubernetesSettings, *, folders: Mapping[str, str],
             tried: Trial | None) -> list[Finding]:  # fmt: skip
    """What to tell, in the order in which it should be mended."""
    found = [_version(seen), *_rights(seen, settings)]
    if not seen.namespace_exists:
        text = f"there is no namespace {settings.namespace}"
        return [*found, problem("namespace", text, f"kubectl apply -k {BASE}, or set namespace")]
    found.append(ok("namespace", settings.namespace))
    found += [_admission(seen, name) for name in seen.admission]
    found += [_claim(name, answer) for name, answer in seen.claims.items()]
    found += [_folder(*folder, settings) for folder in folders.items()]
    found += _gpus(seen, settings)
    found += _online(seen)
    found += map(_quota, seen.quotas)
    found += _trial(tried, settings)
    return [*found, *_used(seen, tried)]


def _version(seen: Seen) -> Finding:
    found = re.match(r"v(\d+)\.(\d+)", seen.version)
    text = f"Kubernetes {seen.version} at {seen.host}"
    if found and tuple(map(int, found.groups())) >= OLDEST:
        return ok("version", text)
    oldest = ".".join(map(str, OLDEST))
    return warning("version", text, f"{oldest} or newer is what this was tried on")


def _rights(seen: Seen, settings: KubernetesSettings) -> Iterator[Finding]:
    movers = bool(settings.mover_image)
    missing = [one for one in seen.may_not if one.rule.resource != "jobs" or movers]
    needed = [one for one in missing if one.rule.needed or one.rule.resource == "jobs"]
    if seen.may_exec:
        needed = [right for right in needed if right.rule.resource != PROXY]
    yield from (
        problem("rights", f"may not {right} in {namespace_of(right.rule, settings)}: "
                f"{right.rule.purpose}", f"kubectl apply -k {BASE}: its Role has that verb")
        for right in needed
    )  # fmt: skip
    if not needed:
        places = dict.fromkeys((settings.namespace, settings.lease_namespace))
        yield ok("rights", f"all that a driver needs in {' and '.join(places)}")
    for right in missing:
        if right.rule in ROLE and right not in needed:
            text = f"may not {right}, so it is not known: {right.rule.purpose}"
            if right.rule.resource == PROXY:
                text = f"may not {right}: commands in pods are used instead, and cost more"
            yield warning("rights", text, f"kubectl apply -k {BASE}: its Role has that verb")
    wide = [str(right) for right in seen.may_not if not right.namespaced]
    if wide:
        text = f"may not {', '.join(wide)} in the whole cluster: gangs try and roll back"
        yield warning("capacity", text, f"add the component {LOOK}")
    else:
        yield ok("capacity", "nodes, pods and priority classes can be read")


def _admission(seen: Seen, priority: str) -> Finding:
    refused, check = seen.admission[priority], f"priority {priority}"
    value = (seen.priorities or {}).get(priority)
    if refused is None:
        return ok(check, "pods are let in" + (f", value {value}" if value is not None else ""))
    if refused.no_right:
        return warning(check, "not known: pods may not be created", "see rights")
    if refused.over_quota:
        return warning(check, refused.text, "jobs wait until there is room")
    if seen.priorities is not None and value is None:
        return problem(check, "there is no such PriorityClass", f"kubectl apply -k {BASE}")
    return problem(check, refused.text, "change what the API server's answer names")


def _claim(name: str, answer: Mapping[str, Any] | Refused) -> Finding:
    check = f"volume {name}"
    if isinstance(answer, Refused):
        if answer.not_found:
            return problem(check, "there is no such claim", "create it, or correct volumes")
        return warning(check, "not known: claims may not be read", f"add the component {LOOK}")
    phase = str((answer.get("status") or {}).get("phase"))
    modes = answer["spec"].get("accessModes") or []
    if phase == "Lost":
        return problem(check, "its volume is lost", "restore the volume, or make a new claim")
    if phase != "Bound":
        advice = "look at its events; a storage class may wait for the first pod"
        return warning(check, f"{phase}, not bound", advice)
    text = f"Bound, {', '.join(modes)}"
    if not _SHARED_MODES & set(modes):
        return warning(check, text, "pods on several nodes need ReadWriteMany or ReadOnlyMany")
    return ok(check, text)


def _folder(setting: str, folder: str, settings: KubernetesSettings) -> Finding:
    """Whether the pods see it."""
    volume = settings.volume_of(folder)
    if volume is None:
        text = f"{folder} is on none of the volumes, so pods do not see it"
        return problem(setting, text, f"set {setting} to a folder on one, or add to volumes")
    text = f"{folder} is on volume {volume.claim}"
    written = setting == "checkpoint_root" or settings.mover_image is not None
    if volume.read_only and written:
        return problem(setting, f"{text}, which is read-only", "mount it without :ro")
    return ok(setting, text)


def _gpus(seen: Seen, settings: KubernetesSettings) -> Iterator[Finding]:
    if seen.nodes is None:
        return
    tolerations = {"tolerations": [one.document() for one in settings.tolerations]}
    counts: dict[bool, int] = {True: 0, False: 0}
    others: set[str] = set()
    for node in seen.nodes:
        has = needs.amounts((node.get("status") or {}).get("allocatable"))
        counts[obstacle(tolerations, node) is None] += has.get(GPU, 0)
        others |= {name for name, count in has.items() if "gpu" in name and name != GPU and count}
    usable, closed = counts[True], counts[False]
    if usable:
        yield ok(
            "GPUs", f"{usable} {GPU}" + (f", {closed} more where pods may not go" * (closed > 0))
        )
    elif closed:
        yield warning("GPUs", f"all {closed} {GPU} are on nodes that pods may not go to",
                      "set tolerations, or make the nodes ready")  # fmt: skip
    else:
        yield warning("GPUs", f"no node has {GPU}", "install the GPUs' device plugin")
    if others:
        yield warning("GPUs", f"not used: {', '.join(sorted(others))}", f"jobs ask for {GPU}")


def serves_online(node: Mapping[str, Any]) -> bool:
    """Whether the node's label says that it serves, by day or always."""
    return needs.labels_of(node).get(names.NODE_ROLE) in (ONLINE, MIXED)


def _online(seen: Seen) -> Iterator[Finding]:
    """Whether training may disturb what serves on the same nodes; one line for each fault."""
    nodes = [node for node in seen.nodes or () if serves_online(node)]
    found: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        for fault in _faults_of(node, seen.kubelets.get(needs.name_of(node))):
            found.setdefault(fault, []).append(needs.name_of(node))
    for (text, advice), where in found.items():
        more = f" and {len(where) - _NAMED} more" * (len(where) > _NAMED)
        yield warning("online nodes", f"{', '.join(where[:_NAMED])}{more}: {text}", advice)
    if not nodes or found:
        return
    pinned = f", CPUs are pinned on {len(seen.kubelets)}" if seen.kubelets else ""
    yield ok("online nodes", f"{len(nodes)}, with reserves for the system{pinned}")


def _faults_of(
    node: Mapping[str, Any], kubelet: Mapping[str, Any] | None
) -> Iterator[tuple[str, str]]:
    """What is wrong with a node that serves online, and what to do."""
    status = node.get("status") or {}
    total, given = (needs.amounts(status.get(key)) for key in ("capacity", "allocatable"))
    all_of = [kind for kind in ("cpu", "memory") if given.get(kind, 0) >= total.get(kind, 0)]
    if all_of:
        text = f"all of their {' and '.join(all_of)} may be given to pods"
        yield text, "set systemReserved and kubeReserved of their kubelets"
    policy = (kubelet or {}).get("cpuManagerPolicy")
    if policy not in (None, "static"):
        text = f"CPUs are not pinned (cpuManagerPolicy {policy})"
        yield text, "set cpuManagerPolicy: static, and give online pods whole CPUs"
    taints = (node.get("spec") or {}).get("taints") or ()
    role = needs.labels_of(node)[names.NODE_ROLE]
    if role == ONLINE and not any(one.get("effect") in _KEEP_OFF for one in taints):
        yield "they are for serving only, and have no taint", f"taint them: {ONLINE_TAINT}"


def _quota(quota: Mapping[str, Any]) -> Finding:
    status = quota.get("status") or {}
    hard, used = status.get("hard") or {}, status.get("used") or {}
    counted, taken = needs.amounts(hard), needs.amounts(used)
    text = ", ".join(f"{name} {used.get(name, 0)} of {most}" for name, most in sorted(hard.items()))
    full = sorted(name for name, most in counted.items() if taken.get(name, 0) >= most)
    check = f"quota {quota['metadata']['name']}"
    if not full:
        return ok(check, text or "counts nothing yet")
    return warning(check, text, f"jobs wait until there is less of: {', '.join(full)}")


def _trial(tried: Trial | None, settings: KubernetesSettings) -> Iterator[Finding]:
    if tried is None:
        yield ok("trial", "DNS and pod proxy were not tried; --image IMAGE tries them with a pod")
        return
    images = f"images {tried.image} and {settings.agent_image}"
    if tried.start is not None:
        yield problem("trial", f"with {images}: {tried.start}", "mend that, then look again")
        return
    yield ok("trial", f"a pod ran with {images}")
    if tried.proxy is not None:
        advice = "let the API server reach the pods' port 29400"
        if tried.command is None:
            text = f"{tried.proxy}; gangs are asked by commands in their pods, which works"
            yield warning("pod proxy", text, f"{advice}: it costs less")
        else:
            yield problem("pod proxy", tried.proxy, f"{advice}, or add the component {EXEC}")
        return
    yield ok("pod proxy", "leads to pods")
    if tried.names is not None:
        text = f"{tried.host} is not resolved: {tried.names}"
        yield problem("DNS", text, "mend the cluster's DNS: replicas find one another by names")
        return
    yield ok("DNS", f"{tried.host} is {', '.join(tried.addresses)}")


def _used(seen: Seen, tried: Trial | None) -> Iterator[Finding]:
    """What of it the engine uses."""
    served = "; ".join(f"{api.name} ({api.resource} {api.version})" for api in seen.gang_apis)
    how = _OWN
    if any(api.resource == f"podgroups.{OWN_GROUP}" for api in seen.gang_apis):
        known = tried.groups if tried is not None else None
        how = "pod groups place gangs if the scheduler knows them, which was not tried (--image)"
        if known is not None:
            how = "pod groups place gangs" if known else f"the scheduler knows no groups: {_OWN}"
    yield ok("gang APIs", f"served: {served or 'none'}; {how}")
    yield _exec(seen, tried)


def _exec(seen: Seen, tried: Trial | None) -> Finding:
    """The second way to a gang."""
    reached = tried if tried is not None and tried.start is None else None
    closed = seen.may_not_proxy or (reached is not None and reached.proxy is not None)
    use = "the pod proxy cannot be" if closed else "gangs are asked through the pod proxy"
    works = reached is not None and reached.command is None
    if not (seen.may_exec or works):
        return ok("exec", f"not allowed, and not used: {use}")
    if reached is not None and not works:
        text = f"allowed, and a command in a pod fails: {reached.command}"
        return warning("exec", text, "let the API server reach the kubelets, or mend pod_python")
    return ok("exec", f"allowed, and {'used' if closed else 'not used'}: {use}")
