"""What a pod asks for, in numbers: effective requests, limits, host ports.

For: plain pod dicts → amounts as the scheduler and the quota count them. An amount is a whole
number, rounded up: cpu in thousandths of a core, everything else in its own unit (bytes, pieces).
Not for: where a pod may go (``node_match.py``). Not counted: dynamic resource claims, and the
larger of two sizes while a running pod is resized in place.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from ffdl_airflow.core.quantities import format_bytes, parse_kubernetes

Plain = Mapping[str, Any]
Amounts = Mapping[str, int]

PODS = "pods"
HOST_PORT = "hostPort/"
"""Prefix of a host port's name. A port is a resource of which every node has one."""
_BYTES = ("memory", "ephemeral-storage", "hugepages-")
_CORE = 1000
_POD_LEVEL = ("cpu", "memory", "hugepages-")  # what `spec.resources` may name


def amount(resource: str, value: object) -> int:
    """The amount that ``value`` stands for. QuantityError where it is no quantity."""
    return _amount(resource == "cpu" or resource.endswith(".cpu"), str(value))


@lru_cache(maxsize=4096)
def _amount(cores: bool, value: str) -> int:  # noqa: FBT001 - the cache wants plain arguments
    return math.ceil(parse_kubernetes(value) * (_CORE if cores else 1))


def amounts(values: Plain | None) -> dict[str, int]:
    """The amounts of a resource list such as ``resources.requests`` or ``status.allocatable``."""
    return {name: amount(name, value) for name, value in (values or {}).items()}


def show(resource: str, count: int) -> str:
    """An amount for people: ``8 nvidia.com/gpu``, ``1.5 cpu``, ``64.0 GiB memory``."""
    if resource.startswith(HOST_PORT):
        return f"host port {resource.removeprefix(HOST_PORT)}"
    return f"{bare(resource, count)} {resource}"


def bare(resource: str, count: int) -> str:
    """The same without the resource's name."""
    kind = resource.removeprefix("requests.").removeprefix("limits.")
    if kind == "cpu":
        return f"{count / _CORE:g}"
    return format_bytes(count) if kind.startswith(_BYTES) else str(count)


def spec_of(pod: Plain) -> Plain:
    """The pod's spec."""
    spec: Plain = pod.get("spec") or {}
    return spec


def labels_of(thing: Plain) -> Plain:
    """The labels of any object."""
    labels: Plain = (thing.get("metadata") or {}).get("labels") or {}
    return labels


def name_of(thing: Plain) -> str:
    """The name of any object."""
    return str((thing.get("metadata") or {}).get("name"))


def key_of(thing: Plain) -> tuple[str, str]:
    """Namespace and name."""
    return str((thing.get("metadata") or {}).get("namespace") or "default"), name_of(thing)


def containers(pod: Plain) -> list[Plain]:
    """All containers of a pod, those that run before the others included."""
    spec = spec_of(pod)
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def resources_of(container: Plain, field: str) -> Plain:
    """``requests`` or ``limits`` of a container (or of a whole pod's spec).

    What has a limit and no request requests its limit, as the API server has it.
    """
    resources = container.get("resources") or {}
    values: Plain = resources.get(field) or {}
    return {**(resources.get("limits") or {}), **values} if field == "requests" else values


def completed(pod: Plain, limit_ranges: Iterable[Plain] = ()) -> dict[str, Any]:
    """The pod with what the namespace's LimitRanges set where its containers leave it out."""
    defaults = [item for found in limit_ranges for item in range_items(found, "Container")]
    spec = dict(spec_of(pod))
    for field in ("initContainers", "containers"):
        spec[field] = [_completed(container, defaults) for container in spec.get(field) or ()]
    return {**pod, "spec": spec}


def range_items(limit_range: Plain, kind: str) -> Iterator[Plain]:
    """The items of a LimitRange for a ``Container`` or a ``Pod``."""
    for item in spec_of(limit_range).get("limits") or ():
        if item.get("type") == kind:
            yield item


def _completed(container: Plain, defaults: Iterable[Plain]) -> Plain:
    limits, requests = (dict(resources_of(container, field)) for field in ("limits", "requests"))
    for item in defaults:
        limits = {**(item.get("default") or {}), **limits}
        requests = {**(item.get("defaultRequest") or {}), **requests}
    return {**container, "resources": {"limits": limits, "requests": requests}}


def requests_of(pod: Plain) -> dict[str, int]:
    """What the pod takes of a node: effective requests, one of ``pods``, its host ports."""
    return {**total(pod, "requests"), PODS: 1, **dict.fromkeys(_host_ports(spec_of(pod)), 1)}


def total(pod: Plain, field: str) -> dict[str, int]:
    """Effective ``requests`` or ``limits``: what runs at the same time, at its peak.

    The containers together with the sidecars (init containers that restart always), or the largest
    init container with the sidecars before it; the overhead of the runtime class comes on top.
    """
    spec = spec_of(pod)
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        own = amounts(resources_of(container, field))
        running = _plus(sidecars, own)
        if container.get("restartPolicy") == "Always":
            sidecars = running
        peak = _larger(peak, running)
    together = sidecars
    for container in spec.get("containers") or ():
        together = _plus(together, amounts(resources_of(container, field)))
    found = _larger(peak, together)
    whole = amounts(resources_of(spec, field))
    found.update({name: n for name, n in whole.items() if name.startswith(_POD_LEVEL)})
    return _plus(found, amounts(spec.get("overhead")))


def fits(each: Amounts, free: Amounts) -> int:
    """How many replicas that need ``each`` go into ``free``; 0 where nothing is needed."""
    counts = (has(free, name) // need for name, need in each.items() if need > 0)
    return max(0, min(counts, default=0))


def has(free: Amounts, name: str) -> int:
    """How much of a resource is there."""
    return free.get(name, 1 if name.startswith(HOST_PORT) else 0)


def take(free: dict[str, int], each: Amounts, count: int = 1) -> None:
    """Take ``count`` times ``each`` away from ``free``, in place; it may go below zero."""
    for name, need in each.items():
        free[name] = has(free, name) - need * count


def _host_ports(spec: Plain) -> Iterator[str]:
    """Ports of the node. The address that a port is bound to does not count: all are one."""
    for container in spec.get("containers") or ():
        for port in container.get("ports") or ():
            number = port.get("hostPort") or (spec.get("hostNetwork") and port.get("containerPort"))
            if number:
                yield f"{HOST_PORT}{port.get('protocol', 'TCP')}/{number}"


def _plus(one: Amounts, other: Amounts) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _larger(one: Amounts, other: Amounts) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
