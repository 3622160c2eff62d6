"""What a job has cost: slot-seconds by kind, folded from its log. The parts add up, always.

For: every moment of every placement, times its slots, belongs to exactly one kind. Moments are cut
at event times (the source's clock); where clocks disagree a cut never goes back. Not for: prices.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, kw_only=True)
class _Slice:
    use: Use
    begin: datetime
    end: datetime
    slots: int


class _Meter:
    """Cuts the time of the placements into slices of one use each, in order, without gaps."""

    def __init__(self) -> None:
        self.slots = 0
        self.use: Use | None = None
        self.slices: list[_Slice] = []
        self._since: datetime | None = None
        self._seals: dict[int, datetime] = {}

    def switch(self, use: Use | None, at: datetime) -> None:
        """From ``at`` on the slots are used for ``use``; None: they are free."""
        at = at if self._since is None else max(at, self._since)
        if self.use is not None and self._since is not None:
            self.slices.append(_Slice(use=self.use, begin=self._since, end=at, slots=self.slots))
        self.use, self._since = use, at if use is not None else None

    def seal(self, step: int, at: datetime) -> None:
        """What was trained up to ``at`` is kept in the checkpoint of ``step``."""
        self._seals[step] = at

    def fall_back(self, step: int | None) -> None:
        """The job goes on from the checkpoint of ``step`` (None: from nothing)."""
        self._seals = {s: at for s, at in self._seals.items() if step is not None and s <= step}
        self.lose()

    def lose(self) -> None:
        """What was trained after the newest checkpoint is lost."""
        kept = max(self._seals.values(), default=None)
        self.slices = [part for found in self.slices for part in _split(found, kept)]


def _split(found: _Slice, kept: datetime | None) -> list[_Slice]:
    """A slice of training, with what came after ``kept`` as lost."""
    if found.use is not Use.TRAINING or (kept is not None and found.end <= kept):
        return [found]
    if kept is None or kept <= found.begin:
        return [replace(found, use=Use.LOST)]
    return [replace(found, end=kept), replace(found, use=Use.LOST, begin=kept)]


def cost(events: Iterable[Event], *, now: datetime, slots: int) -> Cost:
    """Slot-seconds up to ``now``. ``slots`` is the gang's size where the log does not say it."""
    meter = _Meter()
    current = 0
    for event in events:
        if event.kind is Kind.RESERVE_INTENDED:
            current = int(event.body["placement"])
        elif event.kind is Kind.CHECKPOINT_REFUSED:
            _refused(meter, event)
        elif event.placement is not None and event.placement != current:
            continue
        elif event.kind is Kind.PLACED:
            meter.switch(Use.HELD, event.at)
            meter.slots = len(event.body.get("slots", ())) or slots
        elif meter.use is not None:
            _count(meter, event)
    if meter.use is not None:
        meter.switch(None, now)
    return _total(meter.slices)


def _refused(meter: _Meter, event: Event) -> None:
    """A driver's refusal names the checkpoint that is used instead; an agent's names none."""
    if "chosen" in event.body:
        chosen = event.body["chosen"]
        meter.fall_back(None if chosen is None else int(chosen["step"]))


def _count(meter: _Meter, event: Event) -> None:
    match event.kind:
        case Kind.GO_INTENDED:
            meter.switch(Use.STARTING, event.at)
        case Kind.RUNNING:
            if meter.use is Use.STARTING:
                meter.switch(Use.TRAINING, event.at)
        case Kind.CHECKPOINT_SEALED:
            meter.seal(int(event.body["step"]), event.at)
        case Kind.ATTEMPT_ENDED:
            meter.switch(Use.STOPPING if event.body.get("ok") else Use.HELD, event.at)
            if not event.body.get("ok"):
                meter.lose()
        case Kind.END_INTENDED:
            if meter.use is not Use.TRAINING:  # a save-stop goes on training until it is saved
                meter.switch(Use.STOPPING, event.at)
        case Kind.RELEASED:
            meter.switch(None, event.at)
        case _:
            pass


def _total(slices: Iterable[_Slice]) -> Cost:
    parts = dict.fromkeys(Use, timedelta())
    total = wall = timedelta()
    for found in slices:
        length = found.end - found.begin
        parts[found.use] += length * found.slots
        total += length * found.slots
        wall += length
    return Cost(
        by_use={use: part.total_seconds() for use, part in parts.items()},
        total_s=total.total_seconds(),
        wall_s=wall.total_seconds(),
    )


def rounded(parts: Mapping[str, float], digits: int) -> dict[str, float]:
    """The parts, rounded so that what is shown of them sums to what is shown of the total.

    By the largest remainders: each part is off by less than one in its last digit.
    """
    unit = 10**digits
    exact = {name: value * unit for name, value in parts.items()}
    whole = {name: math.floor(value) for name, value in exact.items()}
    missing = round(sum(exact.values())) - sum(whole.values())
    first = sorted(parts, key=lambda name: whole[name] - exact[name])
    for name in first[:missing]:
        whole[name] += 1
    return {name: value / unit for name, value in whole.items()}
