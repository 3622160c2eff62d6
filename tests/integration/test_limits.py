"""Every limit that a user can set in Airflow, on a job that would go on for ever."""

from __future__ import annotations

import pytest

from ffdl_airflow.core.events import Kind
from ffdl_airflow.testing.airflow_server import Run
from tests.conftest import wait_for
from tests.integration.conftest import World

TASK_LIMITS = ("task_timeout", "task_timeout_blocking", "backstop")
DAGS = (*TASK_LIMITS, "run_timeout", "deadline_stops")


@pytest.fixture(scope="module")
def runs(world: World) -> dict[str, Run]:
    """All of them at once, so that their limits run out side by side."""
    return {dag: world.start(dag, name=dag.replace("_", "-"), delay="0.2", steps=3000)
            for dag in DAGS}  # fmt: skip


def ended(world: World, run: Run) -> str:
    state = run.wait()
    wait_for(lambda: not world.ranks_alive(run), message=lambda: world.log(run))
    wait_for(lambda: world.state(run).terminal, message=lambda: world.log(run))
    return state


@pytest.mark.parametrize("dag", TASK_LIMITS)
def test_execution_timeout_stops_the_job_after_a_save(
    world: World, runs: dict[str, Run], dag: str
) -> None:
    """Also while the task is deferred, where Airflow itself does not keep it."""
    run = runs[dag]
    assert ended(world, run) == "failed", run.story()
    task = run.tasks()["train"]
    assert task["try_number"] == 1
    told = run.log("train", 1)
    assert "execution_timeout" in told
    state = world.state(run)
    assert state.phase == "Stopped"
    assert state.checkpoint
    assert f"step {state.checkpoint['step']}" in told
    (wish,) = [e for e in world.events(run, Kind.STOP_WANTED) if e.body["mode"] == "save"]
    assert "execution_timeout" in wish.body["why"]


def test_a_run_timeout_ends_the_gang(world: World, runs: dict[str, Run]) -> None:
    """Airflow skips the teardown then; the trigger's on_kill and the listener do it."""
    run = runs["run_timeout"]
    assert ended(world, run) == "failed", run.story()
    assert run.states()["train.launch"] == "skipped"
    assert world.state(run).phase == "Stopped"


def test_a_deadline_alert_that_stops(world: World, runs: dict[str, Run]) -> None:
    run = runs["deadline_stops"]
    assert ended(world, run) == "failed", run.story()
    (missed,) = world.events(run, Kind.DEADLINE_MISSED)
    assert missed.body["action"] == "stop"
    assert world.state(run).phase == "Stopped"
    assert "deadline" in world.state(run).reason


def test_a_deadline_alert_that_only_tells(world: World) -> None:
    run = world.start("deadline_reports", name="deadline-reports", delay="0.3", steps=60)
    world.wait_training(run)
    (missed,) = wait_for(lambda: world.events(run, Kind.DEADLINE_MISSED), message=run.story)
    assert missed.body["action"] == "report"
    assert run.wait() == "success", run.story()
    world.require_right_model(run, steps=60)
    assert "DeadlineMissed" in run.log("train", 1)
