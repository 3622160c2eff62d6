"""Whose turn is it? The order of the gangs that wait for one pool of nodes.

For: who waits and what for → may this one place now, and on which nodes. Not for: whether it fits
there (``capacity.py``, with ``only``), and not for the lock under which one gang places at a time.

Order: priority, then age (first asked), then the placement's id. Who was not renewed for
:data:`WAITER_LIFE_S`, or is held back by something else than the pool, does not count; either keeps
its age and is back in its place as soon as it counts again.

**Passing cannot delay.** A gang may pass those ahead of it only on nodes that none of them can use:
no replica of theirs would go there, by its demands or by its size, even if the node were empty,
ready and open. What the passing gang takes is then never part of any place that those ahead could
get, however long it stays; so the time at which they fit is the same with it as without it. A
waiter that the whole cluster could not hold, even empty, waits for another cluster and blocks
nobody. Everything else waits, also where it would fit beside the one ahead: how long things stay
is not known, so "it will be gone by then" cannot be promised. The price is idle room in front of a
big gang; the gain is that it cannot starve: nobody who came later ever gets a node that it could
use. (A stream of gangs of a higher priority can hold it up for ever: that is what priority means.)
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ffdl_airflow.engines.kubernetes.needs import Plain, name_of
from ffdl_airflow.engines.kubernetes.node_match import Group
from ffdl_airflow.engines.kubernetes.packing import Empty, emptied, hopeless, takers

WAITER_LIFE_S = 60.0
"""A waiter that was not renewed for this long does not count. Chosen."""
_NAMED = 3
"""So many of those ahead are named in a sentence; more are counted, by steps: each sentence is an
event of its job, and of a long line the head goes all the time."""
_STEPS = [step * 10**power for power in range(6) for step in (1, 2, 5)]


@dataclass(frozen=True, kw_only=True)
class Waiter:
    """A gang that wants a place. ``priority``: the value of its class. Times are UTC.

    ``demand``: its replicas; a group whose ``where`` is empty may use every node. ``shape``: the
    same for equal demands, where that is known without a look at them. ``held_back``: what else it
    waits for (a quota of its own, say), None where it waits for the pool alone.
    """

    placement: str
    priority: int
    asked_at: datetime
    renewed_at: datetime
    demand: Sequence[Group]
    shape: str = ""
    held_back: str | None = None

    @property
    def rank(self) -> tuple[int, datetime, str]:
        """Where it stands: the smallest is the head."""
        return -self.priority, self.asked_at, self.placement

    def counts(self, now: datetime) -> bool:
        """Whether others have to wait for it."""
        fresh = now - self.renewed_at <= timedelta(seconds=WAITER_LIFE_S)
        return fresh and self.held_back is None


@dataclass(frozen=True, kw_only=True)
class Turn:
    """It may place now. ``only``: names of the nodes that are left to it; None is all of them.

    With ``only`` the gang's pods must be bound to these nodes (required node affinity), else the
    scheduler may put them where they delay those ahead.
    """

    only: frozenset[str] | None = None


@dataclass(frozen=True)
class Behind:
    """It has to wait for those ahead, the first of them first. ``reason`` is one sentence."""

    reason: str
    ahead: Sequence[str]


def turn(
    mine: Waiter, others: Iterable[Waiter], nodes: Sequence[Plain] | None, *, now: datetime
) -> Turn | Behind:
    """Whether ``mine`` may place at ``now``; it counts itself, however old its renewal is.

    ``nodes``: the pool as plain dicts. None, where nodes may not be read: then nobody passes.
    """
    ahead = sorted((w for w in others if w.rank < mine.rank and w.counts(now)), key=_rank)
    if nodes is None:
        return _behind(ahead) if ahead else Turn()
    pool = emptied(nodes)
    claims = {_shape(waiter): waiter.demand for waiter in ahead}  # most gangs of a pool are alike
    keeps = {shape: _usable(d, pool) for shape, d in claims.items() if not hopeless(d, pool)}
    kept, wanted = set[str]().union(*keeps.values()), _usable(mine.demand, pool)
    if not kept & wanted:
        return Turn()
    left = wanted - kept
    return Turn(only=frozenset(left)) if left else _behind([w for w in ahead if _shape(w) in keeps])


def _rank(waiter: Waiter) -> tuple[int, datetime, str]:
    return waiter.rank


def _shape(waiter: Waiter) -> str:
    return waiter.shape or json.dumps([group.document() for group in waiter.demand], sort_keys=True)


def _usable(demand: Sequence[Group], pool: Empty) -> set[str]:
    """Names of the nodes that could ever hold one of the replicas."""
    could = [takers(group, pool) for group in demand]
    return {name_of(pool[place][0]) for counts in could for place, n in enumerate(counts) if n > 0}


def _behind(ahead: Sequence[Waiter]) -> Behind:
    names = [waiter.placement for waiter in ahead]
    who = ", ".join(names)
    if len(names) > _NAMED:
        who = f"more than {max(n for n in (_NAMED, *_STEPS) if n < len(names))} gangs"
    return Behind(f"waits for its turn: {who} came first or have a higher priority", names)
