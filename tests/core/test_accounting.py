"""Cost: slot-seconds by kind. The parts add up, whatever the log looks like."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow.core.accounting import Cost, Use, cost, rounded
from ffdl_airflow.core.events import Event, Kind, NewEvent, recorded
from ffdl_airflow.testing.builders import T0, LogBuilder


def log_of(*entries: tuple[Any, ...]) -> list[Event]:
    """Entries (seconds after T0, kind, body)."""
    events = []
    for seq, (at, kind, *rest) in enumerate(entries, start=1):
        moment = T0 + timedelta(seconds=at)
        new = NewEvent(kind=kind, at=moment, body=rest[0] if rest else {})
        events.append(recorded("bert-base-0123456789", seq, new, recorded_at=moment))
    return events


def spent(events: list[Event], now: float, slots: int = 2) -> Cost:
    return cost(events, now=T0 + timedelta(seconds=now), slots=slots)


def parts(found: Cost) -> dict[str, float]:
    return {use.value: seconds for use, seconds in found.by_use.items() if seconds}


FIRST = [
    (0, Kind.RESERVE_INTENDED, {"placement": 1}),
    (10, Kind.PLACED, {"placement": 1, "slots": [0, 3]}),
    (12, Kind.RESERVED, {"placement": 1}),
    (15, Kind.GO_INTENDED, {"placement": 1, "attempt": 1}),
    (18, Kind.RUNNING, {"placement": 1}),
]


def test_an_undisturbed_life() -> None:
    log = log_of(
        *FIRST,
        (40, Kind.CHECKPOINT_SEALED, {"placement": 1, "step": 100}),
        (100, Kind.ATTEMPT_ENDED, {"placement": 1, "ok": True}),
        (101, Kind.RELEASED, {"placement": 1}),
    )
    found = spent(log, now=9000)
    assert parts(found) == {"held": 10, "starting": 6, "training": 164, "stopping": 2}
    assert (found.total_s, found.wall_s) == (182, 91)
    assert set(found.by_use) == set(Use)


def test_what_came_after_the_last_checkpoint_of_a_failed_attempt_is_lost() -> None:
    """By hand, 2 slots: held 10-15 and 62-70, starting 15-18 and 70-73, training 18-40 and 73-100,
    lost 40-62, stopping 100-101."""
    log = log_of(
        *FIRST,
        (30, Kind.CHECKPOINT_SEALED, {"placement": 1, "step": 100}),
        (40, Kind.CHECKPOINT_SEALED, {"placement": 1, "step": 200}),
        (62, Kind.ATTEMPT_ENDED, {"placement": 1, "ok": False}),
        (70, Kind.GO_INTENDED, {"placement": 1, "attempt": 2}),
        (73, Kind.RUNNING, {"placement": 1}),
        (100, Kind.ATTEMPT_ENDED, {"placement": 1, "ok": True}),
        (101, Kind.RELEASED, {"placement": 1}),
    )
    assert parts(spent(log, now=200)) == {
        "held": 2 * (5 + 8), "starting": 2 * 6, "training": 2 * (22 + 27), "lost": 2 * 22,
        "stopping": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sealed", "training", "lost"),
    [(None, 0, 44), (25, 7, 37), (62, 44, 0), (90, 44, 0), (5, 0, 44)],
)
def test_where_the_loss_begins(sealed: float | None, training: float, lost: float) -> None:
    seals = (
        [] if sealed is None else [(sealed, Kind.CHECKPOINT_SEALED, {"placement": 1, "step": 1})]
    )
    log = log_of(*FIRST, *seals, (62, Kind.ATTEMPT_ENDED, {"placement": 1, "ok": False}),
                 (62, Kind.RELEASED, {"placement": 1}))  # fmt: skip
    found = spent(log, now=62, slots=1).by_use
    assert (found[Use.TRAINING], found[Use.LOST]) == (2 * training, 2 * lost)


def test_an_attempt_that_never_ran_has_nothing_to_lose() -> None:
    log = log_of(*FIRST[:4], (18, Kind.ATTEMPT_ENDED, {"placement": 1, "ok": False}))
    assert parts(spent(log, now=20)) == {"held": 2 * 7, "starting": 2 * 3}


def test_running_that_nobody_intended_is_held() -> None:
    log = log_of(*FIRST[:3], (18, Kind.RUNNING, {"placement": 1}))
    assert parts(spent(log, now=20)) == {"held": 20}


def test_what_goes_on_counts_until_now() -> None:
    assert parts(spent(log_of(*FIRST), now=20)) == {"held": 10, "starting": 6, "training": 4}
    assert spent(log_of(*FIRST[:1]), now=99).total_s == 0


def test_a_save_before_a_stop_is_training() -> None:
    log = log_of(*FIRST, (50, Kind.END_INTENDED, {"placement": 1}),
                 (60, Kind.ATTEMPT_ENDED, {"placement": 1, "ok": True}),
                 (61, Kind.RELEASED, {"placement": 1}))  # fmt: skip
    assert parts(spent(log, now=99)) == {"held": 10, "starting": 6, "training": 84, "stopping": 2}


def test_a_stop_of_what_only_holds() -> None:
    log = log_of(*FIRST[:3], (20, Kind.END_INTENDED, {"placement": 1}),
                 (23, Kind.RELEASED, {"placement": 1}))  # fmt: skip
    assert parts(spent(log, now=99)) == {"held": 20, "stopping": 6}


def test_slots_of_the_gang_where_the_log_does_not_say_them() -> None:
    log = log_of((0, Kind.RESERVE_INTENDED, {"placement": 1}), (0, Kind.PLACED, {"placement": 1}))
    assert spent(log, now=10, slots=3).total_s == 30


def test_another_placement_does_not_count_twice() -> None:
    log = log_of(
        *FIRST,
        (20, Kind.RELEASED, {"placement": 1}),
        (30, Kind.RESERVE_INTENDED, {"placement": 2}),
        (31, Kind.PLACED, {"placement": 2, "slots": [0, 1, 2]}),
        (32, Kind.RELEASED, {"placement": 1}),
        (35, Kind.PLACED, {"placement": 1, "slots": [7]}),
        (41, Kind.RELEASED, {"placement": 2}),
    )
    assert parts(spent(log, now=99)) == {"held": 10 + 30, "starting": 6, "training": 4}


def test_a_clock_that_goes_back_costs_nothing() -> None:
    log = log_of(*FIRST, (5, Kind.ATTEMPT_ENDED, {"placement": 1, "ok": True}),
                 (25, Kind.RELEASED, {"placement": 1}))  # fmt: skip
    assert parts(spent(log, now=99)) == {"held": 10, "starting": 6, "stopping": 14}


BODIES = {
    Kind.PLACED: st.fixed_dictionaries({"slots": st.lists(st.integers(0, 9), max_size=5)}),
    Kind.ATTEMPT_ENDED: st.fixed_dictionaries({"ok": st.booleans()}),
    Kind.GO_INTENDED: st.just({"attempt": 1}),
    Kind.CHECKPOINT_SEALED: st.fixed_dictionaries({"step": st.integers(1, 5)}),
    Kind.CHECKPOINT_REFUSED: st.fixed_dictionaries(
        {"chosen": st.none() | st.fixed_dictionaries({"step": st.integers(1, 5)})}
    ),
}
USED = [
    Kind.RESERVE_INTENDED, Kind.PLACED, Kind.RESERVED, Kind.GO_INTENDED, Kind.RUNNING,
    Kind.CHECKPOINT_SEALED, Kind.ATTEMPT_ENDED, Kind.END_INTENDED, Kind.RELEASED, Kind.HOLD_EXPIRED,
    Kind.STOP_WANTED, Kind.CHECKPOINT_REFUSED,
    Kind.VERDICT,
]  # fmt: skip
entry = st.sampled_from(USED).flatmap(
    lambda kind: st.tuples(
        st.integers(-50, 200).map(lambda n: n / 8), st.just(kind),
        st.tuples(BODIES.get(kind, st.just({})), st.integers(1, 2) | st.none()).map(
            lambda pair: pair[0] | ({"placement": pair[1]} if pair[1] or kind is
                                    Kind.RESERVE_INTENDED else {})
        ),
    )
)  # fmt: skip


@given(st.lists(entry, max_size=40), st.integers(0, 500), st.integers(1, 8))
def test_the_parts_add_up_exactly(entries: list[Any], now: int, slots: int) -> None:
    """Also for logs that no driver would write: placed twice, ended before the start."""
    for _, kind, body in entries:
        if kind is Kind.RESERVE_INTENDED:
            body["placement"] = body.get("placement") or 1
    log = log_of(*entries)
    found = spent(log, now=now, slots=slots)
    micro = [round(seconds * 10**6) for seconds in found.by_use.values()]
    assert sum(micro) == round(found.total_s * 10**6)
    assert all(part >= 0 for part in micro)
    gangs = [len(e.body.get("slots", ())) or slots for e in log if e.kind is Kind.PLACED] or [slots]
    assert min(gangs) * found.wall_s - 1e-6 <= found.total_s <= max(gangs) * found.wall_s + 1e-6


def test_what_a_refused_checkpoint_held_is_lost() -> None:
    """Two checkpoints; the newer one turns out bad, so the training after the older one is lost."""
    log = LogBuilder()
    log.add(Kind.VALIDATED, 0)
    log.add(Kind.MOVER_INTENDED, 0)
    log.add(Kind.DATA_READY, 0)
    log.add(Kind.RESERVE_INTENDED, 0, placement=1)
    log.add(Kind.PLACED, 0, placement=1, slots=[0, 1])
    log.add(Kind.RESERVED, 0, placement=1)
    log.add(Kind.GO_INTENDED, 10, placement=1, attempt=1)
    log.add(Kind.RUNNING, 12, placement=1)
    log.add(Kind.CHECKPOINT_SEALED, 20, placement=1, step=100)
    log.add(Kind.CHECKPOINT_SEALED, 40, placement=1, step=200)
    log.add(Kind.ATTEMPT_ENDED, 50, placement=1, ok=False)
    before = cost(log.events, now=T0 + timedelta(seconds=50), slots=2)
    assert (before.by_use[Use.TRAINING], before.by_use[Use.LOST]) == (56.0, 20.0)
    log.add(Kind.CHECKPOINT_REFUSED, 55, step=200, chosen={"step": 100, "path": "/c"})
    after = cost(log.events, now=T0 + timedelta(seconds=60), slots=2)
    assert (after.by_use[Use.TRAINING], after.by_use[Use.LOST]) == (16.0, 60.0)
    log.add(Kind.CHECKPOINT_REFUSED, 56, step=100, chosen=None)
    nothing = cost(log.events, now=T0 + timedelta(seconds=60), slots=2)
    assert (nothing.by_use[Use.TRAINING], nothing.by_use[Use.LOST]) == (0.0, 76.0)
    assert nothing.total_s == 120.0 == sum(nothing.by_use.values())


def test_a_save_that_failed_loses_nothing_by_itself() -> None:
    log = LogBuilder()
    log.add(Kind.CHECKPOINT_REFUSED, 5, placement=1, path="/c", reason="no space")
    assert cost(log.events, now=T0, slots=1).total_s == 0.0


@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=5), st.sampled_from([1, 3]))
def test_parts_add_up_as_they_are_shown(values: list[float], digits: int) -> None:
    parts = {str(number): value for number, value in enumerate(values)}
    shown = rounded(parts, digits)
    assert round(sum(shown.values()), digits) == pytest.approx(sum(values), abs=0.51 / 10**digits)
    assert all(abs(shown[name] - parts[name]) < 1.01 / 10**digits for name in parts)


def test_a_sum_of_rounded_parts_would_not_add_up() -> None:
    shown = rounded({"held": 0.24, "training": 0.24, "lost": 0.24}, 1)
    assert sorted(shown.values()) == [0.2, 0.2, 0.3], "0.72 in all"
