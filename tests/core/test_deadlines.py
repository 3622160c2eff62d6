"""Deadlines of stages: counted from the log, and what follows when one is over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ffdl_airflow.core.deadlines import left_s, overdue, running
from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import JobState, Phase
from ffdl_airflow.core.next_step import Append, EndPlacement, Finish, Judge, next_step
from ffdl_airflow.testing.builders import T0, job_document

P = Phase
LIMITS = {"prefetch": 10, "reserve": 20, "launch": 30, "register": 40}


def second(number: float) -> Any:
    return T0 + timedelta(seconds=number)


def after(*phases: Phase, limits: dict[str, float] = LIMITS, **fields: Any) -> JobState:
    """A job that has been in these phases, 100 s in each."""
    document = job_document()
    document["spec"]["deadlines"] = limits
    story = tuple((phase, second(100 * n)) for n, phase in enumerate(phases))
    return JobState(job_id="bert-0123456789", seq=9, spec=document, placement=1, story=story,
                    phase=phases[-1], **fields)  # fmt: skip


TO_DATA = (P.SUBMITTED, P.VALIDATED, P.PREFETCHING, P.DATA_READY)
TO_RESERVED = (*TO_DATA, P.RESERVING, P.RESERVED)


@pytest.mark.parametrize(
    ("state", "counting"),
    [
        (after(P.SUBMITTED), {}),
        (after(*TO_DATA[:3]), {"prefetch": 200}),
        (after(*TO_DATA), {}),
        (after(*TO_DATA, P.RESERVING), {"reserve": 400}),
        (after(*TO_RESERVED), {"launch": 500}),
        (after(*TO_RESERVED, P.STARTING, P.RUNNING), {"launch": 500}),
        (after(*TO_RESERVED, P.STARTING, P.RUNNING, P.STOPPING), {}),
        (after(*TO_RESERVED, P.STOPPING, P.RESERVING), {"launch": 500, "reserve": 700}),
        (after(*TO_RESERVED, P.STOPPING, P.DATA_READY, P.RESERVING, P.RESERVED), {"launch": 900}),
        (after(*TO_RESERVED, P.STOPPING, P.TRAINED, P.REGISTERING), {"register": 800}),
        (after(*TO_RESERVED, P.FAILED), {}),
        (after(*TO_RESERVED, limits={"reserve": 5}), {}),
        (after(P.RESERVED), {"launch": 0}),
        (JobState(job_id="bert-0123456789"), {}),
    ],
)  # fmt: skip
def test_since_when_a_stage_counts(state: JobState, counting: dict[str, float]) -> None:
    found = {deadline.stage: (deadline.since - T0).total_seconds() for deadline in running(state)}
    assert found == counting


def test_the_next_deadline_is_what_a_driver_waits_for() -> None:
    state = after(*TO_RESERVED, P.STOPPING, P.RESERVING)
    assert left_s(state, second(500)) == 30
    assert left_s(state, second(9999)) == 0
    assert left_s(after(*TO_DATA), T0) is None
    assert overdue(state, second(529)) is None
    late = overdue(state, second(530))
    assert late is not None
    assert late.stage == "launch"


def decided(state: JobState, now: float, goal: Goal = Goal.REGISTER) -> list[tuple[Kind, Any]]:
    action = next_step(state, goal, second(now))
    assert isinstance(action, Append), action
    return [(event.kind, event.body) for event in action.events]


@pytest.mark.parametrize(
    ("state", "now", "stage", "limit"),
    [
        (after(*TO_DATA[:3]), 210, "prefetch", 10),
        (after(*TO_DATA, P.RESERVING, waiting="2 slots are held by x/1"), 420, "reserve", 20),
        (after(*TO_RESERVED, P.STOPPING, P.TRAINED, P.REGISTERING), 840, "register", 40),
    ],
)
def test_without_a_gang_the_job_fails_at_once(
    state: JobState, now: float, stage: str, limit: float
) -> None:
    before = next_step(state, Goal.REGISTER, second(now - 1))
    assert not isinstance(before, Append) or before.events[0].kind is not Kind.VERDICT
    (verdict, judged), (failed, end) = decided(state, now)
    assert (verdict, failed) == (Kind.VERDICT, Kind.FAILED)
    assert judged["class"] == end["class"] == "DEADLINE"
    assert judged["costs"] is False
    assert f"{stage} took longer than spec.deadlines.{stage}, {limit} s" in end["reason"]
    assert f"raise spec.deadlines.{stage}" in end["next_step"] == judged["next_step"]
    if stage == "reserve":
        assert "held by x/1" in end["reason"], "with what it waited for"


@pytest.mark.parametrize("last", [(), (P.STARTING,), (P.STARTING, P.RUNNING)])
def test_a_gang_is_told_to_save_and_end_first(last: tuple[Phase, ...]) -> None:
    state = after(*TO_RESERVED, *last, placed=True)
    ((kind, body),) = decided(state, 530)
    assert kind is Kind.END_INTENDED
    assert (body["placement"], body["mode"]) == (1, "save")
    assert body["verdict"]["class"] == "DEADLINE"
    assert "launch took longer" in body["why"]


ENDING = {"class": "DEADLINE", "cause": "launch took longer than …", "next_step": "raise it"}


def test_then_what_ended_is_judged_and_the_job_fails() -> None:
    path = (*TO_RESERVED, P.STARTING, P.RUNNING, P.STOPPING)
    leaving = after(*path, placed=True, must_end="late", end_mode="save", ending=ENDING)
    assert next_step(leaving, Goal.REGISTER, second(999)) == EndPlacement("late", "save")
    ended = after(*path, ending=ENDING, attempt_result={"ok": False})
    assert next_step(ended, Goal.REGISTER, second(999)) == Judge()
    (_, judged), (kind, _) = decided(after(*path, ending=ENDING), 999)
    assert (judged["class"], kind) == ("DEADLINE", Kind.FAILED)


def test_a_gang_that_ended_well_meanwhile_has_trained() -> None:
    path = (*TO_RESERVED, P.STARTING, P.RUNNING, P.STOPPING)
    state = after(*path, ending=ENDING, attempt_result={"ok": True})
    ((kind, _),) = decided(state, 9999)
    assert kind is Kind.TRAINED


def test_a_stage_that_is_over_is_not_late() -> None:
    assert next_step(after(*TO_RESERVED, placed=True), Goal.RESERVE, second(9999)) == Finish()


def test_a_stop_that_was_asked_for_comes_before_a_deadline() -> None:
    state = after(*TO_RESERVED, placed=True, stop_wanted={"mode": "now", "why": "asked"})
    ((kind, body),) = decided(state, 9999)
    assert (kind, body["why"]) == (Kind.END_INTENDED, "asked")
    assert "verdict" not in body
