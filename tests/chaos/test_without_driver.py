"""The driver is killed: a training job goes on and ends, a waiting gang leaves with its hold."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from installation import Installation, job_id_of, show

from ffdl_airflow.core.accounting import Use, cost
from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.goal import Goal
from tests.trainers.counting import weights_after

ALONE_S = 3.0
"""Without anybody who drives, after the end. Chosen."""


def test_the_job_ends_without_a_driver_and_the_next_one_tells_its_times(
    installation: Installation, wait_until: Callable[..., Any]
) -> None:
    options = {"steps": 40, "every": 10, "step-delay": 0.05}
    manifest = installation.manifest("alone", replicas=2, options=options)
    process = installation.start("run", "-f", manifest)
    job_id = job_id_of(process)
    wait_until(lambda: installation.events(job_id, Kind.RUNNING), message="running")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not installation.processes(), message="the gang has ended")
    assert installation.deps().engine.capacity().free == installation.settings.slots
    seen = len(installation.events(job_id))
    time.sleep(ALONE_S)
    done = installation.run("run", "--job", job_id)
    events = installation.events(job_id)
    assert done.returncode == 0, done.stdout + show(events)
    (ended,) = [event for event in events if event.kind is Kind.ATTEMPT_ENDED]
    assert ended.seq > seen
    assert ended.body["ok"]
    assert ended.at < ended.recorded_at
    trained = next(event for event in events if event.kind is Kind.TRAINED)
    (running,) = [event for event in events if event.kind is Kind.RUNNING]
    length = (ended.at - running.at).total_seconds()
    assert 40 * 0.05 <= length <= (trained.at - running.at).total_seconds(), show(events)
    released = next(event for event in events if event.kind is Kind.RELEASED)
    assert (released.recorded_at - released.at).total_seconds() > ALONE_S, "it had left long before"
    spent = cost(events, now=events[-1].at, slots=2)
    assert spent.by_use[Use.STOPPING] < 2 * ALONE_S, "what has left costs nothing"
    assert {step for _, step in installation.steps(job_id)} == set(range(1, 41))
    assert installation.weights(job_id) == weights_after(40)


def test_a_gang_that_waits_leaves_when_the_hold_ends(
    installation: Installation, wait_until: Callable[..., Any]
) -> None:
    manifest = installation.manifest(
        "hold", replicas=2, options={"steps": 10, "every": 5}, reservation={"hold": 3}
    )
    done = installation.run("run", "-f", manifest, "--until", "reserve")
    assert done.returncode == 0, done.stdout
    (job_id,) = installation.jobs()
    assert len(installation.agents(job_id)) == 2
    wait_until(lambda: not installation.processes(), timeout=30, message="the gang has left")
    state = installation.drive(job_id, Goal.REGISTER)
    events = installation.events(job_id)
    assert state.phase == "Succeeded", show(events)
    (expired,) = [event for event in events if event.kind is Kind.HOLD_EXPIRED]
    (first, second) = [event for event in events if event.kind is Kind.PLACED]
    assert first.at < expired.at < second.at
    assert installation.weights(job_id) == weights_after(10)


def test_a_killed_driver_leaves_a_job_that_can_be_looked_at(
    installation: Installation, wait_until: Callable[..., Any]
) -> None:
    options = {"steps": 400, "every": 10, "step-delay": 0.05}
    manifest = installation.manifest("look", replicas=1, options=options)
    process = installation.start("run", "-f", manifest)
    job_id = job_id_of(process)
    wait_until(lambda: installation.events(job_id, Kind.CHECKPOINT_SEALED), message="a checkpoint")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    shown = installation.run("get", job_id, "-o", "wide")
    assert "Running" in shown.stdout
    stopped = installation.run("stop", job_id)
    assert stopped.returncode == 0, stopped.stdout
    assert "Stopped" in stopped.stdout
    assert installation.processes() == []
    last = installation.events(job_id, Kind.CHECKPOINT_SEALED)[-1]
    ended = installation.events(job_id, Kind.ATTEMPT_ENDED)[-1]
    assert last.body["step"] == ended.body["last_step"], show(installation.events(job_id))
