"""Those who wait for a place: who is in the line, whose turn it is, and whether there is room.

It is nowhere but in the anchors: each waiting gang says in its own since when it waits, what it
needs and that somebody still drives it.
"""

import json
import math
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

from ffdl_airflow.core.events import iso, parse_iso
from ffdl_airflow.engines.base import Waiting
from ffdl_airflow.engines.kubernetes import names
from ffdl_airflow.engines.kubernetes.capacity import Cluster as Survey
from ffdl_airflow.engines.kubernetes.capacity import Shortage, fit
from ffdl_airflow.engines.kubernetes.cluster import Cluster, Document, annotations_of, stage_of
from ffdl_airflow.engines.kubernetes.needs import labels_of, name_of
from ffdl_airflow.engines.kubernetes.node_match import Group
from ffdl_airflow.engines.kubernetes.render import HOSTNAME
from ffdl_airflow.engines.kubernetes.survey import survey
from ffdl_airflow.engines.kubernetes.turns import Behind, Turn, Waiter, turn

NAMED = 10
"""So many of those ahead are in an event, beside their number."""
AGAIN_S = 0.2
"""Who is next looks so often whether it is its turn, who is behind less often. Chosen: a look at
what is known here costs a millisecond."""
Nodes = Sequence[Mapping[str, Any]] | None
RENEWED = names.PREFIX + "renewed"
HELD_BACK = names.PREFIX + "held-back"
RENEW_S = 20.0
"""A waiter says so often that it still waits; it counts for 60 s (``turns.py``)."""
SURVEY_S = 1.0
"""A first look may be so old; under the Lease it is made anew. Chosen."""


class Line:
    """The line as one process sees it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen: dict[tuple[str, str], tuple[str, float]] = {}
        self._surveyed: tuple[float, Survey] | None = None
        self._looking = threading.Lock()

    def room(self, pods: Sequence[Document], anchor: Document, *,
             at_most_s: float = SURVEY_S) -> Turn | Waiting:  # fmt: skip
        """Whether it is the gang's turn, and whether it has room where its turn is."""
        view = self._survey(at_most_s=at_most_s)
        anchors = self._cluster.anchors()
        self._forget_all_but({found["metadata"]["uid"] for found in anchors.values()})
        own = anchor["metadata"]["name"]
        waiting = [found for found in anchors.values() if stage_of(found) == "waiting"]
        mine = self._waiter(anchor)
        others = [a for a in waiting if a["metadata"]["name"] != own]
        turned = self._turn(mine, others, view.nodes)
        if isinstance(turned, Behind):
            return Waiting(turned.reason, {"ahead": turned.ahead[:NAMED],
                                           "count": len(turned.ahead)},
                           again_s=min(AGAIN_S * len(turned.ahead), 1.0))  # fmt: skip
        answer = fit(pods, view, only=turned.only)
        self._hold_back(anchor, answer if isinstance(answer, Shortage) else None)
        if isinstance(answer, Shortage):
            return Waiting(answer.reason, {**answer.detail, "never": answer.never})
        return turned

    def hosts(self, names: Collection[str]) -> list[str]:
        """What the nodes of a turn are called by the label that pods are kept to them with.

        On some clouds it is not the node's name.
        """
        view = self._survey(at_most_s=math.inf)
        labels = {name_of(node): labels_of(node) for node in view.nodes or ()}
        return sorted(str(labels.get(name, {}).get(HOSTNAME, name)) for name in names)

    def is_empty(self, *, but: str) -> bool:
        """Whether no other gang waits than that of the anchor of this name."""
        anchors = self._cluster.anchors().items()
        return all(name == but or stage_of(found) != "waiting" for name, found in anchors)

    def has_gone(self, waited_for: Mapping[str, Any]) -> bool:
        """Whether all that a gang was behind are placed or gone, as far as is known here."""
        anchors, ahead = self._cluster.anchors(), waited_for.get("ahead", ())
        found = (anchors.get(names.gang_name(placement)) for placement in ahead)
        left = any(anchor and stage_of(anchor) in ("waiting", "placing") for anchor in found)
        return 0 < len(ahead) == waited_for["count"] and not left

    def _turn(self, mine: Waiter, others: Sequence[Document], nodes: Nodes) -> Turn | Behind:
        """Nobody waits for a gang whose anchor cannot be understood; others may have written it."""
        try:
            return turn(mine, map(self._waiter, others), nodes, now=_now())
        except Exception:  # noqa: BLE001 - whatever stands there
            return turn(mine, self._understood(mine, others, nodes), nodes, now=_now())

    def _understood(
        self, mine: Waiter, others: Sequence[Document], nodes: Nodes
    ) -> Iterator[Waiter]:
        for anchor in others:
            with suppress(Exception):
                waiter = self._waiter(anchor)
                turn(mine, [waiter], nodes, now=_now())
                yield waiter

    def _forget_all_but(self, uids: set[str]) -> None:
        for key in list(self._seen):
            if key[0] not in uids:
                self._seen.pop(key, None)

    def renew(self, anchor: Document) -> Document | None:
        """Say that somebody still waits for this placement; None where another driver just did."""
        if RENEWED in annotations_of(anchor) and self.age_s(anchor, RENEWED) < RENEW_S:
            return anchor
        return self._cluster.annotate(anchor, {RENEWED: iso(_now())})

    def age_s(self, anchor: Mapping[str, Any], mark: str) -> float:
        """Seconds since we saw an annotation change; clocks of other hosts may be wrong."""
        key, text = (anchor["metadata"]["uid"], mark), annotations_of(anchor).get(mark, "")
        known = self._seen.get(key)
        if known is None or known[0] != text:
            known = self._seen[key] = (text, time.monotonic())
        return time.monotonic() - known[1]

    def _hold_back(self, anchor: Document, shortage: Shortage | None) -> None:
        """A gang that waits for its quota is in nobody's way."""
        quota = shortage is not None and "quota" in shortage.detail
        reason = shortage.reason if shortage is not None and quota else ""
        if annotations_of(anchor).get(HELD_BACK, "") != reason:
            self._cluster.annotate(anchor, {HELD_BACK: reason})

    def _waiter(self, anchor: Mapping[str, Any]) -> Waiter:
        data = anchor["data"]
        return Waiter(
            placement=data["placement"], priority=int(data["priority-value"]),
            demand=_demand_of(data["demand"]), shape=data["demand"],
            asked_at=_moment(data["asked-at"]),
            renewed_at=_now() - timedelta(seconds=self.age_s(anchor, RENEWED)),
            held_back=annotations_of(anchor).get(HELD_BACK) or None,
        )  # fmt: skip

    def _survey(self, *, at_most_s: float) -> Survey:
        """What there is, of all gangs of this process read once in so many seconds.

        Who comes while another looks waits for what that one sees, where it is new enough.
        """
        oldest = time.monotonic() - at_most_s
        with self._looking:
            known = self._surveyed
            if known is None or known[0] < oldest:
                known = self._surveyed = (time.monotonic(), survey(self._cluster))
            return known[1]


@lru_cache(maxsize=1024)
def _demand_of(text: str) -> tuple[Group, ...]:
    """Hundreds that wait are read at each look, and most are alike."""
    return tuple(Group.read(group) for group in json.loads(text))


_moment = lru_cache(maxsize=4096)(parse_iso)


def _now() -> datetime:
    return datetime.now(timezone.utc)
