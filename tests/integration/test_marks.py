"""What a person does with a task that waits or trains, beyond test_life.py: a place for one job."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ffdl_airflow.agent import detached
from ffdl_airflow.core.events import Kind
from ffdl_airflow.testing.airflow_server import Run
from tests.conftest import environ_of, processes_under, wait_for
from tests.integration.conftest import World, now

SLOTS = "3"
"""Room for one gang of two: another one waits."""
MANIFEST = """
apiVersion: ffdl.cloud.ibm.com/v1
kind: TrainingJob
metadata: {{name: {name}}}
spec:
  training:
    framework: custom
    code: ../trainers
    entryPoint: counting.py
    args: ["--steps", "{steps}", "--every", "5", "--step-delay", "0.15", "--beats",
           "{{{{ params.beats }}}}"]
  replicas: 2
  checkpoint: {{every: 5}}
  model: {{name: {name}}}
"""


@pytest.fixture(scope="module")
def world(make_world: Callable[..., World]) -> World:
    return make_world(environ={"AIRFLOW__FFDL__SLOTS": SLOTS}, hidden={"slots": SLOTS})


def write_manifest(world: World, **values: object) -> None:
    (world.home / "dags" / "changing.yaml").write_text(MANIFEST.format(**values))


def stop(world: World, run: Run) -> None:
    run.mark("train", "failed")
    wait_for(lambda: world.state(run).terminal, message=lambda: world.log(run))


@pytest.mark.parametrize(("dag", "task"), [("operator", "train"), ("group", "train.launch")])
def test_a_task_that_is_marked_skipped_stops_its_ranks(world: World, dag: str, task: str) -> None:
    run = world.start(dag, name="skipped", delay="0.2", steps=1000)
    world.wait_training(run)
    run.wait_task(task, "deferred")
    at = now()
    run.mark(task, "skipped")
    world.wait_gone(run, since=at)
    final = wait_for(lambda: world.state(run).terminal and world.state(run))
    assert final.phase == "Stopped"
    assert "marked skipped" in final.reason


def test_a_clear_that_asks_for_it_begins_from_nothing(world: World) -> None:
    run = world.start("fresh", name="fresh", delay="0.15", steps=40)
    world.wait_training(run)
    run.wait_task("train", "deferred")
    assert run.clear("train") == ["train"]
    assert run.wait() == "success", run.story()
    first, second = world.events(run, Kind.GO_INTENDED)
    assert first.body["resume"] is second.body["resume"] is None
    assert not world.events(run, Kind.CHECKPOINT_REFUSED), "they are passed over in silence"
    ended = [event for event in world.events(run, Kind.ATTEMPT_ENDED) if event.body.get("ok")]
    assert [event.body["first_step"] for event in ended] == [1]
    world.require_no_overlap(run)
    world.require_right_model(run, steps=40)


@pytest.mark.parametrize("renamed", [False, True])
def test_a_clear_goes_on_with_a_changed_manifest_in_the_same_job(
    world: World, renamed: bool
) -> None:
    write_manifest(world, name="as-it-was", steps=1000)
    run = world.start("changing")
    world.wait_training(run)
    run.wait_task("train", "deferred")
    job_id = world.row(run).job_id
    name = "as-it-is-now" if renamed else "as-it-was"
    write_manifest(world, name=name, steps=40)
    run.clear("train")
    assert run.wait() == "success", run.story()
    assert world.row(run).job_id == job_id, "there is no second job"
    assert len(world.events(run, Kind.SPEC_CHANGED)) == 1
    first, second = world.events(run, Kind.GO_INTENDED)
    assert first.body["resume"] is None
    assert second.body["resume"]["step"] >= 5
    assert world.state(run).model["name"] == name
    world.require_no_overlap(run)
    world.require_right_model(run, steps=40)


def test_a_prefetch_that_is_marked_success_while_it_waits(world: World) -> None:
    """The mover goes on, and reserve waits for it."""
    store = world.home / "ffdl" / "cache" / "slow"
    store.mkdir(parents=True)
    with detached.locked(str(store / "lock")):  # what a mover waits for before it publishes
        run = world.start("fetches", name="fetches", steps=10)
        run.wait_task("train.prefetch", "deferred")
        run.mark("train.prefetch", "success")
        run.wait_task("train.reserve", "deferred")
        assert world.state(run).phase == "Prefetching"
        assert not world.events(run, Kind.STOP_WANTED)
    assert run.wait() == "success", run.story()
    assert len(world.events(run, Kind.PREFETCH_STARTED)) == 1
    world.require_right_model(run, steps=10)


def test_a_reserve_that_is_marked_success_while_it_waits(world: World) -> None:
    """The job goes on to wait for its place: in launch, which does the rest."""
    other = world.start("operator", name="has-the-place", delay="0.2", steps=2000)
    world.wait_training(other)
    run = world.start("group", name="waits", steps=10)
    run.wait_task("train.reserve", "deferred")
    wait_for(lambda: world.state(run).phase == "Reserving", message=lambda: world.log(run))
    run.mark("train.reserve", "success")
    run.wait_task("train.launch", "deferred")
    wait_for(lambda: "slots are needed" in (world.state(run).waiting or ""))
    assert not world.events(run, Kind.STOP_WANTED, Kind.GO_INTENDED)
    stop(world, other)
    assert run.wait() == "success", run.story()
    world.require_right_model(run, steps=10)


def test_a_gang_that_waits_leaves_when_its_hold_ends(world: World, tmp_path: Path) -> None:
    """``spec.reservation.hold``. Launch comes later, and reserves again."""
    go = tmp_path / "go"
    run = world.start("limited", name="holds", steps=10, hold_s=5, go=str(go))
    assert run.wait_task("train.reserve", "success")
    wait_for(lambda: not processes_of(world, world.row(run).job_id), message=lambda: world.log(run))
    assert not world.events(run, Kind.GO_INTENDED)
    go.touch()
    assert run.wait() == "success", run.story()
    assert len(world.events(run, Kind.HOLD_EXPIRED)) == 1
    assert len(world.events(run, Kind.PLACED)) == 2
    world.require_right_model(run, steps=10)


def require_late(world: World, run: Run, stage: str) -> None:
    """The stage's task has failed at once, with the reason; the job has, too."""
    assert run.wait() == "failed", run.story()
    task = run.tasks()[f"train.{stage}"]
    assert (task["state"], task["try_number"]) == ("failed", 1), run.story()
    told = run.log(f"train.{stage}", 1)
    assert f"{stage} took longer than spec.deadlines.{stage}, 3 s" in told, told
    assert world.state(run).phase == "Failed"
    assert not processes_of(world, world.row(run).job_id)


