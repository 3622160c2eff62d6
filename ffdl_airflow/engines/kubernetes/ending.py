"""A placement's end: told to leave, then deleted, then closed for good.

A pod on a node that does not answer never goes by itself: nobody confirms that its containers have
ended. It is waited for as long as its agent may take to notice that it is alone and to end its
ranks; then its object is removed, and the evidence says so. Should a rank live on all the same, it
cannot seal a checkpoint once the next placement has become the writer (agent/sealing.py).
"""

import json
import time
from collections.abc import Mapping
from datetime import datetime, timezone

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.events import iso, parse_iso
from ffdl_airflow.core.plan import Timing
from ffdl_airflow.engines.base import AgentAway, AgentRefused, Ending, EndRequest, Evidence
from ffdl_airflow.engines.kubernetes import names, render
from ffdl_airflow.engines.kubernetes.cluster import (
    Cluster,
    Document,
    annotations_of,
    is_leaving,
    is_over,
    stage_of,
)  # fmt: skip
from ffdl_airflow.engines.kubernetes.gang import RemoteGang
from ffdl_airflow.engines.kubernetes.needs import labels_of
from ffdl_airflow.engines.kubernetes.pod_state import PodState

ENDED_AT = names.PREFIX + "ended-at"
ABANDONED = names.PREFIX + "abandoned"
"""Annotation of an anchor: replica → node, of pods that were removed without a word of the node."""
_PATIENCE_S = 8.0
"""After this long (plus the grace of a save) what was told to leave is deleted. Chosen: the agent's
own SIGTERM → SIGKILL takes 5 s."""
_SILENT_S = Timing.silent_s
"""Of an anchor that does not say."""
_ALONE_S = 8.0
"""What an agent needs to end its ranks once it knows that it is alone: 1 s to SIGKILL, the rest is
for a busy host. Chosen. When a pod is called silent, its node's own grace time (40 to 50 s by
default) has passed already."""


class Endings:
    """Ends placements; remembers since when it has seen a leaving pod's node silent."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._silent_since: dict[str, float] = {}

    def end(self, placement_id: str, request: EndRequest, *,
            gang: RemoteGang) -> Evidence | Ending:  # fmt: skip
        """See ``Engine.end``."""
        cluster = self._cluster
        anchor = self._closed(placement_id, request)
        pods = cluster.pods(placement_id)
        alive = [pod for pod in pods.values() if not is_over(pod)]
        leaving = [pod for pod in alive if is_leaving(pod)]
        if alive and not leaving and _has_patience(anchor, request) and _told(gang, request):
            return Ending("the gang is leaving")
        cluster.remove_service(names.gang_name(placement_id))  # owns the pods
        cluster.remove_pods(pods)
        self._give_up_silent(anchor, pods)
        if alive:
            return Ending(_what(pods))
        abandoned = json.loads(annotations_of(anchor).get(ABANDONED, "{}"))
        if names.ENDED not in labels_of(anchor):
            self._bury(placement_id, request, anchor=anchor)
        return Evidence(abandoned=abandoned)

    def _give_up_silent(self, anchor: Document, pods: Mapping[str, Document]) -> None:
        """Remove pods whose agents must have ended; first it is written down which."""
        silent_s = float(anchor["data"].get("silent-s", _SILENT_S))
        due = {replica: pod for replica, pod in pods.items()
               if is_leaving(pod) and self._silent_for_s(pod) > silent_s + _ALONE_S}  # fmt: skip
        if not due:
            return
        known = json.loads(annotations_of(anchor).get(ABANDONED, "{}"))
        known |= {replica: pod["spec"].get("nodeName") for replica, pod in due.items()}
        if self._cluster.annotate(anchor, {ABANDONED: json.dumps(known)}) is None:
            return
        for pod in due.values():
            self._cluster.remove("pods", pod, grace_s=0)
            del self._silent_since[pod["metadata"]["uid"]]

    def _silent_for_s(self, pod: Document) -> float:
        uid = pod["metadata"]["uid"]
        if not PodState(pod).silent:
            self._silent_since.pop(uid, None)
            return 0.0
        return time.monotonic() - self._silent_since.setdefault(uid, time.monotonic())

    def _closed(self, placement_id: str, request: EndRequest) -> Document:
        """The anchor, marked so that nobody places it any more, or a tombstone."""
        name = names.gang_name(placement_id)
        found = self._cluster.anchor(placement_id)
        while True:
            if found is None:
                found = self._cluster.make("configmaps", self._tombstone(placement_id, request))
            if stage_of(found) == "ended":
                return found
            mark = {names.ENDED: request.mode, ENDED_AT: iso(_now())}
            found = self._cluster.annotate(found, mark) or self._cluster.refresh(name)

    def _bury(self, placement_id: str, request: EndRequest, *, anchor: Document) -> None:
        """Anchor out, tombstone in. What a late driver has made goes with what owned it."""
        name = names.gang_name(placement_id)
        self._cluster.remove_secret(name)
        self._cluster.remove_service(name)
        self._cluster.remove("configmaps", anchor)
        journal = anchor["data"].get("journal")
        tombstone = self._tombstone(placement_id, request, journal=journal)
        self._cluster.make("configmaps", tombstone)

    def _tombstone(self, placement_id: str, request: EndRequest, *,
                   journal: str | None = None) -> Document:  # fmt: skip
        """It still knows where the journal lies."""
        data = {"why": request.why} | ({"journal": journal} if journal else {})
        settings = self._cluster.settings
        return render.tombstone(placement_id, settings, mode=request.mode, data=data)


def _what(pods: Mapping[str, Document]) -> str:
    silent = {replica: pod["spec"].get("nodeName") for replica, pod in pods.items()
              if PodState(pod).silent}  # fmt: skip
    text = f"{len(pods)} pods are being deleted"
    if not silent:
        return text
    where = ", ".join(f"{replica} on {node}" for replica, node in sorted(silent.items()))
    return f"{text}; nodes that do not answer: {where}; their agents end by themselves"


def _has_patience(anchor: Document, request: EndRequest) -> bool:
    told = annotations_of(anchor).get(ENDED_AT)
    if told is None:
        return False
    patience_s = _PATIENCE_S + (request.grace_s if request.mode == protocol.STOP_SAVE else 0.0)
    return (_now() - parse_iso(told)).total_seconds() < patience_s


def _told(gang: RemoteGang, request: EndRequest) -> bool:
    """Tell the gang to leave; False where nobody answers, so that waiting is of no use."""
    try:
        gang.stop(mode=request.mode, why=request.why, then="leave")
    except AgentRefused:
        return True
    except AgentAway:
        return False
    return True


def _now() -> datetime:
    return datetime.now(timezone.utc)
