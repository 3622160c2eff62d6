"""Small parts of the core: events, observations, checkpoints, rows of jobs, errors."""

from __future__ import annotations

import json
import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow.core import errors
from ffdl_airflow.core.checkpoints import Candidate, choose, lost_steps
from ffdl_airflow.core.data import Generation, GenerationFile, generation_id, source_hash
from ffdl_airflow.core.events import Event, Kind, NewEvent, iso, parse_iso, recorded
from ffdl_airflow.core.job import TrainingJob
from ffdl_airflow.core.lifecycle import JobState, Phase
from ffdl_airflow.core.observation import Observation, Presence, with_journal
from ffdl_airflow.core.summary import summary
from ffdl_airflow.testing.builders import T0, job

JOB = "bert-base-0123456789"


def new(**fields: Any) -> NewEvent:
    return NewEvent(**{"kind": Kind.CHECKPOINT_SEALED, "at": T0, **fields})


def test_an_event_as_plain_data() -> None:
    made = recorded(
        JOB, 7,
        new(body={"step": 100}, attempt=2, dedupe="journal:1:3", source={"placement": 1}),
        recorded_at=T0 + timedelta(milliseconds=1500),
    )  # fmt: skip
    assert made.document() == {
        "v": 1, "stream": JOB, "seq": 7, "kind": "CheckpointSealed", "attempt": 2,
        "at": "2026-03-01T22:00:00.000000Z", "recorded_at": "2026-03-01T22:00:01.500000Z",
        "source": {"placement": 1}, "dedupe": "journal:1:3", "body": {"step": 100},
    }  # fmt: skip
    json.dumps(made.document())
    assert made.placement == 1


@pytest.mark.parametrize(
    ("body", "source", "placement"),
    [({}, {}, None), ({"placement": 2}, {}, 2), ({}, {"placement": 3}, 3),
     ({"placement": 2}, {"placement": 3}, 2)],
)  # fmt: skip
def test_what_an_event_is_about(body: Any, source: Any, placement: int | None) -> None:
    made: Event = recorded(JOB, 1, new(body=body, source=source), recorded_at=T0)
    assert made.placement == placement


@given(st.datetimes(timezones=st.timezones()))
def test_moments_come_back(moment: datetime) -> None:
    # Of different zones Python calls no moment equal that a change of clocks has twice or skips.
    assert parse_iso(iso(moment)) == moment.astimezone(timezone.utc)
    assert parse_iso(iso(moment)).tzinfo is timezone.utc
    assert iso(moment).endswith("Z")


def entry(kind: str, seq: int = 3, **body: Any) -> dict[str, Any]:
    return {"v": 1, "seq": seq, "kind": kind, "attempt": 1, "at": "2026-03-01T22:00:00.000000Z",
            "placement": 2, "body": body}  # fmt: skip


def test_facts_of_a_journal() -> None:
    seen = with_journal(
        Observation(presence=Presence.ALIVE),
        [entry("Placed", 1, joined=["worker-0"]), entry("Released", 2, why="left"),
         entry("SomethingNewer", 3), entry("AttemptEnded", 4, ok=True)],
        placed={"slots": [0, 3]},
    )  # fmt: skip
    placed, ended = seen.facts
    assert (placed.kind, placed.body) == (
        Kind.PLACED, {"joined": ["worker-0"], "placement": 2, "slots": [0, 3]}
    )  # fmt: skip
    assert (ended.kind, ended.dedupe, ended.attempt) == (Kind.ATTEMPT_ENDED, "journal:2:4", 1)
    assert ended.source == {"agent": True, "placement": 2, "journal_seq": 4}
    assert ended.at == T0


def test_a_gang_says_why_and_when_it_has_left() -> None:
    """The last word counts: one that was refused its place has said so before."""
    gone = Observation(presence=Presence.GONE)
    early = {**entry("Released", 1, why="no place"), "at": "2026-03-01T21:00:00.000000Z"}
    last = entry("Released", 3, why="left")
    told = with_journal(gone, [early, entry("Placed", 2), last], placed={})
    assert (told.last_word, told.left_at) == ("left", T0)
    silent = with_journal(gone, [entry("Placed", 1)], placed={})
    assert (silent.last_word, silent.left_at) == (None, None)


def test_a_look_at_a_gang() -> None:
    silent = Observation(presence=Presence.UNKNOWN)
    assert (silent.gang_state, silent.attempt) == (None, 0)
    seen = Observation(presence=Presence.ALIVE, status={"state": "running", "attempt": 3})
    assert (seen.gang_state, seen.attempt) == ("running", 3)
    assert Observation(presence=Presence.ALIVE, status={"state": "x", "attempt": None}).attempt == 0


def candidate(step: int, problem: str | None = None, attempt: int | None = 1) -> Candidate:
    manifest = None if attempt is None else {"attempt": attempt}
    return Candidate(step=step, path=f"/c/{step}", manifest=manifest, problem=problem)


def test_the_newest_valid_checkpoint_is_chosen() -> None:
    torn, good, older = candidate(300, "torn"), candidate(200), candidate(100)
    choice = choose([torn, good, older])
    assert (choice.chosen, choice.refused) == (good, (torn,))
    assert choose([]).chosen is None
    assert choose([torn]).refused == (torn,)


