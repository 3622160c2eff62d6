"""Which replicas of a gang are lost, or will never start, and why.

What the pods themselves say costs no request. For a pod that has not started for a while the
namespace's events are read now and then, because only they tell of a volume that cannot be mounted.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ffdl_airflow.core.plan import Timing
from ffdl_airflow.engines.kubernetes import names
from ffdl_airflow.engines.kubernetes.cluster import (
    Cluster,
    Document,
    is_leaving,
    is_over,
    is_running,
    stage_of,
)  # fmt: skip
from ffdl_airflow.engines.kubernetes.pending import Pending, why_pending
from ffdl_airflow.engines.kubernetes.pod_end import PodEnd, as_body, end_of, node_lost
from ffdl_airflow.engines.kubernetes.pod_state import PodState, replica_of

EVENTS_AFTER_S, EVENTS_EVERY_S = 5.0, 10.0
"""A pod that has not started for so long has its events read and is told of, and so often they are
read. Chosen."""
_PLACEMENT_S = Timing.placement_s
"""Of an anchor that does not say."""
_REMEMBERED = 5000
"""Reasons that are remembered with their times. Chosen: more than a process has in an hour."""


class Losses:
    """Remembers since when a replica has been seen not starting for the same reason."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._since: dict[tuple[str, str], float] = {}
        self._events: dict[str, tuple[float, list[Document]]] = {}

    def of(self, anchor: Document, pods: Mapping[str, Document], *,
           heard: Collection[str]) -> list[dict[str, Any]]:  # fmt: skip
        """One body for each replica that is lost (core/failures/control_plane.py).

        ``heard``: those that the coordinator hears; their node may be silent, they are not lost.
        """
        placed = stage_of(anchor) == "placed"
        if not placed and stage_of(anchor) != "placing":
            return []
        found = []
        for replica in anchor["data"]["names"].split():
            pod = pods.get(replica)
            if placed:
                end = self._end(anchor, replica, pod=pod, heard=replica in heard)
            elif pod is None or is_leaving(pod):  # its round may have been given up, or go on
                continue
            else:
                end = end_of(pod) if is_over(pod) else self._never(anchor, pod)
            if end is not None and (end.what, end.exit_code) != ("exit", 0):
                found.append(as_body(end))
        return found

    def forget(self, placement_id: str) -> None:
        """The placement is over."""
        self._events.pop(placement_id, None)

    def waiting(self, anchor: Document, pods: Mapping[str, Document]) -> str | None:
        """What keeps a placed gang from starting; None where it starts, or might any moment."""
        slow = [pod for _, pod in sorted(pods.items()) if not is_running(pod) and not is_over(pod)
                and self._age_s(pod) > EVENTS_AFTER_S]  # fmt: skip
        if stage_of(anchor) != "placed" or not slow:
            return None
        events = [event for pod in slow for event in self._events_of(anchor, pod)]
        why = why_pending(slow, events=events)
        return why.reason if why else None

    def _end(self, anchor: Document, replica: str, *, pod: Document | None,
             heard: bool) -> PodEnd | None:  # fmt: skip
        if pod is None:
            return self._departed(anchor["data"]["placement"], replica)
        if is_over(pod) or is_leaving(pod):
            return end_of(pod)
        if not is_running(pod):
            return self._never(anchor, pod)
        return None if heard else node_lost(PodState(pod))

    def _departed(self, placement_id: str, replica: str) -> PodEnd | None:
        last = self._cluster.departed(placement_id, replica)
        if last is not None:
            return end_of(last, deleted=True)
        if self._cluster.confirmed(placement_id, replica) is not None:
            return None
        return PodEnd(
            what="deleted", reason="NotFound", replica=replica, pod=replica, ran=True,
            message="its pod is gone; nobody of us has seen it go, so who deleted it is not known",
        )  # fmt: skip

    def _never(self, anchor: Document, pod: Document) -> PodEnd | None:
        """The end of a pod that waits for something that will not come, or for too long."""
        age_s = self._age_s(pod)
        events = self._events_of(anchor, pod) if age_s > EVENTS_AFTER_S else []
        why = why_pending([pod], events=events)
        if why is None:
            return None
        if why.end is not None and self._held_s(pod, why.reason) >= why.final_after_s:
            return _ours(why, why.end, names.gang_name(anchor["data"]["placement"]))
        limit_s = float(anchor["data"].get("placement-s", _PLACEMENT_S))
        if stage_of(anchor) != "placed" or age_s < limit_s:
            return None
        text = f"it has not started within {limit_s:g} s: {why.reason.partition(': ')[2]}"
        end = why.end or PodEnd(
            what="", reason="PlacementTimeout", replica=replica_of(pod), ran=False,
            pod=pod["metadata"]["name"], node=pod["spec"].get("nodeName"), message="",
        )  # fmt: skip
        return replace(end, what="not-started", message=text)

    def _age_s(self, pod: Document) -> float:
        return self._held_s(pod, "seen")

    def _held_s(self, pod: Document, what: str) -> float:
        """Seconds since this was said of the pod first."""
        key, now = (pod["metadata"]["uid"], what), time.monotonic()
        while key not in self._since and len(self._since) >= _REMEMBERED:
            self._since.pop(next(iter(self._since)), None)
        return now - self._since.setdefault(key, now)

    def _events_of(self, anchor: Document, pod: Document) -> Sequence[Document]:
        placement_id = anchor["data"]["placement"]
        read_at, events = self._events.get(placement_id, (0.0, []))
        if time.monotonic() - read_at > EVENTS_EVERY_S:
            events = self._cluster.events_of(self._cluster.pods(placement_id))
            self._events[placement_id] = (time.monotonic(), events)
            while len(self._events) > _REMEMBERED:
                self._events.pop(next(iter(self._events)), None)
        uid = pod["metadata"]["uid"]
        return [event for event in events if event["involvedObject"].get("uid") == uid]


def _ours(why: Pending, end: PodEnd, secret: str) -> PodEnd:
    """What we have made ourselves is nobody's mistake when it is missing: it was removed."""
    if (why.detail.get("missing") or {}).get("name") != secret:
        return end
    text = f"secret {secret}, which was made for it, has been removed before it started"
    return replace(end, what="deleted", message=text)
