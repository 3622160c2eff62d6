"""Whether a namespace lets a gang in: ResourceQuotas and LimitRanges.

For: what the API server would answer to the gang's pods, said before the first one is sent, for the
whole gang at once. Not for: nodes. A LimitRange's ``maxLimitRequestRatio`` is not judged, and a
quota that counts a pair of namespaces (CrossNamespacePodAffinity) is taken to hold for nobody.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ffdl_airflow.engines.kubernetes import needs
from ffdl_airflow.engines.kubernetes.needs import Plain, name_of, spec_of
from ffdl_airflow.engines.kubernetes.node_match import matches

_COMPUTE = ("cpu", "memory")


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why the namespace says no. ``never``: also when nobody else is in it."""

    reason: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    never: bool


def refusal(
    gang: Sequence[Plain], quotas: Iterable[Plain], limit_ranges: Iterable[Plain]
) -> Refusal | None:
    """The first quota or limit that keeps the gang out, None where none does.

    ``gang``: the pods still to be created, as :func:`needs.completed` leaves them.
    """
    for found in limit_ranges:
        for pod in gang:
            for refused in _out_of_range(pod, found):
                return refused
    for quota in sorted(quotas, key=name_of):
        for refused in _over_quota([pod for pod in gang if _in_scope(pod, quota)], quota):
            return refused
    return None


def _over_quota(gang: Sequence[Plain], quota: Plain) -> Iterator[Refusal]:
    status = quota.get("status") or {}
    hard = needs.amounts(status.get("hard") or spec_of(quota).get("hard"))
    used = needs.amounts(status.get("used"))
    for resource, most in hard.items():
        yield from _undeclared(gang, name_of(quota), resource)
        wanted = sum(_counted(pod, resource) for pod in gang)
        if wanted > 0 and used.get(resource, 0) + wanted > most:
            yield _short(name_of(quota), resource, (used.get(resource, 0), most, wanted))


def _short(quota: str, resource: str, counts: tuple[int, int, int]) -> Refusal:
    used, hard, wanted = (needs.bare(resource, count) for count in counts)
    never = counts[2] > counts[1]
    text = f"{used} of {hard} are used and the gang needs {wanted}"
    if never:
        text = f"the gang needs {wanted} and the quota has {hard} in all"
    return Refusal(
        reason=f"quota {quota} for {resource}: {text}", never=never,
        detail={"quota": quota, "resource": resource, "used": used, "hard": hard, "wanted": wanted},
    )  # fmt: skip


def _counted(pod: Plain, resource: str) -> int:
    """What a pod counts for, under a name of ``spec.hard``; 0 for what is no pod's business."""
    if resource in (needs.PODS, "count/pods"):
        return 1
    field_, _, name = resource.partition(".")
    if field_ in ("requests", "limits"):
        return needs.total(pod, field_).get(name, 0)
    return needs.total(pod, "requests").get(resource, 0)


def _undeclared(gang: Sequence[Plain], quota: str, resource: str) -> Iterator[Refusal]:
    """A quota on cpu or memory refuses containers that do not say what they take."""
    field_, _, name = resource.rpartition(".")
    if name not in _COMPUTE or field_ not in ("", "requests", "limits"):
        return
    for pod in gang:
        for container in needs.containers(pod):
            if name not in needs.resources_of(container, field_ or "requests"):
                where = f"container {container.get('name')} of {name_of(pod)}"
                yield Refusal(
                    reason=f"quota {quota} demands {resource} of each container, "
                    f"{where} does not set it",
                    detail={"quota": quota, "resource": resource, "pod": name_of(pod)}, never=True,
                )  # fmt: skip


def _in_scope(pod: Plain, quota: Plain) -> bool:
    spec = spec_of(quota)
    scopes = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()]
    scopes += (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return all(_scope(pod, scope) for scope in scopes)


def _scope(pod: Plain, scope: Plain) -> bool:
    spec = spec_of(pod)
    name = scope.get("scopeName")
    if name == "PriorityClass":
        classes = {"class": spec["priorityClassName"]} if spec.get("priorityClassName") else {}
        return matches({**scope, "key": "class"}, classes)
    ends = spec.get("activeDeadlineSeconds") is not None
    declared = any(
        resource in needs.resources_of(container, field_)
        for container in needs.containers(pod)
        for field_ in ("requests", "limits")
        for resource in _COMPUTE
    )
    known = {
        "Terminating": ends,
        "NotTerminating": not ends,
        "BestEffort": not declared,
        "NotBestEffort": declared,
    }
    return known.get(str(name), False)


def _out_of_range(pod: Plain, limit_range: Plain) -> Iterator[Refusal]:
    for kind, things in (("Container", _containers(pod)), ("Pod", _whole(pod))):
        for item in needs.range_items(limit_range, kind):
            for who, values in things:
                for refused in _beyond(who, values, item):
                    reason = f"limit range {name_of(limit_range)}: {refused}"
                    detail = {"limit_range": name_of(limit_range), "pod": name_of(pod)}
                    yield Refusal(reason=reason, detail=detail, never=True)


_Things = list[tuple[str, Mapping[str, needs.Amounts]]]
_FIELDS = ("requests", "limits")


def _containers(pod: Plain) -> _Things:
    return [
        (
            f"container {container.get('name')} of {name_of(pod)}",
            {f: needs.amounts(needs.resources_of(container, f)) for f in _FIELDS},
        )
        for container in needs.containers(pod)
    ]


def _whole(pod: Plain) -> _Things:
    return [(name_of(pod), {f: needs.total(pod, f) for f in _FIELDS})]


def _beyond(who: str, values: Mapping[str, needs.Amounts], item: Plain) -> Iterator[str]:
    for resource, most in needs.amounts(item.get("max")).items():
        for field_ in _FIELDS:
            count = values[field_].get(resource, 0)
            if count > most:
                yield (f"{who} has {needs.show(resource, count)} in its {field_}, "
                       f"at most {needs.bare(resource, most)} are allowed")  # fmt: skip
    for resource, least in needs.amounts(item.get("min")).items():
        count = values["requests"].get(resource, 0)
        if count < least:
            yield (f"{who} requests {needs.show(resource, count)}, "
                   f"at least {needs.bare(resource, least)} are demanded")  # fmt: skip
