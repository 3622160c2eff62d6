"""Whether and when a failed attempt is followed by another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow.core.failures.classes import POLICIES, FailureClass
from ffdl_airflow.core.failures.rules import Verdict
from ffdl_airflow.core.retry import (
    BACKOFF_CEILING_S,
    GiveUp,
    History,
    Restart,
    decide,
    early_delay_s,
)  # fmt: skip

F = FailureClass
FIRST = History(job_id="bert-base-0123456789", attempt=1, backoff_limit=3, no_advance_limit=5)


def verdict(failure: FailureClass, *, certain: bool = False, ran: bool = True) -> Verdict:
    return Verdict(failure=failure, cause="x", certain=certain, ran=ran)


def restart(failure: FailureClass, history: History = FIRST, *, ran: bool = True) -> Restart:
    outcome = decide(verdict(failure, ran=ran), history)
    assert isinstance(outcome, Restart), outcome
    return outcome


def refusal(failure: FailureClass, history: History = FIRST, *, certain: bool = False,
            ran: bool = True) -> str:  # fmt: skip
    outcome = decide(verdict(failure, certain=certain, ran=ran), history)
    assert isinstance(outcome, GiveUp), outcome
    return outcome.reason


@pytest.mark.parametrize("failure", list(FailureClass))
def test_every_class_is_decided(failure: FailureClass) -> None:
    policy = POLICIES[failure]
    if policy.restart == "never":
        assert failure.value in refusal(failure)
        return
    outcome = restart(failure)
    assert outcome.costs is policy.costs
    assert ("1 of backoffLimit 3" in outcome.reason) is policy.costs
    assert ("costs nothing" in outcome.reason) is not policy.costs


ONCE = [failure for failure in F if POLICIES[failure].restart == "once"]


@pytest.mark.parametrize("failure", ONCE)
def test_what_does_not_go_away_is_tried_once_more_where_it_is_not_certain(
    failure: FailureClass,
) -> None:
    assert "does not go away" in refusal(failure, certain=True)
    assert restart(failure).costs
    again = replace(FIRST, same_class_before=True)
    for certain in (False, True):
        text = refusal(failure, again, certain=certain)
        assert text == f"{failure}: a second attempt ended the same way"


def test_the_classes_that_are_tried_once_more() -> None:
    assert set(ONCE) == {
        F.USER_ERROR, F.CONFIG, F.IMAGE, F.DATA_MISSING, F.STORAGE_AUTH, F.AUTH, F.LICENSE,
        F.COMM_MISUSE, F.NUMERIC, F.HOST_OOM, F.GPU_OOM, F.SHM, F.DISK_FULL,
    }  # fmt: skip
    never = {failure for failure in F if POLICIES[failure].restart == "never"}
    assert never == {F.DEADLINE, F.IDLE, F.CANCELLED}


@pytest.mark.parametrize("failure", list(F))
@pytest.mark.parametrize(
    "history",
    [FIRST, replace(FIRST, no_advance=4), replace(FIRST, costly=3), replace(FIRST, unknown=2),
     replace(FIRST, same_class_before=True), replace(FIRST, early_losses=19)],
)  # fmt: skip
def test_what_is_to_be_done_fits_the_end(failure: FailureClass, history: History) -> None:
    for ran in (True, False):
        outcome = decide(verdict(failure, ran=ran), history)
        if isinstance(outcome, GiveUp):
            assert outcome.next_step
            assert "nothing to do" not in outcome.next_step
            assert "resumes" not in outcome.next_step


def test_each_limit_says_what_to_look_at() -> None:
    no_advance = decide(verdict(F.KILLED_OUTSIDE), replace(FIRST, no_advance=4))
    assert isinstance(no_advance, GiveUp)
    assert no_advance.next_step.startswith("look why no checkpoint becomes complete: ")
    used_up = decide(verdict(F.STORAGE_TRANSIENT), replace(FIRST, costly=3))
    assert isinstance(used_up, GiveUp)
    assert used_up.next_step.startswith("check the storage that is named; then continue the job")
    once = decide(verdict(F.DISK_FULL), replace(FIRST, same_class_before=True))
    assert isinstance(once, GiveUp)
    assert once.next_step == POLICIES[F.DISK_FULL].next_step


@pytest.mark.parametrize("costly", range(4))
def test_the_budget_holds(costly: int) -> None:
    history = replace(FIRST, costly=costly)
    if costly < 3:
        assert restart(F.HANG, history).costs
    else:
        assert "backoffLimit 3 is used up" in refusal(F.HANG, history)
    assert not restart(F.KILLED_OUTSIDE, history).costs


def test_a_budget_of_nothing_forbids_the_first() -> None:
    assert "backoffLimit 0" in refusal(F.HANG, replace(FIRST, backoff_limit=0))


def test_unknown_twice() -> None:
    many = replace(FIRST, backoff_limit=100)
    assert restart(F.UNKNOWN, replace(many, unknown=1)).costs
    assert "third time" in refusal(F.UNKNOWN, replace(many, unknown=2))


@pytest.mark.parametrize("limit", [1, 5])
def test_attempts_without_a_newer_checkpoint_end_the_job(limit: int) -> None:
    history = replace(FIRST, no_advance_limit=limit, no_advance=limit - 1)
    assert f"{limit} attempts in a row without" in refusal(F.KILLED_OUTSIDE, history)
    if limit > 1:
        assert restart(F.KILLED_OUTSIDE, replace(history, no_advance=limit - 2))
    assert restart(F.NODE_SETUP, history, ran=False), "no user code ran"


def test_losses_before_the_start_end_the_job_after_20() -> None:
    assert restart(F.NODE_SETUP, replace(FIRST, early_losses=18), ran=False)
    assert "lost 20 times" in refusal(F.NODE_SETUP, replace(FIRST, early_losses=19), ran=False)
    assert restart(F.NODE_SETUP, replace(FIRST, early_losses=19), ran=True)


@pytest.mark.parametrize(
    ("since_checkpoint", "base_s"),
    [(0, 0), (1, 4), (2, 8), (3, 16), (4, 32), (5, 64), (6, 128), (7, 256), (8, 300), (50, 300),
     (10**6, 300)],
)  # fmt: skip
def test_back_off(since_checkpoint: int, base_s: float) -> None:
    delays = {
        restart(
            F.KILLED_OUTSIDE, replace(FIRST, since_checkpoint=since_checkpoint, attempt=n)
        ).delay_s
        for n in range(1, 60)
    }
    assert all(min(0.8 * base_s, 300) <= delay <= min(1.2 * base_s, 300) for delay in delays)
    assert len(delays) > 10 or base_s == 0, "jitter"


@pytest.mark.parametrize("failure", [F.PREEMPTED, F.PREEMPTED_BEFORE_START])
def test_after_preemption_capacity_is_waited_for_instead(failure: FailureClass) -> None:
    assert restart(failure, replace(FIRST, since_checkpoint=9)).delay_s == 0


@given(
    st.sampled_from(list(F)), st.booleans(), st.booleans(), st.integers(0, 9), st.integers(0, 30)
)
def test_two_drivers_decide_the_same(
    failure: FailureClass, certain: bool, ran: bool, used: int, since: int
) -> None:
    history = replace(FIRST, costly=used, unknown=used, no_advance=used, since_checkpoint=since)
    outcome = decide(verdict(failure, certain=certain, ran=ran), history)
    assert outcome == decide(verdict(failure, certain=certain, ran=ran), history)
    if isinstance(outcome, Restart):
        assert 0 <= outcome.delay_s <= BACKOFF_CEILING_S
        assert used < history.backoff_limit or not outcome.costs


def test_a_place_that_is_lost_again_and_again_is_asked_for_ever_more_slowly() -> None:
    delays = [early_delay_s(losses) for losses in range(20)]
    assert delays[:5] == [0.0, 2.0, 4.0, 8.0, 16.0]
    assert delays[-1] == early_delay_s(10_000) == BACKOFF_CEILING_S
