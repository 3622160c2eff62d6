"""The utilization ladder: what a gang uses of what it holds → observe, warn, stop. Pure.

For: which replicas are measured and against what, and what follows from the figures of the gang's
status document. Progress beats use (a hang is the agent's word), missing figures are unknown and
never idle, and what starts, loads, saves or evaluates is left alone. Not for: taking samples and
averaging them; the agents do that (``agent/usage.py``), so that no driver has to be there for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ffdl_airflow.core.events import parse_iso
from ffdl_airflow.core.job import JobSpec, Watchdog
from ffdl_airflow.core.rendezvous import NOT_RANKS, mpi_head
from ffdl_airflow.core.text_enum import TextEnum

DAY = timedelta(days=1)
WARN = "warn"
"""``level`` in the body of a WatchdogWarned that comes from this ladder."""
_NAMED = 4
"""Idle units that a sentence names. Chosen."""


class Use(TextEnum):
    """What the figures say of a gang."""

    OFF = "off"  # nothing is measured
    EXEMPT = "exempt"  # it starts, or some rank loads, saves or evaluates
    UNKNOWN = "unknown"  # windows are not full, or most units cannot be read
    BUSY = "busy"
    IDLE = "idle"  # at least one unit is below its threshold


def watched(spec: JobSpec) -> dict[str, Any]:
    """What agents need to know to measure: resource, window, aggregate, and the replicas.

    In a job with GPUs those replicas that have some, against each of their GPUs; with MPI the one
    that runs mpirun, because only it has processes, against each GPU that it sees, by the lowest
    threshold of the roles that have some. In a job without GPUs those that train, against the cores
    that they ask for; parameter servers, evaluators and launchers are idle by nature.
    """
    gpu = spec.total_gpus > 0
    replicas = {}
    for role in spec.all_roles:
        wants = spec.resources_of(role)
        if wants.gpu if gpu else role.name not in NOT_RANKS:
            for index in range(role.replicas):
                found = {"min_percent": wants.minGpuUtilization, "cores": wants.cpu}
                replicas[f"{role.name}-{index}"] = found
    head = mpi_head(spec)
    if gpu and head is not None:
        replicas = {head: min(replicas.values(), key=lambda found: found["min_percent"])}
    watchdog = spec.watchdog
    return {"resource": "gpu" if gpu else "cpu", "window_s": watchdog.window,
            "aggregate": watchdog.aggregate, "replicas": replicas}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The figures of one status document.

    ``percent``: mean over the units whose use is known. ``idle_at``: since when at least one unit
    has been idle without a break, ``all_idle_at``: since when all of them have.
    """

    use: Use
    resource: str = "gpu"
    window_s: float = 0.0
    aggregate: str = "mean"
    exempt: str | None = None
    percent: float | None = None
    idle: int = 0
    total: int = 0
    idle_at: datetime | None = None
    all_idle_at: datetime | None = None
    units: tuple[Mapping[str, Any], ...] = ()