def test_a_prefetch_past_its_deadline(world: World) -> None:
    store = world.home / "ffdl" / "cache" / "slow"
    store.mkdir(parents=True, exist_ok=True)
    for generation in store.glob("*/"):  # of another test: there would be nothing to fetch
        shutil.rmtree(generation)
    with detached.locked(str(store / "lock")):
        run = world.start("limited", name="late-prefetch", steps=10, prefetch_s=3)
        require_late(world, run, "prefetch")


def test_a_reserve_past_its_deadline(world: World) -> None:
    other = world.start("operator", name="has-the-place", delay="0.2", steps=2000)
    world.wait_training(other)
    run = world.start("limited", name="late-reserve", steps=10, reserve_s=3)
    require_late(world, run, "reserve")
    assert "slots are needed" in run.log("train.reserve", 1), "what it waited for"
    stop(world, other)


def test_a_register_past_its_deadline(world: World) -> None:
    models = world.home / "ffdl" / "models" / "late-register"
    models.mkdir(parents=True)
    with detached.locked(str(models / ".lock")):  # what a publisher takes its number under
        run = world.start("limited", name="late-register", steps=10, register_s=3)
        require_late(world, run, "register")
    assert not world.events(run, Kind.MODEL_REGISTERED)


def test_a_deleted_run_leaves_nothing_behind(world: World) -> None:
    """With its DAG, while its task waits. Nobody comes back for the job: the reaper sees to it."""
    run = world.start("deleted", name="deleted", delay="0.2", steps=2000)
    world.wait_training(run)
    run.wait_task("train", "deferred")
    row = world.row(run)
    world.server.request("DELETE", "/api/v2/dags/deleted").raise_for_status()
    reaper = world.server.run_dag("reaper")
    assert reaper.wait() == "success", reaper.story()
    wait_for(lambda: not processes_of(world, row.job_id), message=lambda: world.log(run))
    wait_for(lambda: world.state(run).phase == "Stopped", message=lambda: world.log(run))


def processes_of(world: World, job_id: str) -> list[int]:
    head = f"{job_id}/"
    return [p.pid for p in processes_under(world.home)
            if environ_of(p).get("FFDL_PLACEMENT", "").startswith(head)]  # fmt: skip
