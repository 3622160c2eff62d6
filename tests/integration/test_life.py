"""What a user does with a running job in a real Airflow: watch, mark, clear, wait; over REST."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest

from ffdl_airflow.core.events import Kind
from ffdl_airflow.testing.airflow_server import Run
from tests.conftest import wait_for
from tests.integration.conftest import World, now

PATIENCE_S = 3.0
"""What docs/airflow.md says of stages that do not defer."""
STAGES = ("prefetch", "reserve", "launch", "release", "register")


def test_one_task_runs_a_whole_job_and_waits_deferred(world: World) -> None:
    run = world.start("operator", name="whole", delay="0.1", steps=30)
    world.wait_training(run)
    assert run.wait_task("train", "deferred")
    job_id = run.xcom("train", "ffdl_job_id")
    assert job_id == world.row(run).job_id
    links = world.server.call("GET", f"{run.path}/taskInstances/train/links")["extra_links"]
    assert any(str(link).endswith(f"/ffdl/jobs/{job_id}") for link in links.values()), links
    assert run.wait() == "success", run.story()
    result = run.xcom("train")
    assert result["phase"] == "Succeeded"
    assert result["model"]["version"] == 1
    assert result["checkpoint"]["step"] == 30
    assert run.tasks()["train"]["try_number"] == 1
    world.require_right_model(run, steps=30)
    told = run.log("train", 1)
    for kind in ("Reserved", "Running", "CheckpointSealed", "ModelRegistered"):
        assert kind in told, told
    assert deferrals(run, "train") == 1


def deferrals(run: Run, task: str) -> int:
    """How often the first try of a task has deferred: it says so each time."""
    found = re.findall(r"job \S+ waits: ", run.log(task, 1))
    return len(found)


def test_a_group_shows_one_task_for_each_stage(world: World) -> None:
    run = world.start("group", name="staged", delay="0.1", steps=30)
    world.wait_training(run)
    states = run.states()
    assert states["train.launch"] == "deferred"
    assert states["train.reserve"] == states["train.prefetch"] == "success"
    assert states["train.register"] is None
    assert run.wait() == "success", run.story()
    assert {run.states()[f"train.{stage}"] for stage in STAGES} == {"success"}
    world.require_right_model(run, steps=30)
    assert len(world.events(run, Kind.RESERVE_INTENDED)) == 1
    counted = {stage: deferrals(run, f"train.{stage}") for stage in STAGES}
    assert counted.pop("launch") == 1
    took = {stage: _seconds(run.tasks()[f"train.{stage}"]) for stage in counted}
    assert {stage for stage, count in counted.items() if count} <= {
        stage for stage, seconds in took.items() if seconds > PATIENCE_S
    }, f"what ends soon does not defer: {counted}, {took}"
    assert not all(counted.values()), counted


def _seconds(task: Mapping[str, Any]) -> float:
    began, ended = (datetime.fromisoformat(task[key]) for key in ("start_date", "end_date"))
    return (ended - began).total_seconds()


def test_a_registered_model_starts_the_dag_that_waits_for_it(world: World) -> None:
    server = world.server
    server.call("PATCH", "/dags/evaluate", json={"is_paused": False})
    run = world.start("operator", name="asset-model")
    assert run.wait() == "success", run.story()

    def evaluated() -> list[str]:
        found = server.call("GET", "/dags/evaluate/dagRuns")["dag_runs"]
        return [one["dag_run_id"] for one in found if one["state"] == "success"]

    (after,) = wait_for(evaluated, timeout=120, message="the DAG evaluate")
    path = f"/dags/evaluate/dagRuns/{after}/taskInstances/look/xcomEntries/return_value"
    extra = server.call("GET", path, params={"deserialize": True})["value"]
    assert run.xcom("train")["model"]["sha256"] in str(extra)


@pytest.mark.parametrize("state", ["failed", "success"])
@pytest.mark.parametrize(("dag", "task"), [("operator", "train"), ("group", "train.launch")])
def test_a_task_that_is_marked_stops_its_ranks(
    world: World, dag: str, task: str, state: str
) -> None:
    run = world.start(dag, name=f"marked-{state}", delay="0.2", steps=1000)
    world.wait_training(run)
    run.wait_task(task, "deferred")
    at = now()
    run.mark(task, state)
    world.wait_gone(run, since=at)
    final = wait_for(lambda: world.state(run).terminal and world.state(run))
    assert final.phase == "Stopped"
    assert f"marked {state}" in final.reason
    if dag == "group":
        assert run.wait() == "failed", run.story()
        if state == "success":  # register says why there is no model
            assert "Stopped" in run.log("train.register", 1)


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_run_that_is_marked_stops_its_ranks(world: World, state: str) -> None:
    run = world.start("group", name=f"run-{state}", delay="0.2", steps=1000)
    world.wait_training(run)
    run.wait_task("train.launch", "deferred")
    at = now()
    run.mark_run(state)
    world.wait_gone(run, since=at)
    final = wait_for(lambda: world.state(run).terminal and world.state(run))
    assert final.phase == "Stopped"


@pytest.mark.parametrize(("dag", "task"), [("operator", "train"), ("group", "train.launch")])
def test_a_cleared_task_goes_on_from_the_checkpoint(world: World, dag: str, task: str) -> None:
    run = world.start(dag, name="cleared", delay="0.15", steps=60)
    world.wait_training(run)
    run.wait_task(task, "deferred")
    at = now()
    cleared = run.clear(task)
    expected = {"operator": ["train"], "group": ["train.launch", "train.release", "train.reserve"]}
    assert cleared == expected[dag]
    world.wait_training(run, attempt=2, step=12)
    assert run.wait() == "success", run.story()
    first = [life for life in world.lives(run) if life.attempt == 1]
    assert all(life.last - at < 10 for life in first), (at, first)
    world.require_no_overlap(run)
    world.require_right_model(run, steps=60)
    gone = [event.body["resume"] for event in world.events(run, Kind.GO_INTENDED)]
    assert len(gone) == 2
    assert gone[1]["step"] >= 5
    (clear, *more) = world.events(run, Kind.CLEARED)
    assert clear.body["task"] == ("train" if dag == "operator" else "train.reserve")
    assert not more
    assert world.state(run).phase == "Succeeded"


def test_a_finished_group_is_cleared_stage_by_stage(world: World) -> None:
    """Register alone touches nothing else. All of it counts as one clear, and is done anew from the
    checkpoint: there is nothing left to train, and the same version is registered."""
    run = world.start("group", name="stage-clears", steps=10)
    assert run.wait() == "success", run.story()
    assert run.clear("train.register") == ["train.register"]
    assert run.wait() == "success", run.story()
    assert len(world.events(run, Kind.GO_INTENDED)) == 1
    assert not world.events(run, Kind.CLEARED)
    model = world.state(run).model
    everything = [f"train.{stage}" for stage in (*STAGES, "watchdog")]
    assert run.clear(*everything) == sorted(everything)
    assert run.wait() == "success", run.story()
    (clear,) = world.events(run, Kind.CLEARED)
    assert clear.body["task"] == "train.prefetch"
    assert world.events(run, Kind.GO_INTENDED)[1].body["resume"]["step"] == 10
    assert world.state(run).model["version"] == model["version"]


def test_a_users_mistake_fails_at_once_with_its_reason(world: World) -> None:
    run = world.start("operator", name="mistake", replicas=99)
    assert run.wait() == "failed"
    assert run.tasks()["train"]["try_number"] == 1
    told = run.log("train", 1)
    assert "spec.replicas" in told
    assert "99" in told
    assert "Traceback" not in told.partition("spec.replicas")[0], told


def test_a_failure_that_costs_is_a_try_with_its_reason(world: World) -> None:
    run = world.start("operator", name="costs", steps=12, fail_at="6:3", only_attempt="1")
    assert run.wait() == "success", run.story()
    assert run.tasks()["train"]["try_number"] == 2
    told = run.log("train", 1)
    assert "exit code 3" in told
    assert "failing with 3" in told, "the tail of the first failing rank"
    world.require_right_model(run, steps=12)
    world.require_no_overlap(run)
    assert world.events(run, Kind.GO_INTENDED)[1].body["resume"]["step"] == 5


def test_kills_from_outside_cost_no_try(world: World, rounds) -> None:
    """Whole gangs lost, with progress between: the driver restarts them inside the same try."""
    times = rounds(4, soak=13)
    run = world.start("operator", name="outside", delay="0.1", steps=40 + 20 * times)
    for attempt in range(1, times + 1):
        world.wait_training(run, attempt=attempt, step=6 * attempt)
        for process in world.ranks_alive(run):
            process.kill()
    assert run.wait(timeout=300) == "success", run.story()
    assert run.tasks()["train"]["try_number"] == 1
    world.require_right_model(run, steps=40 + 20 * times)
    world.require_no_overlap(run)
    assert not [e for e in world.events(run, Kind.RESTART_DECIDED) if e.body["costs"]]