def test_candidates_are_checked_only_as_far_as_needed() -> None:
    checked = []

    def candidates() -> Any:
        for step in (300, 200, 100):
            checked.append(step)
            yield candidate(step)

    assert choose(candidates()).chosen == candidate(300)
    assert checked == [300]


def test_a_fresh_start_passes_over_older_attempts() -> None:
    assert choose([candidate(300, attempt=2)], floor=2).chosen is None
    assert choose([candidate(300, attempt=2)], floor=2).refused == ()
    assert choose([candidate(300, attempt=3), candidate(200)], floor=2).chosen == candidate(
        300, attempt=3
    )
    foreign = candidate(300, attempt=None)
    assert choose([foreign], floor=2).chosen == foreign


@pytest.mark.parametrize(
    ("known", "step", "lost"),
    [(None, None, 0), (None, 100, 0), ({"step": 300}, None, 300), ({"step": 300}, 100, 200),
     ({"step": 300}, 300, 0), ({"step": 100}, 300, 0)],
)  # fmt: skip
def test_lost_work(known: Any, step: int | None, lost: int) -> None:
    assert lost_steps(known, None if step is None else candidate(step)) == lost


def test_a_row_of_a_new_job() -> None:
    row = summary(JobState(job_id=JOB), job())
    assert row == {
        "name": "bert-base", "namespace": "default", "team": "nlp", "project": "search",
        "phase": "None", "framework": "pytorch", "engine": "local", "owner": {}, "replicas": 2,
        "gpus": 0, "slots": 2, "placement": 0, "placed": False, "attempt": 0, "step": None,
        "checkpoint_step": None, "cpu_percent": None,
        "generations": {}, "model": None, "waiting": None, "warning": None, "reason": "",
        "submitted_at": None, "ended_at": None,
    }  # fmt: skip


def test_a_row_of_a_job_that_has_ended() -> None:
    story = ((Phase.SUBMITTED, T0), (Phase.SUCCEEDED, T0 + timedelta(seconds=90)))
    stores = {"corpus": {"generation": "g1"}, "code": {"generation": "g2"}}
    state = JobState(
        job_id=JOB, phase=Phase.SUCCEEDED, story=story, data={"stores": stores},
        checkpoint={"step": 400}, model={"name": "m", "version": 1}, step=400, attempt=2,
    )  # fmt: skip
    row = summary(state, TrainingJob.model_validate(
        job().document() | {"metadata": {"name": "bert-base"}}
    ))  # fmt: skip
    assert (row["team"], row["project"]) == ("none", "none")
    assert (row["generations"], row["checkpoint_step"]) == ({"corpus": "g1"}, 400)
    assert (row["submitted_at"], row["ended_at"]) == (
        "2026-03-01T22:00:00+00:00", "2026-03-01T22:01:30+00:00"
    )  # fmt: skip
    json.dumps(row)


LEAVES: list[errors.FfdlError] = [
    errors.UserError("no such thing"),
    errors.SpecError([errors.FieldProblem("spec.replicas", "0", "at least 1")], source="job.yaml"),
    errors.InfrastructureError("the disk is full", evidence="/state", next_step="make room"),
    errors.NotFoundError("there is no job x"),
    errors.AttemptFailed("killed", verdict={"class": "HOST_OOM"}),
    errors.TrainingFailed("killed", verdict={"class": "HOST_OOM"}, evidence="ffdl evidence x"),
    errors.JobStopped("stopped by ada"),
]
CODES = {"UserError": 2, "SpecError": 2, "InfrastructureError": 3, "NotFoundError": 4,
         "AttemptFailed": 1, "TrainingFailed": 1, "JobStopped": 1}  # fmt: skip


@pytest.mark.parametrize("error", LEAVES, ids=lambda error: type(error).__name__)
def test_every_error_answers_four_questions(error: errors.FfdlError) -> None:
    assert error.exit_code == CODES[type(error).__name__]
    assert error.fault in ("user", "infrastructure", "job")
    assert error.retryable is (type(error).__name__ in ("InfrastructureError", "AttemptFailed"))
    assert error.cause.rstrip(".") in str(error)
    assert f"Next: {error.next_step.rstrip('.')}" in str(error)
    assert (f"Evidence: {error.evidence}" in str(error)) is bool(error.evidence)


@pytest.mark.parametrize("error", LEAVES, ids=lambda error: type(error).__name__)
def test_errors_cross_processes(error: errors.FfdlError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


def test_an_error_of_our_own_asks_for_a_report() -> None:
    assert "report this" in str(errors.FfdlError("x"))
    assert errors.FfdlError("x").exit_code == 5


def test_a_generation_is_named_after_its_content() -> None:
    one = GenerationFile(key="a", size=3, sha256="0" * 64, version="1")
    two = GenerationFile(key="b\nc", size=1, sha256="1" * 64, version="1")
    name = generation_id([one, two])
    assert name == generation_id(iter([two, one]))
    assert (len(name), name == generation_id([one])) == (16, False)
    assert source_hash({"kind": "local", "path": "/d"}) == source_hash(
        {"path": "/d", "kind": "local"}
    )
    assert source_hash({"kind": "local", "path": "/e"}) != source_hash(
        {"kind": "local", "path": "/d"}
    )
    made = Generation(id=name, files=(one, two), source="folder /d", createdAt="now")
    assert made.size_bytes == 4