def reading(status: Mapping[str, Any] | None) -> Reading:
    """What a status document says of the gang's use."""
    found = (status or {}).get("utilization")
    if not found:
        return Reading(use=Use.OFF)
    busy, idle, unknown = int(found["busy"]), int(found["idle"]), int(found["unknown"])
    use = Use.IDLE if idle else Use.BUSY if busy > unknown else Use.UNKNOWN
    return Reading(
        use=Use.EXEMPT if found["exempt"] else use, resource=found["resource"],
        window_s=float(found["window_s"]), aggregate=found["aggregate"], exempt=found["exempt"],
        percent=found["percent"], idle=idle, total=busy + idle + unknown,
        idle_at=_moment(found["idle_at"]), all_idle_at=_moment(found["all_idle_at"]),
        units=tuple(found["units"]),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Past:
    """What the ladder has done: the warning that stands, and the times of those of the last day."""

    warned_at: datetime | None = None
    warnings: tuple[datetime, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Warn:
    """Say that the gang is idle; ``at`` is when that was so."""

    at: datetime


@dataclass(frozen=True)
class Recovered:
    """The warning that stands is withdrawn."""


@dataclass(frozen=True)
class Stop:
    """Save, stop, and fail the job."""


def rung(found: Reading, policy: Watchdog, past: Past, *, now: datetime
         ) -> Warn | Recovered | Stop | None:  # fmt: skip
    """The next action, None for none.

    A warning is given once for each time that the use falls, at least ``cooldown`` after the one
    before and at most ``maxActionsPerDay`` a day. ``action: stop`` stops the job when all of it
    has been idle for another ``cooldown`` since the warning. A downgrade is not there yet: it ends
    at the warning.
    """
    if policy.action == "observe":
        return None
    if past.warned_at is not None:
        return _standing(found, policy, past.warned_at, now=now)
    if found.use is not Use.IDLE or found.idle_at is None:
        return None
    recent = [at for at in past.warnings if now - at < DAY]
    if len(recent) >= policy.maxActionsPerDay:
        return None
    cooldown = timedelta(seconds=policy.cooldown)
    earliest = max([at + cooldown for at in recent] or [found.idle_at])
    return Warn(at=max(found.idle_at, earliest)) if earliest <= now else None


def _standing(found: Reading, policy: Watchdog, warned_at: datetime, *, now: datetime
              ) -> Recovered | Stop | None:  # fmt: skip
    if found.use is Use.BUSY:
        return Recovered()
    since = found.all_idle_at
    if policy.action != "stop" or found.use is not Use.IDLE or since is None:
        return None
    due = max(warned_at, since) + timedelta(seconds=policy.cooldown)
    return Stop() if now >= due else None


def warning(found: Reading, *, action: str) -> dict[str, Any]:
    """The body of WatchdogWarned: reason, evidence, and what to do."""
    return {
        "level": WARN, "reason": told(found), "action": action, "resource": found.resource,
        "window_s": found.window_s, "aggregate": found.aggregate, "percent": found.percent,
        "idle": found.idle, "of": found.total, "units": [dict(unit) for unit in found.units],
        "since": min((str(unit["since"]) for unit in found.units), default=None),
        "next_step": NEXT_STEP,
    }  # fmt: skip


NEXT_STEP = (
    "look what the ranks wait for (`ffdl logs`, input data, a lock); if so little is right, lower "
    "spec.resources.minGpuUtilization, or say `with ffdl.doing(...)` around what is no training"
)


def told(found: Reading) -> str:
    """What is idle, in one sentence."""
    named = [
        f"{unit['unit']} of {unit['replica']} {unit['percent']:g} %"
        for unit in found.units[:_NAMED]
    ]
    more = found.idle - len(named)
    threshold = f"{found.units[0]['threshold']:g} %" if found.units else "its threshold"
    what = "GPU" if found.resource == "gpu" else "CPU"
    return (
        f"{what} use below {threshold} over {found.window_s:g} s ({found.aggregate}): "
        + ", ".join(named) + (f" and {more} more" if more > 0 else "")
    )  # fmt: skip


def text(found: Reading) -> str:
    """The figures in one line, for logs and pages."""
    if found.use is Use.OFF:
        return "utilization is not measured"
    if found.use is Use.UNKNOWN and found.resource == "gpu" and not found.total:
        return "GPU utilization unknown: no GPU can be read (extra `gpu`, the host's driver)"
    what = "GPU" if found.resource == "gpu" else "CPU"
    window = f"({found.aggregate} of {found.window_s:g} s)"
    if found.percent is None and found.use is Use.UNKNOWN:
        return f"{what} utilization is not known yet {window}"
    percent = "unknown" if found.percent is None else f"{found.percent:g} %"
    line = f"{what} utilization {percent} {window}, {found.use}"
    if found.exempt:
        return f"{line}: {found.exempt}"
    return f"{line}: {found.idle} of {found.total}" if found.idle else line


def _moment(text: str | None) -> datetime | None:
    return None if text is None else parse_iso(text)
