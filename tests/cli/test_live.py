"""The commands on a job that runs: a second driver, save, logs, interrupts, stops."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.conftest import Ffdl

LONG = "--steps 100000 --every 50 --step-delay 0.01"


def started(ffdl: Ffdl, wait_until: Callable[..., Any], **spec: Any) -> tuple[Any, str]:
    """``ffdl run`` in a process of its own, and the id of its job, which is running."""
    process = ffdl.start("run", "-f", ffdl.manifest("long", args=LONG, **spec))
    assert process.stdout is not None
    job_id = process.stdout.readline().strip().removeprefix("job ")
    wait_until(lambda: (ffdl.job(job_id)["step"] or 0) > 0 or _running(ffdl, job_id))
    return process, job_id


def _running(ffdl: Ffdl, job_id: str) -> bool:
    return bool(ffdl.job(job_id)["phase"] == "Running")


def kinds(ffdl: Ffdl, job_id: str) -> list[str]:
    return [row["kind"] for row in ffdl("events", job_id, "-o", "json").json]


def test_a_running_job(ffdl: Ffdl, wait_until: Callable[..., Any]) -> None:
    process, job_id = started(ffdl, wait_until)
    second = ffdl("run", "--job", job_id)
    assert (second.code, second.out) == (2, "")
    assert "found another command line that drives it, allowed: one at a time" in second.err
    second = ffdl("run", "--job", job_id, "-f", ffdl.manifest("long", args="--steps 1"))
    assert second.code == 2
    assert "SpecChanged" not in kinds(ffdl, job_id), "the refused command has changed nothing"
    log = ffdl.home / "followed.log"
    with log.open("w") as file:
        following = ffdl.start("logs", job_id, "-f", stdout=file, stderr=subprocess.STDOUT)
        saved = ffdl("save", job_id)
        assert saved.code == 0, saved
        assert "a checkpoint was asked for" in saved.out
        wait_until(lambda: "CheckpointSealed" in kinds(ffdl, job_id))
        stopped, on = ffdl("stop", job_id), f"Next: `ffdl run --job {job_id}` goes on"
        assert (stopped.code, stopped.out) == (0, f"{job_id} Stopped: stop asked for. {on}\n")
        assert following.wait(30) == 0
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"ffdl: job {job_id} Stopped: stop asked for" in err
    assert f"{on}." in err
    assert log.read_text() == ffdl("logs", job_id).out
    story = ffdl("describe", job_id, "-o", "json").json
    assert story["attempts"][0]["cause"] == "stop asked for"
    told = kinds(ffdl, job_id)
    assert "CheckpointSealed" in told[told.index("StopWanted") :], "saved, then stopped"
    assert ffdl("reap", "-o", "json").json == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_the_gang_running(
    ffdl: Ffdl, wait_until: Callable[..., Any], number: signal.Signals, code: int
) -> None:
    process, job_id = started(ffdl, wait_until)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert f"a running gang goes on, `ffdl run --job {job_id}` follows it" in err
    assert f"`ffdl stop {job_id}` ends it" in err
    assert "Traceback" not in err
    assert _running(ffdl, job_id)
    stopped = ffdl("stop", job_id, "--now", "-o", "json")
    assert (stopped.code, stopped.json["phase"]) == (0, "Stopped")
    assert ffdl.job(job_id)["phase"] == "Stopped"


def test_a_job_that_waits_for_slots_says_so(ffdl: Ffdl, wait_until: Callable[..., Any]) -> None:
    process, job_id = started(ffdl, wait_until, replicas=3)
    waiting = ffdl.start("run", "-f", ffdl.manifest("count"), stderr=subprocess.STDOUT)
    assert waiting.stdout is not None
    second = waiting.stdout.readline().strip().removeprefix("job ")
    reason = wait_until(lambda: ffdl.job(second)["reason"])
    assert "2 slots" in reason
    assert job_id in reason
    assert ffdl("stop", job_id, "--now").code == 0
    out, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, out
    process.communicate(timeout=60)
