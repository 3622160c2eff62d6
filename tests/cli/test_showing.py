"""How things are shown: tables on a terminal, plain columns elsewhere, events in words."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console

from ffdl_airflow import console, report
from ffdl_airflow.core.events import Kind, NewEvent, recorded
from ffdl_airflow.core.lifecycle import JobState, Phase
from ffdl_airflow.ledger.base import JobRow
from ffdl_airflow.stages.advance import Waits
from ffdl_airflow.stages.deps import Wait
from ffdl_airflow.testing.builders import T0, LogBuilder

JOB = "bert-base-0123456789"


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


ROWS = [{"job": "a", "phase": "Running", "step": 0, "reason": "first\nsecond  third"},
        {"job": "long-name", "phase": "Failed", "step": None, "reason": ""}]  # fmt: skip


def test_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_rows(ROWS, output="table", columns=("job", "phase", "step", "reason"))
    assert capsys.readouterr().out == (
        "JOB        PHASE    STEP  REASON\n"
        "a          Running  0     first second third\n"
        "long-name  Failed   -     -\n"
    )  # fmt: skip


def test_nothing_is_cut_off_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_rows([{"text": "x" * 5000}], output="table", columns=("text",))
    assert "x" * 5000 in capsys.readouterr().out


def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    console.print_rows([{"job": "[red]a[/red]"}], output="table", columns=("job",))
    assert "[red]a[/red]" in screen.getvalue(), "texts of users are no markup"


def on_screen(rows: list[Any], *, width: int, columns: tuple[str, ...]) -> list[str]:
    out = io.StringIO()
    screen = Console(file=out, width=width, force_terminal=True, color_system=None)
    console.print_rows(rows, output="table", columns=columns, screen=screen)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_a_narrow_terminal_loses_no_identity(width: int) -> None:
    """JOB, PHASE, KIND, SEQ and AT stay whole; a reason and a text are shortened."""
    text, sha = "rank 1 of worker-1 ended with exit code 3 " * 5, "0123456789abcdef" * 4
    job = {"job": "digits-0a1b2c3d4e", "phase": "Prefetching", "replicas/gpus": "2/0",
           "step": 100000, "duration": "12m30s", "reason": text}  # fmt: skip
    head, line = on_screen([job], width=width, columns=tuple(job))
    assert line.split()[:5] == [job["job"], "Prefetching", "2/0", "100000", "12m30s"]
    assert head.split()[-1] == "REASON"
    event = {"seq": 12345, "at": "2026-03-01T22:00:00.123456+00:00", "kind": "CheckpointRefused",
             "attempt": 12, "text": text}  # fmt: skip
    _, told = on_screen([event], width=width, columns=tuple(event))
    assert told.split()[:4] == ["12345", "2026-03-01T22:00:00Z", "CheckpointRefused", "12"]
    model = {"name": "digits", "version": 3, "sha256": sha, "job": job["job"], "attempts": 1}
    _, version = on_screen([model], width=width, columns=tuple(model))
    assert version.split() == ["digits", "3", sha[:12], job["job"], "1"]
    for shown in (line, told):
        assert len(shown) <= width
        assert shown.endswith("…")


def test_what_does_not_fit_goes_on_below() -> None:
    row = {"job": "j" * 40, "phase": "Succeeded", "sha256": "f" * 64, "model": "m" * 60}
    (_, line) = on_screen([row], width=60, columns=tuple(row))
    assert line.split() == ["j" * 40, "Succeeded", "f" * 12, "m" * 9 + "…"]


def waits(phase: Phase, status: dict[str, Any] | None = None, *, seconds: float = 1) -> Waits:
    story = ((Phase.SUBMITTED, T0), (phase, T0 + timedelta(seconds=seconds)))
    state = JobState(job_id=JOB, phase=phase, story=story, attempt=2)
    return Waits(state, Wait(what="the gang, running", at_most_s=1, status=status))


def test_progress_in_plain_lines() -> None:
    out = io.StringIO()
    with console.ProgressDisplay(out) as display:
        running = waits(Phase.RUNNING, {"step": 7, "metrics": {"loss": 0.25, "note": "x"}})
        display.waits(running)
        display.waits(running)
        display.phases(running.state)
    assert out.getvalue() == (
        "22:00:00  +   0.00s  Submitted\n"
        "22:00:01  +   1.00s  Running\n"
        "          attempt 2, step 7 loss 0.25\n"
    )


def test_why_an_attempt_has_ended_is_said_once() -> None:
    """And not again by who begins to follow later, nor of a job that is over: its end says it."""
    out, lost = io.StringIO(), "rank 1 of worker-1 was killed by signal 9"
    running = waits(Phase.RUNNING).state
    with console.ProgressDisplay(out) as display:
        display.phases(running)
        again = (*running.story, (Phase.STOPPING, T0 + timedelta(seconds=2)))
        for _ in range(2):
            display.phases(replace(running, story=again, reason=lost))
        failed = (*again, (Phase.FAILED, T0 + timedelta(seconds=3)))
        display.phases(replace(running, phase=Phase.FAILED, story=failed, reason="no more tries"))
    assert out.getvalue().splitlines()[2:] == [
        f"          {lost}",
        "22:00:02  +   2.00s  Stopping",
        "22:00:03  +   3.00s  Failed",
    ]
    late = io.StringIO()
    console.ProgressDisplay(late).phases(replace(running, reason=lost))
    assert lost not in late.getvalue()


def test_what_is_waited_for_is_said_where_there_is_no_step() -> None:
    out = io.StringIO()
    console.ProgressDisplay(out).waits(waits(Phase.RESERVING, {"step": None}))
    assert out.getvalue().endswith("          the gang, running\n")


def test_progress_on_a_terminal() -> None:
    screen = Terminal()
    with console.ProgressDisplay(screen) as display:
        display.waits(waits(Phase.RUNNING, {"step": 7}))
        before = len(screen.getvalue())
        ended = ((Phase.SUBMITTED, T0), (Phase.RUNNING, T0), (Phase.SUCCEEDED, T0))
        display.phases(JobState(job_id=JOB, phase=Phase.SUCCEEDED, story=ended))
    assert "Running" in screen.getvalue()
    assert "Succeeded" in screen.getvalue()[before:]
    assert "step" not in screen.getvalue()[before:].split("Succeeded")[1], "no line after the end"


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], None), ([{"gpu_percent": 50, "cpu_percent": 9}, {"gpu_percent": 70}], "GPU 60%"),
     ([{"gpu_percent": None, "cpu_percent": 9.6}], "CPU 10%"), ([{}], None)],
)  # fmt: skip
def test_utilization(ranks: list[Any], text: str | None) -> None:
    assert report.utilization({"ranks": ranks}) == text
    assert report.utilization(None) is None


def test_utilization_of_what_has_ended() -> None:
    """The mean over its attempts; while it runs the newest sample of the ranks that are there."""
    ran, gone = {"state": "running", "cpu_percent": 95.0}, {"state": "exited", "cpu_percent": 0.0}
    summary = {"phase": "Succeeded", "name": "n", "replicas": 2, "gpus": 0, "cpu_percent": 61.4,
               "submitted_at": T0.isoformat(), "ended_at": T0.isoformat()}  # fmt: skip
    row = JobRow(job_id=JOB, seq=1, phase="Succeeded", created_at=T0, updated_at=T0,
                 summary=summary, status={"ranks": [gone]})  # fmt: skip
    assert report.job_row(row, T0)["utilization"] == "CPU 61%"
    never = replace(row, summary=summary | {"cpu_percent": None})
    assert report.job_row(never, T0)["utilization"] is None
    running = replace(row, phase="Running", status={"ranks": [ran, gone]})
    assert report.job_row(running, T0)["utilization"] == "CPU 95%"


def test_no_line_of_an_attempt_that_has_ended() -> None:
    out = io.StringIO()
    console.ProgressDisplay(out).waits(waits(Phase.STOPPING, {"step": 7}))
    assert out.getvalue().endswith("          the gang, running\n")


def test_a_row_of_a_job_that_goes_on() -> None:
    summary = {
        "submitted_at": T0.isoformat(), "ended_at": None, "name": "bert", "phase": "Reserving",
        "replicas": 2, "gpus": 4, "waiting": "2 slots are needed",
    }  # fmt: skip
    row = JobRow(
        job_id=JOB, seq=1, phase="Reserving", created_at=T0, updated_at=T0, summary=summary
    )
    shown = report.job_row(row, T0 + timedelta(seconds=90))
    assert (shown["duration"], shown["replicas/gpus"]) == ("1m30s", "2/4")
    assert (shown["reason"], shown["model"], shown["generation"]) == (
        "2 slots are needed",
        None,
        "",
    )


def test_what_a_prefetch_has_moved() -> None:
    assert console.moved_text({"objects": 3, "bytes": 2048, "moved_bytes": 0}) == (
        "3 files, 2.0 KiB, 0 bytes moved"
    )


TOLD: list[tuple[Kind, dict[str, Any], str]] = [
    (Kind.SUBMITTED, {"owner": {"key": "command line", "user": "ada"}, "spec": {"a": 1}},
     "by command line, ada"),
    (Kind.VALIDATED, {"replicas": 1, "gpus": 2, "time_limit_s": 3600},
     "1 replica, 2 GPUs, 1h00m of running at most"),
    (Kind.VALIDATED, {"replicas": 2, "gpus": 1, "time_limit_s": None}, "2 replicas, 1 GPU"),
    (Kind.VALIDATED, {"replicas": 1, "gpus": 0, "warnings": ["w"]}, "1 replica, 0 GPUs, w"),
    (Kind.REFUSED, {"reason": "replicas: found 9", "problems": ["x"]}, "replicas: found 9"),
    (Kind.MOVER_INTENDED, {}, ""),
    (Kind.PREFETCH_STARTED, {"sources": {"corpus": {"kind": "local", "path": "/c"}}},
     "corpus from /c"),
    (Kind.PREFETCH_FAILED, {"store": "corpus", "text": "the source has changed", "found": "x"},
     "the source has changed"),
    (Kind.DATA_READY, {"stores": {"corpus": {"generation": "g1", "moved_bytes": 2048}}},
     "corpus is generation g1 (2.0 KiB moved)"),
    (Kind.RESERVE_INTENDED, {"placement": 3}, "placement 3"),
    (Kind.WAITING, {"placement": 3, "reason": "2 slots are needed"}, "2 slots are needed"),
    (Kind.PLACED, {"placement": 3, "joined": ["worker-0"], "slots": [0, 2]}, "slots 0 2"),
    (Kind.RESERVED, {"hold_s": 600}, "held for 10m00s"),
    (Kind.HOLD_EXPIRED, {"held_s": 600.2}, "after 10m00s"),
    (Kind.GO_INTENDED, {"attempt": 1, "resume": None}, "from nothing"),
    (Kind.GO_INTENDED, {"attempt": 2, "resume": {"step": 100, "path": "/c"}},
     "from the checkpoint of step 100"),
    (Kind.RUNNING, {"started_at": "now"}, ""),
    (Kind.RUNNING, {"tuned": [{"name": "OMP_NUM_THREADS", "value": "2"}]}, "OMP_NUM_THREADS=2"),
    (Kind.PROGRESS_SUMMARY, {"step": 150, "loss": 0.123456}, "step 150, loss 0.1235"),
    (Kind.PROGRESS_SUMMARY, {"step": 150, "metrics": {"loss": 2, "x": "y"}}, "step 150, loss 2"),
    (Kind.CHECKPOINT_SEALED, {"step": 100, "bytes": 2**20, "seconds": 1.25},
     "step 100, 1.0 MiB in 1.2s"),
    (Kind.CHECKPOINT_SEALED, {"step": 100}, "step 100, 0 B"),
    (Kind.CHECKPOINT_REFUSED, {"step": 100, "reason": "torn", "chosen": {"step": 50},
                               "lost_steps": 50}, "step 100: torn, step 50 is used, 50 steps lost"),
    (Kind.CHECKPOINT_REFUSED, {"step": 1, "reason": "torn", "chosen": None, "lost_steps": 1},
     "step 1: torn, nothing older is left, 1 step lost"),
    (Kind.CHECKPOINT_REFUSED, {"step": 1, "reason": "no manifest"}, "step 1: no manifest"),
    (Kind.RANK_EXITED, {"rank": 1, "replica": "worker-1", "exit": 3, "signal": None},
     "rank 1 of worker-1: exit code 3"),
    (Kind.RANK_EXITED, {"rank": None, "replica": "ps-0", "exit": 3, "signal": None},
     "ps-0: exit code 3"),
    (Kind.RANK_EXITED, {"rank": 1, "replica": "worker-1", "exit": None, "signal": 9},
     "rank 1 of worker-1: signal 9"),
    (Kind.ATTEMPT_ENDED, {"ok": True, "last_step": 200, "tail": "x"}, "well after step 200"),
    (Kind.ATTEMPT_ENDED, {"ok": False, "cause": {"text": "killed"}, "last_step": None}, "killed"),
    (Kind.ATTEMPT_ENDED, {"ok": False}, "failed"),
    (Kind.VERDICT, {"class": "HANG", "cause": "no step for 600 s", "certain": False},
     "HANG: no step for 600 s"),
    (Kind.RESTART_DECIDED, {"reason": "HANG: 1 of 3", "delay_s": 0.0, "to": "Reserved"},
     "HANG: 1 of 3, again at once, on the same placement"),
    (Kind.RESTART_DECIDED, {"reason": "x", "delay_s": 4.25, "to": "Reserving"},
     "x, again in 4.2s, on a new placement"),
    (Kind.RESTART_DECIDED, {"reason": "x", "delay_s": None, "to": None}, "x, again at once"),
    (Kind.WATCHDOG_WARNED, {"text": "idle"}, "idle"),
    (Kind.WATCHDOG_RECOVERED, {"text": "busy again"}, "busy again"),
    (Kind.DEADLINE_MISSED, {"reason": "late", "action": "stop", "limit_s": 5}, "late, stop"),
    (Kind.PLACED, {"nodes": {"worker-0": "a", "worker-1": "b"}}, "worker-0 on a, worker-1 on b"),
    (Kind.REPLICA_LOST, {"replica": "worker-1", "node": "b", "what": "evicted",
                         "message": "the node was low on memory"},
     "worker-1 on b: evicted, the node was low on memory"),
    (Kind.SAVE_REQUESTED, {"why": "asked for", "placement": 1}, "asked for"),
    (Kind.END_INTENDED, {"why": "enough", "mode": "save"}, "enough, save"),
    (Kind.STOPPED, {"reason": "enough", "by": "ada"}, "enough, ada"),
    (Kind.TRAINED, {"step": 200}, "step 200"),
    (Kind.MODEL_REGISTERED, {"name": "bert", "version": 2, "sha256": "ab", "metrics": {}},
     "bert version 2, sha256 ab"),
    (Kind.RELEASED, {"why": "the gang has ended well", "killed": 0}, "the gang has ended well"),
    (Kind.RELEASED, {"why": "stop", "killed": 2}, "stop, 2 processes had to be killed"),
    (Kind.SUCCEEDED, {}, ""),
    (Kind.FAILED, {"reason": "killed", "class": "HANG"}, "killed"),
    (Kind.ADOPTED, {"placement": 1, "attempt": 2}, "by host lab-1, pid 7"),
    (Kind.SPEC_CHANGED, {"spec": {}, "spec_sha256": "x"}, ""),
    (Kind.STOP_WANTED, {"why": "enough", "mode": "save", "by": "ada"}, "enough, save, ada"),
    (Kind.SAVE_WANTED, {"by": "ada"}, "ada"),
    (Kind.CLEARED, {"task": "launch", "mode": "resume", "to": "DataReady"},
     "launch, resume, back to DataReady"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "body", "text"), TOLD, ids=[f"{t[0]}-{t[2]:.20}" for t in TOLD])
def test_events_in_words(kind: Kind, body: dict[str, Any], text: str) -> None:
    source = {"pid": 7, "host": "lab-1"}
    event = recorded(JOB, 1, NewEvent(kind=kind, at=T0, body=body, source=source), recorded_at=T0)
    assert report.event_text(event) == text


def test_every_kind_has_been_told() -> None:
    untold = {Kind.REGISTER_INTENDED, Kind.RESIZE_WANTED}
    assert {kind for kind, _, _ in TOLD} == set(Kind) - untold


def test_a_story_that_goes_on() -> None:
    log = LogBuilder()
    log.add(Kind.VALIDATED, 2)
    story = report.describe(log.job_id, log.events, now=T0 + timedelta(seconds=10))
    assert [(phase["phase"], phase["seconds"]) for phase in story["phases"]] == [
        ("Submitted", 2.0), ("Validated", 8.0),
    ]  # fmt: skip
    assert (story["attempts"], story["model"], story["reason"]) == ([], None, None)
    assert story["slot_seconds"]["total"] == 0


def test_evidence_without_a_rank() -> None:
    verdict = {"class": "HANG", "cause": "no step", "next_step": "look", "costs": False}
    document = {"attempt": 2, "verdict": verdict, "tails": {}, "folder": "/e"}
    assert report.evidence_text(document) == (
        "attempt 2: HANG, costs nothing\ncause: no step\nnext:  look\nkept:  /e"
    )


def test_a_job_that_has_succeeded_has_no_reason() -> None:
    log = LogBuilder(model=None)
    for kind in (Kind.VALIDATED, Kind.MOVER_INTENDED):
        log.add(kind, 1)
    log.add(Kind.DATA_READY, 2, stores={})
    log.add(Kind.RESERVE_INTENDED, 3, placement=1)
    log.add(Kind.RESERVED, 4)
    log.add(Kind.GO_INTENDED, 5, attempt=1, placement=1)
    log.add(Kind.ATTEMPT_ENDED, 6, 1, ok=False, cause={"text": "killed"})
    log.add(Kind.VERDICT, 6, 1, cause="killed", **{"class": "HANG"})
    log.add(Kind.RESTART_DECIDED, 6, to="Reserved", costs=True)
    log.add(Kind.GO_INTENDED, 7, attempt=2, placement=1)
    log.add(Kind.ATTEMPT_ENDED, 8, 2, ok=True)
    for kind in (Kind.TRAINED, Kind.SUCCEEDED):
        log.add(kind, 9)
    told = report.describe(log.job_id, log.events, now=T0)
    assert (told["phase"], told["reason"], len(told["attempts"])) == ("Succeeded", None, 2)
