"""Random lives of a job: whatever the table allows can be folded, counted and told."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow import report
from ffdl_airflow.core.accounting import cost
from ffdl_airflow.core.events import Event, Kind, NewEvent, recorded
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.job import TrainingJob
from ffdl_airflow.core.lifecycle import IllegalTransition, JobState, apply, fold
from ffdl_airflow.core.next_step import Append, WaitUntil, next_step
from ffdl_airflow.core.summary import summary
from ffdl_airflow.testing.builders import T0, job

JOB = "bert-base-0123456789"
SPEC = job()
steps = st.integers(0, 1000)
checkpoints = st.fixed_dictionaries(
    {"step": steps, "path": st.just("/c"), "sha256": st.just("0"), "bytes": st.integers(0, 2**40)}
)
BODIES: dict[Kind, st.SearchStrategy[dict[str, Any]]] = {
    Kind.GO_INTENDED: st.fixed_dictionaries({"resume": st.none() | checkpoints}),
    Kind.CHECKPOINT_SEALED: checkpoints,
    Kind.CHECKPOINT_REFUSED: st.fixed_dictionaries(
        {"step": steps, "reason": st.just("torn"), "lost_steps": steps},
        optional={"chosen": st.none() | checkpoints},
    ),
    Kind.ATTEMPT_ENDED: st.fixed_dictionaries(
        {"ok": st.booleans(), "last_step": st.none() | steps},
        optional={"cause": st.just({"kind": "hang", "text": "no step"})},
    ),
    Kind.RESTART_DECIDED: st.fixed_dictionaries(
        {"to": st.sampled_from(["Reserved", "Reserving"]), "costs": st.booleans(),
         "ran": st.booleans(), "class": st.sampled_from(["UNKNOWN", "HANG"]),
         "not_before": st.none() | st.just((T0 + timedelta(seconds=5)).isoformat())}
    ),
    Kind.WATCHDOG_WARNED: st.fixed_dictionaries(
        {"reason": st.just("idle")}, optional={"level": st.just("warn")}
    ),
    Kind.END_INTENDED: st.fixed_dictionaries(
        {"why": st.just("late"), "mode": st.sampled_from(["now", "save"])},
        optional={"verdict": st.just({"class": "DEADLINE", "cause": "late"})},
    ),
    Kind.PLACED: st.fixed_dictionaries({"slots": st.lists(st.integers(0, 7), max_size=4)}),
    Kind.RELEASED: st.fixed_dictionaries({"why": st.just("x"), "lost": st.booleans()}),
    Kind.STOP_WANTED: st.fixed_dictionaries({"mode": st.sampled_from(["now", "save"])}),
    Kind.CLEARED: st.fixed_dictionaries(
        {"mode": st.sampled_from(["resume", "fresh"]),
         "to": st.sampled_from(["Validated", "DataReady"])}
    ),
    Kind.VERDICT: st.just({"class": "HANG", "cause": "no step", "next_step": "look"}),
    Kind.DATA_READY: st.just({"stores": {"corpus": {"generation": "g1", "path": "/d"}}}),
    Kind.MODEL_REGISTERED: st.just({"name": "m", "version": 1, "sha256": "0"}),
    Kind.PROGRESS_SUMMARY: st.fixed_dictionaries({"step": steps}),
}  # fmt: skip
drawn = st.lists(
    st.sampled_from(
        [kind for kind in Kind if kind not in (Kind.SUBMITTED, Kind.SPEC_CHANGED)]
    ).flatmap(
        lambda kind: st.tuples(st.just(kind), BODIES.get(kind, st.just({})), st.integers(-5, 60))
    ),
    max_size=60,
)


def life(choices: list[tuple[Kind, dict[str, Any], int]]) -> tuple[list[Event], JobState]:
    """A log of those events that the table allows, one after the other; clocks may disagree."""
    at, seq = T0, 1
    first = NewEvent(kind=Kind.SUBMITTED, at=at, body={"spec": SPEC.document()})
    events = [recorded(JOB, seq, first, recorded_at=at)]
    state = fold(JOB, events)
    for kind, drawn_body, seconds in choices:
        body = dict(drawn_body)
        if kind is Kind.RESERVE_INTENDED:
            body["placement"] = state.placement + 1
        elif state.placement and kind not in (Kind.CLEARED, Kind.STOP_WANTED):
            body["placement"] = state.placement
        if kind is Kind.GO_INTENDED:
            body["attempt"] = state.attempt + 1
        at += timedelta(seconds=seconds)
        new = NewEvent(kind=kind, at=at, body=body, attempt=state.attempt or None)
        event = recorded(JOB, len(events) + 1, new, recorded_at=at)
        try:
            state = apply(state, event)
        except IllegalTransition:
            continue
        events.append(event)
    return events, state


@given(drawn)
def test_every_life_can_be_told(choices: list[tuple[Kind, dict[str, Any], int]]) -> None:
    events, state = life(choices)
    assert fold(JOB, events) == state
    now = T0 + timedelta(hours=1)
    told = json.loads(json.dumps(report.describe(JOB, events, now=now)))
    assert told["phase"] == str(state.phase)
    assert [phase["phase"] for phase in told["phases"]] == [str(phase) for phase, _ in state.story]
    json.dumps(summary(state, SPEC))
    for event in events:
        assert "\n" not in report.event_text(event)
        assert json.loads(json.dumps(event.document()))["seq"] == event.seq


@given(drawn)
def test_every_life_is_paid_for(choices: list[tuple[Kind, dict[str, Any], int]]) -> None:
    events, state = life(choices)
    now = max(event.at for event in events) + timedelta(seconds=1)
    spent = cost(events, now=now, slots=2)
    assert sum(map(_micro, spent.by_use.values())) == _micro(spent.total_s)
    assert all(value >= 0 for value in spent.by_use.values())
    assert state.running_s >= 0


@given(drawn, st.sampled_from(list(Goal)))
def test_every_life_goes_on(choices: list[tuple[Kind, dict[str, Any], int]], goal: Goal) -> None:
    """Whatever a driver decides alone, the table allows; it never waits for the past."""
    _, state = life(choices)
    now = T0 + timedelta(seconds=3)
    action = next_step(state, goal, now)
    if isinstance(action, Append):
        for event in action.events:
            apply(state, recorded(JOB, state.seq + 1, event, recorded_at=now))
    if isinstance(action, WaitUntil):
        assert action.moment > now


@given(drawn)
def test_a_spec_in_the_log_stays_readable(choices: list[tuple[Kind, dict[str, Any], int]]) -> None:
    _, state = life(choices)
    assert TrainingJob.model_validate(state.spec) == SPEC


def _micro(seconds: float) -> int:
    return round(seconds * 10**6)
