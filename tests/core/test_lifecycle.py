"""The table and the fold: every pair of phase and event, wishes, placements, counters."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow.core.events import Event, Kind, NewEvent, recorded
from ffdl_airflow.core.lifecycle import (
    ALL,
    LIVE,
    TABLE,
    TERMINAL,
    IllegalTransition,
    JobState,
    Phase,
    Row,
    apply,
    fold,
)
from ffdl_airflow.testing.builders import T0, job_document

JOB = "bert-base-0123456789"
# Least body with which an event can be applied.
BODIES: dict[Kind, dict[str, Any]] = {
    Kind.SUBMITTED: {"spec": job_document()},
    Kind.SPEC_CHANGED: {"spec": job_document(replicas=1)},
    Kind.RESERVE_INTENDED: {"placement": 2},
    Kind.GO_INTENDED: {"attempt": 2, "placement": 1},
    Kind.CHECKPOINT_SEALED: {"step": 100, "path": "/c", "sha256": "0"},
    Kind.RESTART_DECIDED: {"to": "Reserving"},
}


def event(kind: Kind, *, seq: int = 9, at: float = 0, **body: Any) -> Event:
    moment = T0 + timedelta(seconds=at)
    new = NewEvent(kind=kind, at=moment, body=BODIES.get(kind, {}) | body)
    return recorded(JOB, seq, new, recorded_at=moment)


def state_in(phase: Phase | None, **fields: Any) -> JobState:
    story = ((Phase.SUBMITTED, T0),) if phase else ()
    if phase not in (None, Phase.SUBMITTED):
        story = (*story, (phase, T0 + timedelta(seconds=5)))
    spec = job_document() if phase else {}
    return JobState(job_id=JOB, seq=8, phase=phase, story=story, spec=spec,
                    **{"placement": 1, **fields})  # fmt: skip


PAIRS = [(phase, kind) for phase in (None, *Phase) for kind in Kind]


def row_for(phase: Phase | None, kind: Kind) -> Row | None:
    if phase is None:
        return Row((), (Phase.SUBMITTED,)) if kind is Kind.SUBMITTED else None
    return next((row for row in TABLE.get(kind, ()) if phase in row.sources), None)


@pytest.mark.parametrize(("phase", "kind"), PAIRS, ids=[f"{p}-{k}" for p, k in PAIRS])
def test_every_pair_is_in_the_table_or_refused(phase: Phase | None, kind: Kind) -> None:
    before = state_in(phase)
    row = row_for(phase, kind)
    if row is None:
        with pytest.raises(IllegalTransition) as caught:
            apply(before, event(kind))
        assert before == state_in(phase)
        assert caught.value.state is before
        assert str(kind) in str(caught.value)
        assert JOB in str(caught.value)
        story = "(empty)" if phase is None else "Submitted 22:00:00"
        assert f"Story: {story}" in str(caught.value)
        return
    after = apply(before, event(kind, at=7))
    assert after.seq == 9
    assert after.phase in (row.to or (phase,))
    moved = after.phase is not phase
    assert after.story == (
        *before.story,
        *([(after.phase, T0 + timedelta(seconds=7))] if moved else ()),
    )


def test_the_table_is_whole() -> None:
    assert set(TABLE) | {Kind.SUBMITTED} == set(Kind)
    assert set(LIVE) | TERMINAL == set(Phase) == set(ALL)
    for kind, rows in TABLE.items():
        seen: set[Phase] = set()
        for row in rows:
            assert row.sources, kind
            assert set(row.sources) - seen, f"{kind}: a row that is never reached"
            seen |= set(row.sources)


def test_a_phase_that_ends_is_left_by_a_clear_only() -> None:
    for kind, rows in TABLE.items():
        for row in rows:
            if row.to and TERMINAL & set(row.sources):
                assert kind is Kind.CLEARED


WHOLE: list[tuple[Kind, dict[str, Any]]] = [
    (Kind.VALIDATED, {}),
    (Kind.MOVER_INTENDED, {}),
    (Kind.PREFETCH_STARTED, {}),
    (Kind.PREFETCH_FAILED, {"store": "corpus", "code": "SOURCE_MOVED"}),
    (Kind.VERDICT, {"class": "STORAGE_TRANSIENT", "cause": "moved"}),
    (Kind.RESTART_DECIDED, {"class": "STORAGE_TRANSIENT", "costs": True, "ran": False, "to": None}),
    (Kind.DATA_READY, {"stores": {"corpus": {"generation": "g1"}}}),
    (Kind.RESERVE_INTENDED, {"placement": 1}),
    (Kind.WAITING, {"placement": 1, "reason": "2 slots are needed, 1 is free"}),
    (Kind.PLACED, {"placement": 1, "slots": [0, 1]}),
    (Kind.RESERVED, {"placement": 1}),
    (Kind.GO_INTENDED, {"placement": 1, "attempt": 1, "resume": None}),
    (Kind.RUNNING, {"placement": 1}),
    (Kind.PROGRESS_SUMMARY, {"placement": 1, "step": 150}),
    (Kind.CHECKPOINT_SEALED, {"placement": 1, "step": 100, "path": "/c/1", "sha256": "a"}),
    (Kind.SAVE_WANTED, {}),
    (Kind.SAVE_REQUESTED, {"placement": 1}),
    (Kind.RANK_EXITED, {"placement": 1, "rank": 0, "exit": 1}),
    (Kind.ATTEMPT_ENDED, {"placement": 1, "ok": False, "last_step": 180}),
    (Kind.VERDICT, {"placement": 1, "class": "HOST_OOM", "cause": "killed by signal 9"}),
    (Kind.RESTART_DECIDED, {"class": "HOST_OOM", "costs": True, "ran": True, "to": "Reserved",
                            "not_before": T0.isoformat()}),
    (Kind.GO_INTENDED, {"placement": 1, "attempt": 2, "resume": {"step": 100, "path": "/c/1"}}),
    (Kind.RUNNING, {"placement": 1}),
    (Kind.CHECKPOINT_SEALED, {"placement": 1, "step": 200, "path": "/c/2", "sha256": "b"}),
    (Kind.ATTEMPT_ENDED, {"placement": 1, "ok": True, "last_step": 200}),
    (Kind.RELEASED, {"placement": 1}),
    (Kind.TRAINED, {}),
    (Kind.REGISTER_INTENDED, {}),
    (Kind.MODEL_REGISTERED, {"name": "bert", "version": 1, "sha256": "b"}),
    (Kind.SUCCEEDED, {}),
]  # fmt: skip


class Log:
    """A log that begins with Submitted; ``at`` is seconds after T0."""

    def __init__(self) -> None:
        self.events = [event(Kind.SUBMITTED, seq=1)]

    def add(self, kind: Kind, at: float, **body: Any) -> None:
        self.events.append(event(kind, seq=len(self.events) + 1, at=at, **body))


def log_of(steps: list[tuple[Kind, dict[str, Any]]]) -> Log:
    log = Log()
    for number, (kind, body) in enumerate(steps, start=1):
        log.add(kind, number, **body)
    return log


def test_a_whole_life() -> None:
    state = fold(JOB, log_of(WHOLE).events)
    assert " ".join(phase.value for phase, _ in state.story) == (
        "Submitted Validated Prefetching DataReady Reserving Reserved Starting Running Stopping "
        "Reserved Starting Running Stopping Trained Registering Succeeded"
    )
    assert state.terminal
    assert (state.attempt, state.placement, state.placed, state.must_end) == (2, 1, False, None)
    assert state.checkpoint == {"placement": 1, "step": 200, "path": "/c/2", "sha256": "b"}
    assert state.running_s == (18 - 13) + (24 - 22) + 1  # seconds in Running of both attempts
    assert state.model == {"name": "bert", "version": 1, "sha256": "b"}
    assert (state.costly, state.no_advance, state.since_checkpoint) == (2, 0, 0)
    assert (state.placement_id, state.last_attempt_ok, state.step) == (f"{JOB}/1", True, 200)
    assert state.data == {"stores": {"corpus": {"generation": "g1"}}}
    assert state.mover_error is None


@pytest.mark.parametrize("cut", range(len(WHOLE) + 1))
def test_a_fold_can_be_cut_anywhere(cut: int) -> None:
    events = log_of(WHOLE).events
    assert fold(JOB, events[cut:], fold(JOB, events[:cut])) == fold(JOB, events)


def state_after(*extra: tuple[Kind, dict[str, Any]], upto: Kind, again: int = 1) -> JobState:
    """The fold of the whole life up to the n-th event of a kind, and then something else."""
    numbers = [n for n, (kind, _) in enumerate(WHOLE) if kind is upto]
    return fold(JOB, log_of([*WHOLE[: numbers[again - 1] + 1], *extra]).events)


def test_events_of_another_placement_have_no_effect() -> None:
    running = state_after(upto=Kind.RUNNING)
    late = {
        Kind.STOP_WANTED: {"mode": "now"},
        Kind.SAVE_WANTED: {},
        Kind.ATTEMPT_ENDED: {"ok": False},
        Kind.HOLD_EXPIRED: {},
        Kind.RELEASED: {},
        Kind.CHECKPOINT_SEALED: {"step": 9000, "path": "/c/0"},
        Kind.PLACED: {"slots": [3]},
        Kind.END_INTENDED: {"why": "late"},
        Kind.RUNNING: {},
    }
    for kind, body in late.items():
        moved = apply(running, event(kind, seq=running.seq + 1, **body, placement=7))
        assert moved == running.__class__(**{**vars(running), "seq": running.seq + 1}), kind


def test_the_source_may_name_the_placement() -> None:
    running = state_after(upto=Kind.RUNNING)
    new = NewEvent(kind=Kind.ATTEMPT_ENDED, at=T0, body={"ok": True},
                   source={"placement": 9, "journal_seq": 70})  # fmt: skip
    after = apply(running, recorded(JOB, running.seq + 1, new, recorded_at=T0))
    assert (after.phase, after.journal_seq) == (Phase.RUNNING, 0)


def test_the_journal_is_read_on_from_where_the_log_stands() -> None:
    state = state_after(upto=Kind.GO_INTENDED)
    new = NewEvent(kind=Kind.RUNNING, at=T0, source={"placement": 1, "journal_seq": 3})
    state = apply(state, recorded(JOB, state.seq + 1, new, recorded_at=T0))
    assert state.journal_seq == 3
    state = state_after(upto=Kind.DATA_READY)
    assert apply(state, event(Kind.RESERVE_INTENDED)).journal_seq == 0


def test_a_hold_that_ends_before_the_start_costs_no_attempt() -> None:
    state = state_after((Kind.HOLD_EXPIRED, {"placement": 1}), upto=Kind.GO_INTENDED)
    assert (state.phase, state.attempt, state.attempt_open) == (Phase.RESERVING, 0, False)
    assert state.must_end == "the hold has expired"


def test_a_hold_that_ends_later_keeps_the_number_of_the_attempt() -> None:
    state = state_after((Kind.HOLD_EXPIRED, {"placement": 1}), upto=Kind.RESTART_DECIDED, again=2)
    assert (state.phase, state.attempt) == (Phase.RESERVING, 1)


def test_running_that_nobody_waits_for_starts_no_clock() -> None:
    state = state_after((Kind.RUNNING, {"placement": 1}), upto=Kind.RESERVED)
    assert (state.phase, state.running_at) == (Phase.RESERVED, None)


def test_the_end_of_an_attempt_counts_once() -> None:
    twice = (Kind.ATTEMPT_ENDED, {"placement": 1, "ok": True})
    state = state_after(twice, upto=Kind.ATTEMPT_ENDED)
    assert not state.last_attempt_ok


def test_an_end_before_running_runs_for_nothing() -> None:
    state = state_after((Kind.ATTEMPT_ENDED, {"placement": 1, "ok": False}), upto=Kind.GO_INTENDED)
    assert (state.phase, state.running_s, state.must_end) == (Phase.STOPPING, 0.0, None)


def test_a_clock_that_goes_back_gives_no_negative_time() -> None:
    log = log_of(WHOLE[:13])
    log.add(Kind.ATTEMPT_ENDED, -50, placement=1, ok=False)
    assert fold(JOB, log.events).running_s == 0.0


def test_counters_of_restarts() -> None:
    log = log_of([*WHOLE[:3], *WHOLE[6:13]])  # without the failed prefetch
    for number, (failure, costs, ran) in enumerate(
        [("UNKNOWN", True, True), ("HOST_OOM", True, True), ("KILLED_OUTSIDE", False, True),
         ("RENDEZVOUS", True, False)], start=1,
    ):  # fmt: skip
        log.add(Kind.ATTEMPT_ENDED, 20 * number, placement=1, ok=False)
        log.add(Kind.VERDICT, 20 * number, **{"class": failure})
        log.add(Kind.RESTART_DECIDED, 20 * number, to="Reserved", costs=costs, ran=ran,
                **{"class": failure})  # fmt: skip
        log.add(Kind.GO_INTENDED, 20 * number + 1, placement=1, attempt=number + 1)
    state = fold(JOB, log.events)
    assert (state.costly, state.unknown, state.no_advance) == (3, 1, 3)
    assert (state.early_losses, state.since_checkpoint, state.restart_class) == (1, 4, "RENDEZVOUS")
    log.add(Kind.CHECKPOINT_SEALED, 999, placement=1, step=5, path="/c")
    state = fold(JOB, log.events)
    assert (state.no_advance, state.early_losses, state.since_checkpoint) == (0, 0, 0)
    assert (state.costly, state.unknown) == (3, 1)


def test_an_older_checkpoint_is_no_progress() -> None:
    older = (Kind.CHECKPOINT_SEALED, {"placement": 1, "step": 50, "path": "/c/0"})
    state = state_after(older, upto=Kind.CHECKPOINT_SEALED, again=2)
    assert state.checkpoint is not None
    assert state.checkpoint["step"] == 200


def test_a_refused_checkpoint_hands_over_to_the_chosen_one() -> None:
    sealed = state_after(upto=Kind.CHECKPOINT_SEALED)
    kept = apply(sealed, event(Kind.CHECKPOINT_REFUSED, step=90, reason="torn", placement=1))
    assert kept.checkpoint == sealed.checkpoint
    older = {"step": 50, "path": "/c/0", "sha256": "0"}
    assert apply(sealed, event(Kind.CHECKPOINT_REFUSED, chosen=older)).checkpoint == older
    assert apply(sealed, event(Kind.CHECKPOINT_REFUSED, chosen=None)).checkpoint is None


def test_a_restart_elsewhere_ends_the_placement() -> None:
    decided = (Kind.RESTART_DECIDED, {"to": "Reserving", "class": "NODE_LOST", "costs": False})
    state = state_after(decided, upto=Kind.VERDICT, again=2)
    assert (state.phase, state.must_end) == (Phase.RESERVING, "restart on a new placement")


def test_losses_before_the_start_are_counted() -> None:
    lost = (Kind.RELEASED, {"placement": 1, "lost": True})
    before = state_after(upto=Kind.PLACED).early_losses
    assert state_after(lost, upto=Kind.PLACED).early_losses == before + 1
    assert state_after(lost, upto=Kind.RESERVED).phase is Phase.RESERVING
    expired = (Kind.HOLD_EXPIRED, {"placement": 1})
    assert state_after(expired, lost, upto=Kind.RESERVED).early_losses == before
    assert state_after(lost, upto=Kind.RUNNING).early_losses == before


def test_wishes_to_stop() -> None:
    save, now = {"mode": "save", "why": "a"}, {"mode": "now", "why": "b"}
    state = state_after((Kind.STOP_WANTED, save), upto=Kind.RUNNING)
    assert (state.phase, state.stop_wanted) == (Phase.RUNNING, save)
    state = state_after((Kind.STOP_WANTED, save), (Kind.STOP_WANTED, now), upto=Kind.RUNNING)
    assert state.stop_wanted == now
    state = state_after((Kind.STOP_WANTED, now), (Kind.STOP_WANTED, save), upto=Kind.RUNNING)
    assert state.stop_wanted == now
    assert state_after((Kind.STOP_WANTED, now), upto=Kind.SUCCEEDED).stop_wanted is None


def test_a_save_is_for_what_runs() -> None:
    assert state_after((Kind.SAVE_WANTED, {}), upto=Kind.RUNNING).save_wanted is not None
    assert state_after((Kind.SAVE_WANTED, {}), upto=Kind.RESERVED).save_wanted is None
    ended = (Kind.ATTEMPT_ENDED, {"placement": 1, "ok": False})
    assert state_after((Kind.SAVE_WANTED, {}), ended, upto=Kind.RUNNING).save_wanted is None


def test_the_wish_to_end_comes_with_a_mode() -> None:
    state = state_after((Kind.END_INTENDED, {"placement": 1, "why": "stop", "mode": "save"}),
                        upto=Kind.RUNNING)  # fmt: skip
    assert (state.phase, state.must_end, state.end_mode) == (Phase.STOPPING, "stop", "save")
    state = apply(state, event(Kind.RELEASED, placement=1))
    assert (state.phase, state.must_end, state.end_mode) == (Phase.STOPPING, None, "now")


@pytest.mark.parametrize("kind", [Kind.FAILED, Kind.STOPPED])
def test_what_ends_while_it_is_placed_must_let_go(kind: Kind) -> None:
    state = state_after((kind, {"reason": "asked for"}), upto=Kind.RUNNING)
    assert (state.terminal, state.must_end, state.reason) == (True, "asked for", "asked for")
    state = state_after((kind, {}), upto=Kind.DATA_READY)
    assert (state.must_end, state.reason) == (None, kind.value)


def test_a_refusal_is_a_failure() -> None:
    state = fold(JOB, log_of([(Kind.REFUSED, {"reason": "no such file"})]).events)
    assert (state.phase, state.reason) == (Phase.FAILED, "no such file")


CLEARS: list[tuple[Kind, int, str, Phase, Phase | None]] = [
    # up to which event of the life, its number, cleared to → phase now, phase after the release
    (Kind.VALIDATED, 1, "Validated", Phase.VALIDATED, None),
    (Kind.PREFETCH_STARTED, 1, "DataReady", Phase.VALIDATED, None),
    (Kind.DATA_READY, 1, "Validated", Phase.VALIDATED, None),
    (Kind.DATA_READY, 1, "DataReady", Phase.DATA_READY, None),
    (Kind.RESERVED, 1, "DataReady", Phase.STOPPING, Phase.DATA_READY),
    (Kind.RUNNING, 1, "Validated", Phase.STOPPING, Phase.VALIDATED),
    (Kind.TRAINED, 1, "DataReady", Phase.DATA_READY, None),
    (Kind.SUCCEEDED, 1, "Validated", Phase.VALIDATED, None),
]


@pytest.mark.parametrize(("upto", "again", "to", "now", "then"), CLEARS)
def test_a_clear_goes_back(upto: Kind, again: int, to: str, now: Phase, then: Phase | None) -> None:
    state = state_after((Kind.CLEARED, {"to": to, "mode": "resume"}), upto=upto, again=again)
    assert (state.phase, state.clear_pending) == (now, then)
    assert (state.must_end == "cleared") is (then is not None)
    assert (state.costly, state.model, state.verdict, state.reason) == (0, None, None, "cleared")
    if then is not None:
        released = apply(state, event(Kind.RELEASED, placement=1))
        assert (released.phase, released.clear_pending, released.placed) == (then, None, False)


@pytest.mark.parametrize("to", ["Validated", "DataReady"])
def test_a_clear_does_not_skip_what_was_never_done(to: str) -> None:
    """A job that was refused is checked again, and its checkpoint directory is claimed then."""
    refused = [(Kind.REFUSED, {"reason": "3 slots"}), (Kind.CLEARED, {"to": to})]
    assert fold(JOB, log_of(refused).events).phase is Phase.SUBMITTED


def test_a_clear_keeps_the_checkpoint_or_not() -> None:
    resume = state_after((Kind.CLEARED, {"mode": "resume"}), upto=Kind.SUCCEEDED)
    assert resume.checkpoint is not None
    assert (resume.checkpoint["step"], resume.checkpoint_floor) == (200, 0)
    fresh = state_after((Kind.CLEARED, {"mode": "fresh"}), upto=Kind.SUCCEEDED)
    assert (fresh.checkpoint, fresh.checkpoint_floor) == (None, 2)


def test_what_a_cleared_attempt_still_seals_is_not_gone_on_from_where_that_begins_anew() -> None:
    for mode, expected in (("fresh", None), ("resume", 900)):
        state = state_after((Kind.CLEARED, {"mode": mode}), upto=Kind.RUNNING)
        sealed = event(Kind.CHECKPOINT_SEALED, seq=state.seq + 1, step=900, path="/c/900")
        state = apply(state, replace(sealed, attempt=1))
        assert (state.checkpoint["step"] if state.checkpoint else None) == expected
    second = replace(sealed, attempt=2, seq=state.seq + 1)
    assert apply(replace(state, checkpoint=None, checkpoint_floor=1), second).checkpoint


def test_a_clear_takes_back_the_wish_to_stop() -> None:
    wish = (Kind.STOP_WANTED, {"mode": "now"})
    assert state_after(wish, (Kind.CLEARED, {}), upto=Kind.RUNNING).stop_wanted is None


def test_a_changed_spec_is_the_spec() -> None:
    state = state_after(
        (Kind.SPEC_CHANGED, {"spec": job_document(replicas=1)}), upto=Kind.VALIDATED
    )
    assert state.spec["spec"]["replicas"] == 1


def test_no_phase_is_no_end() -> None:
    assert not JobState(job_id=JOB).terminal
    assert not JobState(job_id=JOB).last_attempt_ok


@given(st.lists(st.sampled_from(list(Kind)), max_size=40), st.data())
def test_random_logs_fold_step_by_step_as_at_once(kinds: list[Kind], data: st.DataObject) -> None:
    """Of random events those that the table allows make a log; fold and apply agree on it."""
    log = Log()
    state = fold(JOB, log.events)
    for kind in kinds:
        placement = data.draw(st.sampled_from([None, state.placement, state.placement + 1]))
        body = BODIES.get(kind, {}) | ({} if placement is None else {"placement": placement})
        if kind is Kind.RESERVE_INTENDED:
            body = {"placement": state.placement + 1}
        if kind is Kind.SUBMITTED:
            continue
        candidate = event(kind, seq=len(log.events) + 1, **body)
        try:
            state = apply(state, candidate)
        except IllegalTransition:
            continue
        log.events.append(candidate)
    assert fold(JOB, log.events) == state
    assert state.seq == len(log.events)
    assert state.story[-1][0] is state.phase
