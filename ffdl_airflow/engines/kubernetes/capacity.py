"""Does a gang fit now? All of its replicas or none, beside everything that runs in the cluster.

For: plain dicts of pods, nodes and the namespace's quotas → one answer with one sentence. The
default scheduler's filters are followed (``node_match.py``), its scores are not: what it will
choose is not foretold, only whether there is a way (``packing.py`` says where it may miss one).
Pods of a lower priority are no free room, for training never preempts. Not for: volumes, which the
scheduler judges too (``pending.py`` reads what it says), and other pods' required anti-affinity.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ffdl_airflow.engines.kubernetes import names, needs
from ffdl_airflow.engines.kubernetes.needs import Amounts, Plain, labels_of, name_of
from ffdl_airflow.engines.kubernetes.node_match import Group, groups_of, not_understood, obstacle
from ffdl_airflow.engines.kubernetes.packing import (
    Packed,
    Room,
    Stuck,
    emptied,
    hopeless,
    node_of,
    pack,
    rooms_of,
    takers,
)
from ffdl_airflow.engines.kubernetes.quota import refusal

HOLDERS = 3
"""Holders that a sentence names, the largest first. Chosen."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What is there, as plain dicts. ``nodes`` None: they may not be read.

    ``pods``: all pods of all namespaces. Those of the gang that exist already are taken as they
    are: one that is bound holds its place, one that is not has passed the quota. Quotas and limit
    ranges are those of the gang's namespace.
    """

    nodes: Sequence[Plain] | None
    pods: Sequence[Plain] = ()
    quotas: Sequence[Plain] = ()
    limit_ranges: Sequence[Plain] = ()


@dataclass(frozen=True, kw_only=True)
class Fit:
    """There is room. ``assignment``: pod → node, one way that works, which nobody has to take."""

    assignment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """There is no room now. ``reason`` is one sentence, ``detail`` its parts.

    ``never``: not even if everybody else left, as the cluster and its quotas are now. Nodes that
    are cordoned or not ready count as there, those that an autoscaler would add do not.
    """

    reason: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    never: bool = False


@dataclass(frozen=True, kw_only=True)
class Unsure:
    """Nothing speaks against it, but not everything can be judged: try. ``reason``: what."""

    reason: str


def fit(
    gang: Iterable[Plain], cluster: Cluster, *, only: frozenset[str] | None = None
) -> Fit | Shortage | Unsure:
    """Whether all pods of the gang, given as they would be sent, have room now.

    ``only``: names of the nodes that its turn leaves to the gang (``turns.py``), None for all.
    QuantityError where a pod or a node has a quantity that cannot be read.
    """
    pods = [needs.completed(pod, cluster.limit_ranges) for pod in gang]
    made = {needs.key_of(pod): node_of(pod) for pod in cluster.pods}
    new = [pod for pod in pods if needs.key_of(pod) not in made]
    refused = refusal(new, cluster.quotas, cluster.limit_ranges)
    if refused is not None:
        return Shortage(reason=refused.reason, detail=refused.detail, never=refused.never)
    if cluster.nodes is None:
        return Unsure(reason="nodes may not be read, so what is free is not known")
    groups = groups_of(pod for pod in pods if not made.get(needs.key_of(pod)))
    nodes = [node for node in cluster.nodes if only is None or name_of(node) in only]
    rooms = rooms_of(groups, nodes, cluster.pods)
    answer = pack(groups, rooms)
    if isinstance(answer, Stuck):
        own = set(map(needs.key_of, pods))
        others = [pod for pod in cluster.pods if needs.key_of(pod) not in own]
        story = _Story(groups, rooms, answer, replace(cluster, pods=others))
        return story.shortage()
    return _sure(answer, pods)


def _sure(answer: Packed, pods: Iterable[Plain]) -> Fit | Unsure:
    doubt = next(filter(None, map(not_understood, pods)), None)
    if doubt is not None:
        return Unsure(reason=f"there is room, but {doubt} is left to the scheduler")
    return Fit(assignment=answer.assignment)


@dataclass(frozen=True)
class _Story:
    """Why the group that got stuck has no room."""

    groups: Sequence[Group]
    rooms: Sequence[Room]
    stuck: Stuck
    cluster: Cluster

    @property
    def group(self) -> Group:
        return self.groups[self.stuck.index]

    def shortage(self) -> Shortage:
        usable = [
            i for i, room in enumerate(self.rooms) if room.usable(self.stuck.index, self.group)
        ]
        free = [self.stuck.free[i] for i in usable]
        empty = emptied(self.cluster.nodes or ())
        most, never = takers(self.group, empty), hopeless(self.groups, empty)
        short = self._scarce(free or [room.total for room in self.rooms])
        away = self._away()
        holders = self._holders(short, {name_of(self.rooms[i].node) for i in usable})
        detail = {
            "replicas": list(self.group.names), "each": dict(self.group.each), "resource": short,
            "needed": self.group.each[short] * self.group.count,
            "free": sum(max(0, there.get(short, 0)) for there in free),
            "largest": max((there.get(short, 0) for there in free), default=0),
            "placeable": sum(needs.fits(self.group.each, there) for there in free),
            "possible": sum(most), "nodes": len(empty), "usable": len(usable),
            "away": dict(away), "holders": dict(holders),
        }  # fmt: skip
        reason = f"{self._need(short)}: {self._now(detail, never=never)}"
        return Shortage(reason=reason, detail=detail, never=never)

    def _need(self, short: str) -> str:
        count, each = self.group.count, self.group.each[short]
        who = self.group.names[0]
        if count == 1:
            return f"{who} needs {needs.show(short, each)}"
        whole = needs.bare(short, each * count)
        return (
            f"{count} replicas ({who} to {self.group.names[-1]}) need {needs.show(short, each)} "
            f"each, {whole} in all"
        )

    def _now(self, detail: Mapping[str, Any], *, never: bool) -> str:
        parts = [self._never(detail) if never else self._free(detail)]
        if detail["away"]:
            of = detail["nodes"]
            gone = [f"{count} of {of} ({text})" for text, count in detail["away"].items()]
            parts.append(f"nodes out: {', '.join(gone)}")
        if detail["holders"] and not never:
            held = [
                f"{name} ({needs.bare(detail['resource'], count)})"
                for name, count in detail["holders"].items()
            ]
            parts.append(f"held by {', '.join(held)}")
        return "; ".join(parts)

    def _free(self, detail: Mapping[str, Any]) -> str:
        short = detail["resource"]
        text = (
            f"{needs.show(short, detail['free'])} free on {detail['usable']} usable nodes, "
            f"at most {needs.bare(short, detail['largest'])} on one"
        )
        return f"{text}, {detail['placeable']} would fit" if self.group.count > 1 else text

    def _never(self, detail: Mapping[str, Any]) -> str:
        if detail["possible"] >= self.group.count:
            return "with the other replicas that is more than the whole cluster could hold"
        if detail["possible"]:
            return f"the whole cluster could hold {detail['possible']}"
        short = detail["resource"]
        nodes = emptied(self.cluster.nodes or ())
        open_to = [n for node, n in nodes if obstacle(self.group.where, node, ever=True) is None]
        if not open_to:
            return "no node may ever take it"
        largest = max(needs.has(total, short) for total in open_to)
        if largest == 0:
            return f"no node that it may use has any {short}"
        return f"the largest node that it may use has {needs.bare(short, largest)}"

    def _scarce(self, free: Sequence[Amounts]) -> str:
        """The resource of which the fewest replicas would fit; devices before cpu and memory."""

        def key(name: str) -> tuple[int, bool, str]:
            need = {name: self.group.each[name]}
            return sum(needs.fits(need, there) for there in free), "/" not in name, name

        return min((name for name, need in self.group.each.items() if need > 0), key=key)

    def _away(self) -> Counter[str]:
        index = self.stuck.index
        away = Counter(text for room in self.rooms if (text := room.out[index]) is not None)
        if kept := len(self.cluster.nodes or ()) - len(self.rooms):
            away["kept for those ahead in the queue"] = kept
        return Counter(dict(away.most_common()))

    def _holders(self, short: str, nodes: set[str]) -> list[tuple[str, int]]:
        held: Counter[str] = Counter()
        for pod in self.cluster.pods:
            if node_of(pod) in nodes:
                held[holder(pod)] += needs.requests_of(pod).get(short, 0)
        return [(name, count) for name, count in held.most_common(HOLDERS) if count > 0]


def holder(pod: Plain) -> str:
    """Who has what the pod has: a placement's id, else namespace and name."""
    labels = labels_of(pod)
    if names.JOB in labels and names.PLACEMENT in labels:
        return f"{labels[names.JOB]}/{labels[names.PLACEMENT]}"
    return "/".join(needs.key_of(pod))
