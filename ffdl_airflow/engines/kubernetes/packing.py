"""Groups of replicas into nodes, all or none.

Replicas that are alike are counted, which is exact. Groups that differ are packed one after the
other, the largest first, and if that fails the most bound first; each takes the nodes that the
other groups want least, and of these the fullest. Where groups compete for two resources of the
same nodes a cleverer packing may exist: the answer may be no although there is a way, never yes
where there is none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ffdl_airflow.engines.kubernetes import needs
from ffdl_airflow.engines.kubernetes.needs import Amounts, Plain, name_of
from ffdl_airflow.engines.kubernetes.node_match import Group, obstacle

TERMINAL = ("Succeeded", "Failed")


@dataclass(frozen=True, kw_only=True)
class Room:
    """A node in numbers: all that it has and what is free (below zero where it is overfull).

    ``out``: for each group, by its place in the gang, why it may not come here, None if it may.
    """

    node: Plain
    total: Amounts
    free: Amounts
    out: Sequence[str | None]

    def usable(self, index: int, group: Group) -> bool:
        """Whether a replica of the group could be here if the node were empty."""
        return self.out[index] is None and needs.fits(group.each, self.total) > 0


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Pod → node, for all."""

    assignment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Stuck:
    """The group at ``index`` found no room; ``free`` of each room after those packed before it."""

    index: int
    free: Sequence[Amounts]


def node_of(pod: Plain) -> str | None:
    """The node on which the pod takes room: bound to it, or promised it after a preemption.

    None for a pod that has ended. One that is being deleted still takes its room.
    """
    status = pod.get("status") or {}
    if status.get("phase") in TERMINAL:
        return None
    return needs.spec_of(pod).get("nodeName") or status.get("nominatedNodeName") or None


def rooms_of(groups: Sequence[Group], nodes: Iterable[Plain], pods: Iterable[Plain]) -> list[Room]:
    """The nodes in numbers, beside the pods that are there."""
    used: dict[str, list[Amounts]] = {}
    for pod in pods:
        if name := node_of(pod):
            used.setdefault(name, []).append(needs.requests_of(pod))
    rooms = []
    for node, total in emptied(nodes):
        free = dict(total)
        for each in used.get(name_of(node), ()):
            needs.take(free, each)
        out = [obstacle(group.where, node) for group in groups]
        rooms.append(Room(node=node, total=total, free=free, out=out))
    return rooms


Empty = Sequence[tuple[Plain, Amounts]]
"""Nodes with what they have when nothing runs on them."""


def emptied(nodes: Iterable[Plain]) -> Empty:
    """The nodes as if they were empty."""
    return [(node, needs.amounts((node.get("status") or {}).get("allocatable"))) for node in nodes]


def takers(group: Group, nodes: Empty) -> list[int]:
    """For each node, how many replicas it would hold if it were empty, ready and not cordoned."""
    return [
        needs.fits(group.each, total) if obstacle(group.where, node, ever=True) is None else 0
        for node, total in nodes
    ]


def hopeless(groups: Sequence[Group], nodes: Empty) -> bool:
    """Whether it is certain that the nodes could not hold all groups, even if they were empty.

    Shown for each group, and for all groups that need one resource: more of it than there is, or
    more replicas than would go in if all were as small as the smallest of them. (What is hopeless
    only because groups compete for two resources is not seen.)
    """
    could = [takers(group, nodes) for group in groups]
    if any(sum(counts) < group.count for counts, group in zip(could, groups, strict=True)):
        return True
    resources = {name for group in groups for name, need in group.each.items() if need > 0}
    return any(_too_many(name, groups, could, nodes=nodes) for name in resources)


def _too_many(
    name: str, groups: Sequence[Group], could: Sequence[Sequence[int]], *, nodes: Empty
) -> bool:  # fmt: skip
    need = [(group, counts) for group, counts in zip(groups, could, strict=True)
            if group.each.get(name, 0) > 0]  # fmt: skip
    open_to = [total for place, (_, total) in enumerate(nodes) if any(c[place] for _, c in need)]
    smallest = {key: min(g.each.get(key, 0) for g, _ in need) for key in need[0][0].each}
    wanted = sum(group.each[name] * group.count for group, _ in need)
    return (
        sum(needs.has(total, name) for total in open_to) < wanted
        or sum(needs.fits(smallest, total) for total in open_to) < sum(g.count for g, _ in need)
    )  # fmt: skip


def pack(groups: Sequence[Group], rooms: Sequence[Room]) -> Packed | Stuck:
    """A way for all groups, else where the first try got stuck."""
    stuck = None
    for order in _orders(groups, rooms):
        answer = _pack(order, groups, rooms)
        if isinstance(answer, Packed):
            return answer
        stuck = stuck or answer
    return stuck or Packed(assignment={})


def _pack(order: Iterable[int], groups: Sequence[Group], rooms: Sequence[Room]) -> Packed | Stuck:
    free = [dict(room.free) for room in rooms]
    assignment: dict[str, str] = {}
    for index in order:
        before, left = [dict(there) for there in free], list(groups[index].names)
        for place in _places(index, groups, rooms, free=free):
            count = min(len(left), needs.fits(groups[index].each, free[place]))
            needs.take(free[place], groups[index].each, count)
            taken, left = left[:count], left[count:]
            assignment.update(dict.fromkeys(taken, name_of(rooms[place].node)))
        if left:
            return Stuck(index=index, free=before)
    return Packed(assignment=assignment)


def _orders(groups: Sequence[Group], rooms: Sequence[Room]) -> list[list[int]]:
    """The largest first, and the most bound first; one order where there is one group."""
    most: dict[str, int] = {}
    for room in rooms:
        for name, count in room.total.items():
            most[name] = max(most.get(name, 0), count)

    def share(index: int) -> float:
        each = groups[index].each
        return max((need / max(1, most.get(name, 0)) for name, need in each.items()), default=0.0)

    def nodes(index: int) -> int:
        return sum(room.usable(index, groups[index]) for room in rooms)

    every = range(len(groups))
    largest, bound = sorted(every, key=lambda i: -share(i)), sorted(every, key=nodes)
    return [largest] if largest == bound else [largest, bound]


def _places(index: int, groups: Sequence[Group], rooms: Sequence[Room], *,
            free: Sequence[Amounts]) -> list[int]:  # fmt: skip
    """Rooms in which the group has some room, those that others want least first."""

    def key(place: int) -> tuple[int, int]:
        others = sum(rooms[place].usable(i, g) for i, g in enumerate(groups) if i != index)
        return others, needs.fits(groups[index].each, free[place])

    having = (
        place for place, room in enumerate(rooms)
        if room.out[index] is None and needs.fits(groups[index].each, free[place]) > 0
    )  # fmt: skip
    return sorted(having, key=key)
