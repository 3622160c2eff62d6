"""A placement from its first word to all pods bound, or back to nothing.

Under the turnstile's Lease one gang places at a time. Its pods are owned by the headless service of
this very round: a round that is given up takes with it what a late driver still makes for it.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from ffdl_airflow.core.errors import FieldProblem, SpecError
from ffdl_airflow.core.events import iso
from ffdl_airflow.core.plan import GangPlan
from ffdl_airflow.engines.base import Granted, Over, Waiting
from ffdl_airflow.engines.kubernetes import names, render
from ffdl_airflow.engines.kubernetes.cluster import (
    Cluster,
    Document,
    annotations_of,
    is_bound,
    stage_of,
)  # fmt: skip
from ffdl_airflow.engines.kubernetes.hub import CHANCE
from ffdl_airflow.engines.kubernetes.line import RENEWED, Line
from ffdl_airflow.engines.kubernetes.pending import why_pending
from ffdl_airflow.engines.kubernetes.podgroups import PodGroups
from ffdl_airflow.engines.kubernetes.refusals import OverQuota
from ffdl_airflow.engines.kubernetes.survey import priorities
from ffdl_airflow.engines.kubernetes.turnstile import LEASE_S, Busy, Turnstile

SINCE = names.PREFIX + "since"
"""Annotation of an anchor: when its stage began."""
NODES = names.PREFIX + "nodes"
"""Annotation of an anchor: host names of the nodes that its turn leaves to it."""
_LOOK_S = 2.0
"""Longest wait for the scheduler within one call. Chosen: it binds within milliseconds."""
_ANOTHER = "another driver is at it"
_TRY_S = (1.0, 2.0)
"""A gang that waits looks at the cluster so often. Chosen; drawn each time."""
_AHEAD, _SLOWEST = 20, 6.0
"""With so many gangs ahead it looks half as often, and a sixth as often at least. Chosen: placing
a gang takes half a second."""
_BACKOFF_S = (5.0, 20.0)
"""After a round that was given up. Chosen; drawn each time, so that two gangs part."""
_BATCH = 256
"""Pods that are made before the Lease is renewed. Chosen: a few seconds of a slow server."""


class Placer:
    """Places gangs in one namespace; keeps between calls only what saves requests.

    Safe in any number of threads: all drivers of a process share one.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._turnstile = Turnstile(cluster)
        self._groups = PodGroups(cluster)
        self._line = Line(cluster)
        self._rendered: tuple[GangPlan, list[Document]] | None = None
        self._not_before: dict[str, float] = {}
        self._said: dict[str, Waiting] = {}
        self._given_up: dict[str, str] = {}

    def reserve(self, plan: GangPlan) -> Granted | Waiting | Over:
        """See ``Engine.reserve``."""
        anchor = self._cluster.anchor(plan.placement_id)
        if anchor is None:
            self._grouped(plan)  # refuses before anything is made
            anchor = self._cluster.make("configmaps", self._new_anchor(plan))
        stage = stage_of(anchor)
        if stage == "ended":
            return Over()
        if stage == "placed":
            return Granted()
        said = self._said.get(plan.placement_id)
        early = time.monotonic() < self._not_before.get(plan.placement_id, 0.0)
        if said is not None and early and not self._line.has_gone(said.detail):
            return said
        answer = self._advance(plan, anchor, stage)
        if isinstance(answer, Waiting):
            self._said[plan.placement_id] = answer
        return answer

    def ended(self, placement_id: str) -> None:
        """A placement is over: it holds the turnstile no more, and is forgotten."""
        self._not_before.pop(placement_id, None)
        self._said.pop(placement_id, None)
        name = names.gang_name(placement_id)
        self._given_up.pop(name, None)
        if self._turnstile.is_held_by(name):
            self._turnstile.leave(name)

    def _advance(self, plan: GangPlan, anchor: Document, stage: str) -> Granted | Waiting:
        if stage == "waiting":
            enter = self._enter_group if self._grouped(plan) else self._enter
            entered = enter(plan, anchor)
            if isinstance(entered, Waiting):
                behind = entered.detail.get("count", 0)
                pause_s = self._pause(plan, _TRY_S, ahead=behind)
                return entered if behind else replace(entered, again_s=pause_s)
            anchor = entered
        return (self._place_group if _is_grouped(anchor) else self._place)(plan, anchor)

    def _enter_group(self, plan: GangPlan, anchor: Document) -> Document | Waiting:
        marks = {names.STAGE: "placing", names.GANG: "podgroup", SINCE: iso(_now())}
        return self._cluster.annotate(anchor, marks) or Waiting(_ANOTHER)

    def _grouped(self, plan: GangPlan) -> bool:
        """Whether Kubernetes' own gang scheduling places the gang."""
        if plan.gang == "turnstile":
            return False
        works = self._groups.work()
        if plan.gang == "podgroup" and not works:
            allowed = "turnstile or auto: this cluster's scheduler does not place pod groups"
            raise SpecError([FieldProblem("spec.reservation.gang", "podgroup", allowed)])
        return works

    def _place_group(self, plan: GangPlan, anchor: Document) -> Granted | Waiting:
        """All pods at once; the scheduler binds them all or none, and until then they hold nothing.

        So there is nothing to take back, and no one else has to wait.
        """
        there = self._cluster.pods(plan.placement_id)
        if len(there) < len(plan.replicas):
            self._make(plan, anchor, there)
        name = names.gang_name(plan.placement_id)
        return self._bound(plan, anchor) or self._unbound(plan, self._groups.read(name))

    def _new_anchor(self, plan: GangPlan) -> Document:
        anchor = render.anchor(plan, self._cluster.settings)
        value = priorities(self._cluster).get(plan.priority, 0)
        anchor["data"] |= {"demand": render.demand(self._pods(plan)), "priority-value": str(value)}
        anchor["metadata"]["annotations"] |= {RENEWED: iso(_now())}
        return anchor

    def _pods(self, plan: GangPlan) -> list[Document]:
        """The gang's pods without an owner; those of the plan that was asked for last are kept."""
        known = self._rendered  # of another thread's gang at any moment
        if known is None or known[0] != plan:
            known = self._rendered = plan, render.pods(plan, self._cluster.settings)
        return known[1]

    def _enter(self, plan: GangPlan, anchor: Document) -> Document | Waiting:
        """The anchor, now placing, where it is the gang's turn and there is room.

        Whoever comes when nobody waits looks once, under the Lease; who waits looks before.
        """
        renewed = self._line.renew(anchor)
        if renewed is None:
            return Waiting(_ANOTHER)
        name = names.gang_name(plan.placement_id)
        if plan.placement_id in self._said or not self._line.is_empty(but=name):
            turned = self._line.room(self._pods(plan), renewed)
            if isinstance(turned, Waiting) and not self._is_blocked(name):
                return turned
        entered = self._turnstile.enter(name)
        if isinstance(entered, Busy):
            return Waiting(f"{_placement(self._cluster, entered)} is being placed")
        if not self._cleared(name):
            return Waiting("what another gang has left half-placed is cleared away")
        turned = self._line.room(
            self._pods(plan), renewed, at_most_s=0.0
        )  # others placed meanwhile?
        if isinstance(turned, Waiting):
            self._turnstile.leave(name)
            return turned
        marks = {names.STAGE: "placing", SINCE: iso(_now())}
        if turned.only is not None:
            marks[NODES] = json.dumps(self._line.hosts(turned.only))
        placing = self._cluster.annotate(renewed, marks)
        return placing or Waiting(_ANOTHER)

    def _place(self, plan: GangPlan, anchor: Document) -> Granted | Waiting:
        name = names.gang_name(plan.placement_id)
        if isinstance(self._turnstile.enter(name), Busy):
            return Waiting("the turnstile was lost; what was placed is cleared away")
        if self._line.age_s(anchor, SINCE) > plan.timing.placement_s:
            limit_s = plan.timing.placement_s
            self._given_up[name] = f"not all replicas had a node within {limit_s:.0f} s"
        if name in self._given_up:
            return self._give_up(plan, anchor)
        there = self._cluster.pods(plan.placement_id)
        if len(there) < len(plan.replicas):
            try:
                self._make(plan, anchor, there)
            except OverQuota as refused:  # a quota that we may not read, or others were quicker
                self._given_up[name] = refused.cause
                return self._give_up(plan, anchor)
        granted = self._bound(plan, anchor)
        if granted is not None:
            self._turnstile.leave(name)
        return granted or self._unbound(plan, ())

    def _bound(self, plan: GangPlan, anchor: Document) -> Granted | None:
        """Placed, as soon as all replicas have a node; from then on they have names."""
        count = len(plan.replicas)
        self._cluster.wait_for_pods(count, plan.placement_id, wait_s=_LOOK_S)
        if sum(map(is_bound, self._cluster.pods(plan.placement_id).values())) < count:
            return None
        if not self._cluster.open_service(names.gang_name(plan.placement_id)):
            return None
        placed = self._cluster.annotate(anchor, {names.STAGE: "placed", SINCE: iso(_now())})
        return None if placed is None else Granted()

    def _unbound(self, plan: GangPlan, groups: Sequence[Document]) -> Waiting:
        pods = list(self._cluster.pods(plan.placement_id).values())
        text = f"{sum(map(is_bound, pods))} of {len(plan.replicas)} replicas have a node"
        why = why_pending(pods, groups=groups)
        return Waiting(f"{text}: {why.reason}" if why else text)

    def _make(self, plan: GangPlan, anchor: Document, there: Mapping[str, Document]) -> None:
        """Create what is missing; the Lease is renewed before each batch."""
        settings, name = self._cluster.settings, names.gang_name(plan.placement_id)
        early = render.of_coordinator(render.service(plan, settings), plan)
        service = self._cluster.make("services", render.owned(early, anchor))
        self._cluster.make("secrets", render.owned(render.secret(plan, settings), service))
        grouped = _is_grouped(anchor)
        if grouped:
            group = render.pod_group(name, len(plan.replicas), plan.priority)
            self._groups.make(render.owned(group, service))
        missing = [
            _restricted(render.owned(pod, service), anchor)
            for replica, pod in zip(plan.replicas, self._pods(plan), strict=True)
            if replica.name not in there
        ]
        for first in range(0, len(missing), _BATCH):
            if not grouped and isinstance(self._turnstile.enter(name), Busy):
                return
            batch = missing[first : first + _BATCH]
            self._cluster.at_once(lambda pod: self._cluster.make("pods", pod), batch)

    def _give_up(self, plan: GangPlan, anchor: Document) -> Waiting:
        name = names.gang_name(plan.placement_id)
        why = self._given_up[name]
        if self._clear_away(name):
            self._turnstile.leave(name)
            self._pause(plan, _BACKOFF_S)
            self._given_up.pop(name, None)
            return Waiting(f"{why}; it is tried again")
        return Waiting(f"{why}; the round is given up, its pods are leaving")

    def _is_blocked(self, own: str) -> bool:
        """Whether what takes the room may be a gang whose driver has died while it was placed."""
        return any(self._line.age_s(found, SINCE) > LEASE_S for _, found in self._placing(own))

    def _placing(self, own: str) -> list[tuple[str, Document]]:
        """Anchors of others that are in a round."""
        return [
            (name, found)
            for name, found in self._cluster.anchors().items()
            if name != own and stage_of(found) == "placing" and not _is_grouped(found)
        ]

    def _cleared(self, own: str) -> bool:
        """Take back what gangs that have lost the Lease have left; we hold it, so nobody else may.

        They are found by their anchors: who held the Lease last may be of another namespace.
        """
        left = [name for name, _ in self._placing(own)]
        return all([self._clear_away(name) for name in left])  # noqa: C419 - each is begun

    def _clear_away(self, name: str) -> bool:
        """Take back a round that was not finished; whether nothing of it is left."""
        anchor = self._cluster.refresh(name)  # it may have been placed just now
        if anchor is None or annotations_of(anchor).get(names.STAGE) != "placing":
            return True
        self._cluster.remove_service(name)
        self._cluster.remove_secret(name)  # it went with the service, but a next round is near
        pods = self._cluster.pods_of(anchor)
        self._cluster.remove_pods(pods, grace_s=1)
        if pods or stage_of(anchor) == "ended":
            return not pods
        marks = {names.STAGE: "waiting", SINCE: iso(_now())}
        return self._cluster.annotate(anchor, marks) is not None

    def _pause(self, plan: GangPlan, between: tuple[float, float], *, ahead: int = 0) -> float:
        """The longer, the more gangs are ahead: it is not its turn soon."""
        wait_s = CHANCE.uniform(*between) * min(1 + ahead / _AHEAD, _SLOWEST)
        self._not_before[plan.placement_id] = time.monotonic() + wait_s
        return wait_s


def _is_grouped(anchor: Mapping[str, Any]) -> bool:
    return annotations_of(anchor).get(names.GANG) == "podgroup"


def _restricted(pod: Document, anchor: Mapping[str, Any]) -> Document:
    """The pod, kept to its group, or to the nodes that its turn leaves to it."""
    if _is_grouped(anchor):
        return render.member(pod, anchor["metadata"]["name"])
    text = annotations_of(anchor).get(NODES)
    return pod if text is None else render.kept_to(pod, json.loads(text))


def _placement(cluster: Cluster, busy: Busy) -> str:
    """Who holds the turnstile; anchors of other namespaces cannot be read."""
    if busy.namespace != cluster.settings.namespace:
        return f"{busy.holder} in namespace {busy.namespace}"
    anchor = cluster.anchor_named(busy.holder)
    return str(anchor["data"]["placement"]) if anchor else busy.holder


def _now() -> datetime:
    return datetime.now(timezone.utc)
