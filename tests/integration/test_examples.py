"""Every shipped DAG, as it is shipped, in a real Airflow: examples and operations."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.job import job_id_for
from ffdl_airflow.core.lifecycle import Phase, fold
from ffdl_airflow.core.manifests.ffdl import read_job
from ffdl_airflow.examples import EXAMPLES, prepare_examples
from ffdl_airflow.stages.advance import Driver
from ffdl_airflow.stages.drive import drive
from ffdl_airflow.stages.submit import submit
from ffdl_airflow.testing.airflow_server import Run
from tests.conftest import wait_for
from tests.integration.conftest import World

OPERATIONS = EXAMPLES.parent / "dags"
GOOD = 0.95


@pytest.fixture(scope="module")
def world(make_world: Callable[..., World]) -> World:
    def shipped(dags: Path) -> None:
        prepare_examples(dags)
        for path in OPERATIONS.glob("*.py"):
            shutil.copy(path, dags / path.name)

    return make_world(prepare=shipped)


@pytest.fixture(scope="module")
def runs(world: World) -> dict[str, Run]:
    """Started together: JAX compiles in one while another waits. One loses a rank on its way.

    Not the group: two tasks that announce the same new model at once collide in Airflow.
    """
    started = {name: world.server.run_dag(name) for name in ("training_job", "training_resume")}
    conf = {"steps": 200, "model": "from-ui", "learning_rate": 0.2}
    started["training_from_ui"] = world.server.run_dag("training_from_ui", conf=conf)
    lose_a_rank(world, started["training_resume"])
    return started


def result_of(run: Run, task: str) -> dict:
    assert run.wait(timeout=400) == "success", run.story()
    return run.xcom(task)


@pytest.mark.parametrize(("dag", "task", "model"), [
    ("training_job", "digits", "digits"),
    ("training_group", "digits.register", "digits"),
    ("training_from_ui", "train", "from-ui"),
    ("training_resume", "digits", "digits-resume"),
])  # fmt: skip
def test_an_example_trains_a_good_model(
    world: World, runs: dict[str, Run], dag: str, task: str, model: str
) -> None:
    run = runs[dag] if dag in runs else world.server.run_dag(dag)
    result = result_of(run, task)
    assert result["model"]["name"] == model
    assert result["metrics"]["accuracy"] >= GOOD
    if dag == "training_resume":
        assert len(world.events(runs[dag], Kind.GO_INTENDED)) == 2
        same = result_of(runs["training_job"], "digits")["model"]["sha256"]
        assert result["model"]["sha256"] == same


def lose_a_rank(world: World, run: Run) -> None:
    """As its text says: kill a rank once there is a checkpoint."""
    wait_for(lambda: world.row(run).summary["checkpoint_step"], timeout=300, message=run.story)
    victim = next(p for p in world.ranks_alive(run) if p.environ().get("RANK") == "1")
    victim.kill()


def test_frameworks_side_by_side(world: World) -> None:
    run = world.server.run_dag("training_frameworks")
    best = result_of(run, "best")
    assert float(best.rpartition(" ")[2]) >= GOOD


def test_a_wrong_value_of_the_form_is_refused(world: World) -> None:
    wait_for(lambda: world.server.request("GET", "/api/v2/dags/training_from_ui").is_success,
             timeout=120)  # fmt: skip
    body = {"logical_date": None, "conf": {"replicas": 3}}
    answer = world.server.request("POST", "/api/v2/dags/training_from_ui/dagRuns", json=body)
    assert answer.status_code == 400
    assert "replicas" in answer.text
    assert "[1, 2, 4, 8]" in answer.text


def test_a_misspelt_value_of_the_form_is_one_failed_try(world: World) -> None:
    """Airflow's own check has nothing against it."""
    run = world.server.run_dag("training_from_ui", conf={"step": 5})
    assert run.wait() == "failed", run.story()
    assert run.tasks()["train"]["try_number"] == 1
    told = run.log("train", 1)
    assert "found the unknown value step, allowed: steps is the nearest known one" in told, told
    assert run.xcom("train", "ffdl_job_id") is None


def test_the_night_trains_what_lies_in_the_folder(world: World, tmp_path: Path) -> None:
    """A wrong manifest fails its own task and no other."""
    for name, replicas in (("a-good", 2), ("b-wrong", -1), ("c-good", 1)):
        document = {
            "metadata": {"name": name},
            "spec": {"training": {"framework": "custom", "code": str(world.home / "trainers"),
                                  "entryPoint": "counting.py", "args": ["--steps", "6"]},
                     "replicas": replicas, "model": {"name": name}},
        }  # fmt: skip
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(document))
    run = world.server.run_dag("nightly_training", conf={"folder": str(tmp_path)})
    assert run.wait(timeout=300) == "failed", run.story()
    tasks = {task["rendered_map_index"]: task for name, task in run.tasks().items()
             if name.startswith("train[")}  # fmt: skip
    states = {name: task["state"] for name, task in tasks.items()}
    assert states == {"a-good.yaml": "success", "b-wrong.yaml": "failed", "c-good.yaml": "success"}
    assert tasks["b-wrong.yaml"]["try_number"] == 1


def test_an_empty_folder_is_a_quiet_night(world: World, tmp_path: Path) -> None:
    run = world.server.run_dag("nightly_training", conf={"folder": str(tmp_path)})
    assert run.wait() == "success", run.story()
    assert run.states()["manifests"] == "skipped"


@pytest.fixture
def left(world: World, runs: dict[str, Run]) -> Iterator[dict[str, str]]:
    """Two gangs that hold: one of a run that is over, one of the command line."""
    over = runs["training_job"]
    over.wait(timeout=400)
    owner = {"key": f"airflow {over.dag_id}/{over.run_id}/digits/-1", "dag_id": over.dag_id,
             "run_id": over.run_id, "task_id": "digits", "map_index": -1}  # fmt: skip
    deps, found = world.deps(), {}
    for name, by in (("ownerless", owner), ("by-hand", {"key": "cli test", "user": "test"})):
        job = read_job({"metadata": {"name": name}, "spec": {"training": {"framework": "custom",
                        "command": ["true"]}}})  # fmt: skip
        found[name] = job_id_for(name, name)
        submit(deps, job, job_id=found[name], owner=by)
        drive(deps, Driver(deps, found[name]), Goal.RESERVE)
    yield found
    drive(deps, Driver(deps, found["by-hand"]), Goal.RELEASE)


def test_the_reaper_ends_what_nobody_owns_and_nothing_else(
    world: World, left: dict[str, str]
) -> None:
    run = world.server.run_dag("ffdl_reap")  # its schedule may start another run at once
    assert run.wait() == "success", run.story()
    states = {name: fold(id_, world.deps().ledger.read(id_)) for name, id_ in left.items()}
    assert "owner has ended" in states["ownerless"].reason
    phases = {name: state.phase for name, state in states.items()}
    assert phases == {"ownerless": Phase.STOPPED, "by-hand": Phase.RESERVED}
