"""A part of Airflow dies or freezes while a job trains: it ends once, with the right weights."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import psutil
import pytest

from ffdl_airflow.core.events import Kind
from ffdl_airflow.testing.airflow_server import Run
from tests.conftest import wait_for
from tests.integration.conftest import World

FROZEN_S = 35.0
"""Longer than Airflow waits for a triggerer's heartbeat (30 s) before another one takes over."""


@pytest.fixture(scope="module")
def world(make_world: Callable[..., World]) -> World:
    return make_world(triggerers=2)


def require_one_good_end(world: World, run: Run, *, steps: int) -> None:
    assert run.wait(timeout=300) == "success", run.story() + world.log(run)
    world.require_right_model(run, steps=steps)
    world.require_no_overlap(run)
    assert len(world.events(run, Kind.MODEL_REGISTERED)) == 1
    assert len(world.events(run, Kind.SUCCEEDED)) == 1
    assert not world.events(run, Kind.STOP_WANTED), world.log(run)


def task_processes(run: Run) -> dict[str, psutil.Process]:
    """The process that runs the task's code, and its supervisor."""
    pid = run.wait_task("train", "running")["pid"]
    worker = psutil.Process(pid)
    return {"worker": worker, "supervisor": worker.parent()}


@pytest.mark.parametrize("part", ["worker", "supervisor"])
def test_a_workers_process_is_killed(world: World, part: str) -> None:
    """While the task blocks on a worker; the next try takes the living gang up."""
    run = world.start("blocking", name=f"{part}-killed", delay="0.2", steps=200)
    world.wait_training(run)
    task_processes(run)[part].send_signal(signal.SIGKILL)
    require_one_good_end(world, run, steps=200)
    assert run.tasks()["train"]["try_number"] == 2
    assert len(world.events(run, Kind.GO_INTENDED)) == 1
    assert world.events(run, Kind.ADOPTED)


def test_the_scheduler_is_killed(world: World) -> None:
    run = world.start("group", name="scheduler-killed", delay="0.2", steps=200)
    world.wait_training(run)
    world.server.stop_component("scheduler", how=signal.SIGKILL)
    world.server.start_component("scheduler")
    require_one_good_end(world, run, steps=200)
    assert len(world.events(run, Kind.GO_INTENDED)) == 1


def test_all_triggerers_are_killed_and_one_comes_back(world: World) -> None:
    run = world.start("group", name="triggerer-killed", delay="0.2", steps=200)
    world.wait_training(run)
    run.wait_task("train.launch", "deferred")
    for name in ("triggerer-0", "triggerer-1"):
        world.server.stop_component(name, how=signal.SIGKILL)
    world.server.start_component("triggerer-0")
    require_one_good_end(world, run, steps=200)
    assert len(world.events(run, Kind.GO_INTENDED)) == 1
    world.server.start_component("triggerer-1")


def test_a_task_is_marked_while_no_triggerer_lives(world: World) -> None:
    """No on_kill is ever called then: the process in which the person's wish arrives does it."""
    run = world.start("operator", name="no-triggerer", delay="0.2", steps=2000)
    world.wait_training(run)
    run.wait_task("train", "deferred")
    for name in ("triggerer-0", "triggerer-1"):
        world.server.stop_component(name, how=signal.SIGKILL)
    at = time.time()
    run.mark("train", "failed")
    world.wait_gone(run, since=at)
    wait_for(lambda: world.state(run).phase == "Stopped", message=lambda: world.log(run))
    for name in ("triggerer-0", "triggerer-1"):
        world.server.start_component(name)
    world.server.wait_healthy()


def test_one_of_two_triggerers_freezes(world: World) -> None:
    """Airflow calls its on_kill for what the other one has taken over: no job is killed."""
    run = world.start("operator", name="frozen", delay="0.3", steps=300)
    world.wait_training(run)
    name = wait_for(lambda: triggerer_of(world, run), message=run.story)
    world.server.freeze(name)
    time.sleep(FROZEN_S)  # what is tested is this time
    world.server.thaw(name)
    wait_for(lambda: "goes on: its task is deferred" in run.log("train", 1), timeout=90,
             message=lambda: run.log("train", 1))  # fmt: skip
    require_one_good_end(world, run, steps=300)
    assert run.tasks()["train"]["try_number"] == 1
    assert len(world.events(run, Kind.GO_INTENDED)) == 1


def triggerer_of(world: World, run: Run) -> str | None:
    """Which triggerer has the run's trigger: the one that has its log open."""
    for name in ("triggerer-0", "triggerer-1"):
        head = psutil.Process(world.server.components[name].pid)
        for process in (head, *head.children(recursive=True)):
            files = [file.path for file in process.open_files()]
            if any(f"run_id={run.run_id}" in path for path in files):
                return name
    return None
