"""What a driver does next, for every phase and goal."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import JobState, Phase
from ffdl_airflow.core.next_step import (
    Action,
    Append,
    EndPlacement,
    Finish,
    Go,
    Judge,
    JudgeMover,
    Launch,
    Observe,
    Prefetch,
    Register,
    Reserve,
    Save,
    Validate,
    WaitUntil,
    next_step,
    reached,
)
from ffdl_airflow.core.retry import EARLY_LOSS_LIMIT
from ffdl_airflow.testing.builders import T0, job_document

P = Phase
PLAIN = JobState(job_id="bert-base-0123456789", seq=9, spec=job_document(), placement=1)
LATER = T0 + timedelta(seconds=30)


def at(phase: Phase, **fields: Any) -> JobState:
    return replace(PLAIN, phase=phase, **fields)


def step(state: JobState, goal: Goal = Goal.REGISTER) -> Action:
    return next_step(state, goal, T0)


def appended(action: Action) -> tuple[Kind, dict[str, Any]]:
    assert isinstance(action, Append)
    (event,) = action.events
    assert event.at == T0
    return event.kind, dict(event.body)


STEPS: list[tuple[JobState, type]] = [
    (at(P.SUBMITTED), Validate),
    (at(P.PREFETCHING), Prefetch),
    (at(P.PREFETCHING, mover_error={"text": "moved"}), JudgeMover),
    (at(P.RESERVING, placed=True), Reserve),
    (at(P.RESERVED, placed=True), Launch),
    (at(P.STARTING, placed=True), Go),
    (at(P.RUNNING, placed=True), Observe),
    (at(P.RUNNING, placed=True, save_wanted=7), Save),
    (at(P.STOPPING, attempt_result={"ok": False}), Judge),
    (at(P.REGISTERING), Register),
    (at(P.SUCCEEDED), Finish),
    (at(P.FAILED), Finish),
    (at(P.STOPPED), Finish),
]


@pytest.mark.parametrize(
    ("state", "action"), STEPS, ids=[f"{s.phase}-{a.__name__}" for s, a in STEPS]
)
def test_each_phase_has_its_step(state: JobState, action: type) -> None:
    assert type(step(state)) is action


def test_decisions_are_events() -> None:
    assert appended(step(at(P.VALIDATED))) == (Kind.MOVER_INTENDED, {})
    assert appended(step(at(P.DATA_READY))) == (Kind.RESERVE_INTENDED, {"placement": 2})
    assert appended(step(at(P.RESERVING))) == (Kind.RESERVE_INTENDED, {"placement": 2})
    assert appended(step(at(P.TRAINED))) == (Kind.REGISTER_INTENDED, {})
    assert appended(step(at(P.REGISTERING, model={"name": "m"}))) == (Kind.SUCCEEDED, {})
    nameless = job_document()
    del nameless["spec"]["model"]
    assert appended(step(at(P.TRAINED, spec=nameless))) == (Kind.SUCCEEDED, {})


def test_an_attempt_that_ended_well_is_a_trained_job() -> None:
    checkpoint = {"step": 200}
    state = at(P.STOPPING, attempt_result={"ok": True}, attempt=3, step=200, checkpoint=checkpoint)
    body = {"attempt": 3, "step": 200, "checkpoint": checkpoint}
    assert appended(step(state)) == (Kind.TRAINED, body)


def test_an_end_without_a_result_is_a_stop() -> None:
    kind, body = appended(step(at(P.STOPPING)))
    assert (kind, body["reason"]) == (Kind.STOPPED, "ended without a result")
    judged = at(P.STOPPING, attempt_result={"ok": False}, verdict={"class": "HANG"}, reason="hang")
    assert appended(step(judged)) == (Kind.STOPPED, {"reason": "hang"})


@pytest.mark.parametrize("phase", [P.PREFETCHING, P.DATA_READY, P.RESERVING, P.REGISTERING])
def test_back_off_is_waited_for(phase: Phase) -> None:
    state = at(phase, not_before=LATER, mover_error={})
    assert step(state) == WaitUntil(moment=LATER, what="back-off")
    assert not isinstance(next_step(state, Goal.REGISTER, LATER), WaitUntil)


def test_back_off_on_the_same_placement() -> None:
    state = at(P.RESERVED, placed=True, not_before=LATER)
    assert step(state) == WaitUntil(moment=LATER, what="back-off")
    assert isinstance(next_step(state, Goal.REGISTER, LATER), Launch)


def test_a_gang_that_is_lost_too_often_ends_the_job() -> None:
    assert appended(step(at(P.RESERVING, early_losses=EARLY_LOSS_LIMIT - 1)))[0] is (
        Kind.RESERVE_INTENDED
    )
    kind, body = appended(step(at(P.RESERVING, early_losses=EARLY_LOSS_LIMIT)))
    assert (kind, body) == (
        Kind.FAILED, {"reason": "the gang was lost 20 times before any user code ran"}
    )  # fmt: skip


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("goal", list(Goal))
def test_a_placement_that_must_go_is_ended_before_anything_else(phase: Phase, goal: Goal) -> None:
    state = at(phase, placed=True, must_end="cleared", end_mode="save", stop_wanted={"mode": "now"})
    assert step(state, goal) == EndPlacement(why="cleared", mode="save")


def test_a_wish_to_stop() -> None:
    wish = {"mode": "now", "why": "enough", "by": "ada"}
    running = at(P.RUNNING, placed=True, stop_wanted=wish)
    body = {"placement": 1, "why": "enough", "mode": "now"}
    assert appended(step(running)) == (Kind.END_INTENDED, body)
    for phase in (P.SUBMITTED, P.RESERVING, P.STOPPING, P.TRAINED):
        stopped = {"reason": "enough", "by": "ada"}
        assert appended(step(at(phase, stop_wanted=wish))) == (Kind.STOPPED, stopped)
    kind, body = appended(step(at(P.RUNNING, placed=True, stop_wanted={})))
    assert (kind, body["mode"], body["why"]) == (Kind.END_INTENDED, "save", "stop asked for")
    assert isinstance(step(at(P.SUCCEEDED, stop_wanted=wish)), Finish)


REACHED: dict[Goal, set[Phase]] = {
    Goal.SUBMIT: set(Phase) - {P.SUBMITTED, P.FAILED, P.STOPPED},
    Goal.PREFETCH: set(Phase) - {P.SUBMITTED, P.VALIDATED, P.PREFETCHING, P.FAILED, P.STOPPED},
    Goal.RESERVE: {P.RESERVED, P.STARTING, P.RUNNING, P.TRAINED, P.REGISTERING, P.SUCCEEDED},
    Goal.LAUNCH: {P.TRAINED, P.REGISTERING, P.SUCCEEDED},
    Goal.REGISTER: {P.SUCCEEDED},
    Goal.RELEASE: {P.SUBMITTED, P.VALIDATED, P.PREFETCHING, P.DATA_READY, P.TRAINED, P.REGISTERING,
                   P.SUCCEEDED, P.FAILED, P.STOPPED},
}  # fmt: skip


@pytest.mark.parametrize("goal", list(Goal))
def test_goals(goal: Goal) -> None:
    for phase in Phase:
        state = at(phase)
        assert reached(state, goal) is (phase in REACHED[goal]), phase
        if reached(state, goal):
            assert isinstance(step(state, goal), Finish)
    assert not reached(JobState(job_id="x"), goal)


@pytest.mark.parametrize("goal", [Goal.LAUNCH, Goal.REGISTER, Goal.RELEASE])
def test_what_still_holds_slots_is_not_done(goal: Goal) -> None:
    assert not reached(at(P.SUCCEEDED, placed=True), goal)


def test_release_stops_what_holds_slots() -> None:
    kind, body = appended(step(at(P.RUNNING, placed=True), Goal.RELEASE))
    assert (kind, body["mode"], body["by"]) == (Kind.STOP_WANTED, "now", "release")


def test_every_phase_with_every_goal_has_a_step() -> None:
    for phase in Phase:
        for goal in Goal:
            for placed in (False, True):
                assert step(at(phase, placed=placed), goal) is not None
