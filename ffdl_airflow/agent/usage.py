"""How much a gang uses of what it holds, over a window of training time. Rows in, a document out.

A *unit* is one GPU of a replica, or the CPU of one rank where the job has no GPUs. A sample counts
for the time since the one before. What nobody could read is *unknown*, never idle. Time in which
the gang starts, or any of its ranks loads, saves or evaluates, is left out: the others wait for
that rank. Not for: what follows from an idle unit; the controller's ladder decides that.
"""

from collections import Counter, deque
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Set, Tuple

from . import protocol
from .detect import RankView
from .plan import Plan, Watch

LISTED = 16
"""Idle units that the document names; the others are counted. Chosen, so that it stays small."""
GAP_BEATS = 3.0
"""Samples further apart than so many heartbeats leave a gap that nobody has measured. Chosen."""
MOST_SAMPLES = 120
"""Samples of a window; a long window is sampled more rarely. Chosen: 0.5 s of the usual window,
which a heartbeat is above anyhow."""
ENOUGH = 0.5
"""Share of the window that has to be known for a judgement (cases.md D13: half of the samples)."""

Key = Tuple[str, Optional[int], str]


class Sample(NamedTuple):
    """``percent`` of what the unit could do, over ``seconds`` that end at ``at``."""

    at: str
    seconds: float
    percent: Optional[float]


class Window:
    """The newest samples of one unit, as many as the window needs."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._samples: Deque[Sample] = deque()
        self._total_s = 0.0

    @property
    def since(self) -> str:
        """Time of the oldest sample that counts."""
        return self._samples[0].at

    def add(self, sample: Sample) -> None:
        """Take one in, let go what the window does not need any more."""
        self._samples.append(sample)
        self._total_s += sample.seconds
        while self._total_s - self._samples[0].seconds >= self._watch.window_s:
            self._total_s -= self._samples.popleft().seconds

    def percent(self) -> Optional[float]:
        """The aggregate; None while the window is not full or too little of it is known."""
        known = [(s.seconds, s.percent) for s in self._samples if s.percent is not None]
        known_s = sum(seconds for seconds, _ in known)
        if self._total_s < self._watch.window_s or known_s < ENOUGH * self._watch.window_s:
            return None
        if self._watch.aggregate == "min":
            return min(percent for _, percent in known)
        if self._watch.aggregate == "max":
            return max(percent for _, percent in known)
        return sum(seconds * percent for seconds, percent in known) / known_s


class Usage:
    """The gang's use of what it holds in one attempt; ``see`` is called each heartbeat."""

    def __init__(self, plan: Plan) -> None:
        self._watch = plan.watch
        self._first_step_s = plan.limits.first_step_s
        self._every_s = plan.watch.window_s / MOST_SAMPLES if plan.watch else 0.0
        self._gap_s = GAP_BEATS * max(plan.limits.heartbeat_s, self._every_s)
        self.begin()

    def begin(self) -> None:
        """A new attempt: nothing is known of it."""
        self._windows: Dict[Key, Window] = {}
        self._seen_at: Optional[float] = None
        self._worked = False
        self._exempt: Optional[str] = "starting"
        self._percents: Dict[Key, Optional[float]] = {}
        self._idle_at: Optional[str] = None
        self._all_idle_at: Optional[str] = None

    def see(self, views: List[RankView], *, now: float, known: bool, running_s: float) -> None:
        """Take in the rows of this moment. ``known``: somebody reports progress."""
        if self._seen_at is not None and now - self._seen_at < self._every_s:
            return
        running = [view for view in views if view.row["state"] == "running"]
        before, self._seen_at = self._seen_at, now
        stepped = any(view.row["step"] is not None for view in running)
        if before is None or self._watch is None:
            return
        busy_else = _other_work(running) or ("starting" if known and not stepped else None)
        if busy_else is None:
            self._sample(self._watch, running, seconds=now - before)
            self._judge()
        started = stepped or self._worked or running_s > self._first_step_s
        self._exempt = busy_else or (None if started else "starting")
        if self._exempt == "starting":
            self._idle_at = self._all_idle_at = None

    def document(self) -> Optional[Dict[str, Any]]:
        """For the status document; None where nothing is to be watched."""
        watch = self._watch
        if watch is None:
            return None
        known = [percent for percent in self._percents.values() if percent is not None]
        idle = self._idle()
        return {
            "resource": watch.resource, "window_s": watch.window_s, "aggregate": watch.aggregate,
            "exempt": self._exempt, "percent": _round(sum(known) / len(known)) if known else None,
            "busy": len(known) - len(idle), "idle": len(idle),
            "unknown": len(self._percents) - len(known),
            "idle_at": self._idle_at, "all_idle_at": self._all_idle_at,
            "units": [self._unit(key) for key in idle[:LISTED]],
        }  # fmt: skip

    def _sample(self, watch: Watch, running: List[RankView], *, seconds: float) -> None:
        """A gap between two looks is time that nobody has measured."""
        at = protocol.now_iso()
        found = dict(_units(watch, running, stale_s=self._gap_s))
        self._windows = {key: self._windows.get(key) or Window(watch) for key in found}
        for key, percent in found.items():
            if seconds > self._gap_s:
                self._windows[key].add(Sample(at, seconds - self._gap_s, None))
            self._windows[key].add(Sample(at, min(seconds, self._gap_s), percent))

    def _judge(self) -> None:
        self._percents = {key: window.percent() for key, window in self._windows.items()}
        idle = self._idle()
        at = protocol.now_iso()
        self._idle_at = (self._idle_at or at) if idle else None
        every = bool(idle) and len(idle) == len(self._percents)
        self._all_idle_at = (self._all_idle_at or at) if every else None
        self._worked = self._worked or any(
            percent is not None and percent >= self._limit(key)
            for key, percent in self._percents.items()
        )

    def _idle(self) -> List[Key]:
        return [key for key, percent in self._percents.items()
                if percent is not None and percent < self._limit(key)]  # fmt: skip

    def _limit(self, key: Key) -> float:
        return self._watch.replicas[key[0]].min_percent if self._watch else 0.0

    def _unit(self, key: Key) -> Dict[str, Any]:
        replica, rank, name = key
        return {"replica": replica, "rank": rank, "unit": name, "since": self._windows[key].since,
                "percent": _round(self._percents[key]), "threshold": self._limit(key)}  # fmt: skip


def _other_work(running: List[RankView]) -> Optional[str]:
    """What else than training some rank does, or None."""
    for view in running:
        if view.row["doing"] not in (None, protocol.TRAINING):
            return str(view.row["doing"])
    return None


def _units(
    watch: Watch, running: List[RankView], *, stale_s: float
) -> List[Tuple[Key, Optional[float]]]:
    """Every unit that is watched and its newest percentage; the ranks of a replica share it."""
    found: Dict[Key, Optional[float]] = {}
    ranks = Counter(view.replica for view in running)
    seen: Set[str] = set()
    for view in running:
        replica, row = watch.replicas.get(view.replica), view.row
        fresh = view.age_s <= stale_s
        if replica is None:
            continue
        if watch.resource == "cpu":
            percent = row["cpu_percent"]
            cores = replica.cores / ranks[view.replica]
            share = None if percent is None else percent / cores
            found[view.replica, row["rank"], "cpu"] = share if fresh else None
        elif view.replica not in seen:
            seen.add(view.replica)
            for name, percent in row["gpus"].items():
                found[view.replica, row["rank"], "gpu %s" % name] = percent if fresh else None
    return list(found.items())


def _round(percent: Optional[float]) -> Optional[float]:
    return None if percent is None else round(percent, 1)
