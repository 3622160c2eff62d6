"""Telling a hang from slow work: a pure judgement on rows and times.

A rank that reports no progress is never called hung, and neither is one that loads, saves or
evaluates. Progress beats use: a busy GPU without a step is a hang.
"""

from typing import Any, Dict, List, NamedTuple, Optional

from . import protocol
from .plan import Limits

Row = Dict[str, Any]
SPINS_PERCENT = 50.0
"""Use from which a rank without steps counts as spinning (cases.md D08: 95 to 100). Chosen."""


class RankView(NamedTuple):
    """A rank's newest row, which is ``age_s`` old."""

    replica: str
    row: Row
    age_s: float


class Hang(NamedTuple):
    """The rank that is furthest behind, and the sentence for people."""

    replica: str
    rank: Optional[int]
    phase: str
    text: str


def progress_known(views: List[RankView]) -> bool:
    """Whether anybody reports progress, or the plan says how to read it from logs."""
    rows = [view.row for view in views]
    return any(row["step"] is not None or row["doing"] or row["follows_log"] for row in rows)


def find_hang(
    views: List[RankView], *, running_s: float, known: bool, limits: Limits
) -> Optional[Hang]:
    """The hang that these rows show, or None. ``running_s`` counts from Running."""
    running = [view for view in views if view.row["state"] == "running"]
    if not known or not running:
        return None
    stepped = [view for view in running if view.row["step"] is not None]
    if not stepped:
        return _no_first_step(running, running_s, limits)
    if any(view.row["doing"] not in (None, protocol.TRAINING) for view in running):
        return None
    quiet_s = min((view.row["since_step_s"] or 0.0) + view.age_s for view in stepped)
    limit_s = _limit_s(stepped, limits)
    if quiet_s <= limit_s:
        return None
    last = min(stepped, key=lambda view: (view.row["step"], view.row["step_at"] or ""))
    text = "no rank has done a step for %.1f s (limit %.1f s); %s is at step %d" % (
        quiet_s, limit_s, protocol.who(last.replica, last.row["rank"]), last.row["step"],
    )  # fmt: skip
    return Hang(last.replica, last.row["rank"], "training", text + _use(stepped))


def _use(views: List[RankView]) -> str:
    """What the ranks use meanwhile. One that idles while all others spin is the suspect."""
    for key, name in (("gpu_percent", "GPU"), ("cpu_percent", "CPU")):
        used = [(view.row[key], view) for view in views if view.row.get(key) is not None]
        if not used:
            continue
        percents = [percent for percent, _ in used]
        text = "; their %s use is %.0f to %.0f %%" % (name, min(percents), max(percents))
        idle = [view for percent, view in used if percent < SPINS_PERCENT]
        if len(idle) == 1 and len(used) > 1:
            text += ", the low one is %s" % protocol.who(idle[0].replica, idle[0].row["rank"])
        return text
    return ""


def _limit_s(stepped: List[RankView], limits: Limits) -> float:
    rows = [view.row for view in stepped]
    times: List[float] = [row["step_time_s"] for row in rows if row["step_time_s"] is not None]
    if not times:  # too few steps to know their time: the first may be minutes of compiling
        return max(limits.hang_floor_s, limits.first_step_s)
    return max(limits.hang_floor_s, limits.hang_factor * max(times))


def _no_first_step(running: List[RankView], running_s: float, limits: Limits) -> Optional[Hang]:
    if running_s <= limits.first_step_s:
        return None
    if any(view.row["doing"] in (protocol.SAVING, protocol.EVALUATING) for view in running):
        return None
    missing = [view for view in running if not view.row["connected"]]
    last = (missing or running)[0]
    connected = len(running) - len(missing)
    text = "no first step %.1f s after the start; %d of %d ranks are connected" % (
        running_s, connected, len(running),
    )  # fmt: skip
    phase = "rendezvous" if missing and connected else "first-step"
    return Hang(last.replica, last.row["rank"], phase, text)
