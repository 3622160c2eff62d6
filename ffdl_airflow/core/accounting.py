"""What a job has cost: slot-seconds by kind, folded from its log. The parts add up, always.

For: every moment of every placement, times its slots, belongs to exactly one kind. Moments are cut
at event times (the source's clock); where clocks disagree a cut never goes back. Not for: prices.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from ffdl_airflow.core.events import Event, Kind
from ffdl_airflow.core.text_enum import TextEnum


class Use(TextEnum):
    """What a slot was used for."""

    HELD = "held"  # placed, no attempt runs
    STARTING = "starting"  # from go to the last rank's start
    TRAINING = "training"  # running, and kept
    LOST = "lost"  # running, but after the last checkpoint of an attempt that failed
    STOPPING = "stopping"  # from the decision to end until all is gone


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Slot-seconds of a job. ``by_use`` has every kind; they sum to ``total_s`` exactly."""

    by_use: Mapping[Use, float]
    total_s: float
    wall_s: float


@dataclass
class _Meter:
    slots: int = 0
    use: Use | None = None
    since: datetime | None = None
    started: datetime | None = None

    def __post_init__(self) -> None:
        self.slices: list[tuple[Use, timedelta, int]] = []
        self.wall = timedelta()

    def switch(self, use: Use | None, at: datetime) -> None:
        """From ``at`` on the slots are used for ``use``; None: they are free."""
        at = at if self.since is None else max(at, self.since)
        if self.use is not None and self.since is not None:
            self.slices.append((self.use, at - self.since, self.slots))
            self.wall += at - self.since
        self.use, self.since = use, at if use is not None else None

    def lose(self, sealed: datetime | None, ended: datetime) -> None:
        """What ran since ``sealed`` (None: since the attempt's start) is lost."""
        if self.use is not Use.TRAINING or self.since is None:
            return
        if sealed is not None and sealed > self.since:
            self.switch(Use.LOST, min(sealed, max(ended, self.since)))
        else:
            self.use = Use.LOST


def cost(events: Iterable[Event], *, now: datetime, slots: int) -> Cost:
    """Slot-seconds up to ``now``. ``slots`` is the gang's size where the log does not say it."""
    meter = _Meter()
    sealed: datetime | None = None
    current = 0
    for event in events:
        if event.kind is Kind.RESERVE_INTENDED:
            current = int(event.body["placement"])
        elif event.placement is not None and event.placement != current:
            continue
        elif event.kind is Kind.PLACED:
            meter.switch(Use.HELD, event.at)
            meter.slots = len(event.body.get("slots", ())) or slots
        elif meter.use is not None:
            sealed = _count(meter, event, sealed)
    if meter.use is not None:
        meter.switch(None, now)
    return _total(meter)


def _count(meter: _Meter, event: Event, sealed: datetime | None) -> datetime | None:
    match event.kind:
        case Kind.GO_INTENDED:
            meter.switch(Use.STARTING, event.at)
            return None
        case Kind.RUNNING:
            if meter.use is Use.STARTING:
                meter.switch(Use.TRAINING, event.at)
        case Kind.CHECKPOINT_SEALED:
            return event.at
        case Kind.ATTEMPT_ENDED:
            if not event.body.get("ok"):
                meter.lose(sealed, event.at)
            meter.switch(Use.STOPPING if event.body.get("ok") else Use.HELD, event.at)
        case Kind.END_INTENDED:
            if meter.use is not Use.TRAINING:  # a save-stop goes on training until it is saved
                meter.switch(Use.STOPPING, event.at)
        case Kind.RELEASED:
            meter.switch(None, event.at)
        case _:
            pass
    return sealed


def _total(meter: _Meter) -> Cost:
    parts = dict.fromkeys(Use, timedelta())
    total = timedelta()
    for use, length, slots in meter.slices:
        parts[use] += length * slots
        total += length * slots
    return Cost(
        by_use={use: part.total_seconds() for use, part in parts.items()},
        total_s=total.total_seconds(),
        wall_s=meter.wall.total_seconds(),
    )
