"""Real Airflow, real pods: what a person takes away from a deferred task is gone in seconds.

The trainers of all runs beat on the shared volume, so their own word says how long they lived.
"""

from __future__ import annotations

import time
from typing import Any

import psutil

from ffdl_airflow.core.events import Kind
from ffdl_airflow.testing.airflow_server import Run
from tests.cluster.installation import Installation
from tests.conftest import environ_of, wait_for
from tests.integration.conftest import GONE_S, World

POD_GRACE_S = 37.0
"""30 s for a save, and what the kill needs (`render.MARGIN_S`)."""


def start(world: World, installation: Installation, dag: str, name: str, **params: Any) -> Run:
    beats = installation.shared / "beats" / name
    beats.mkdir(parents=True)
    beats.chmod(0o777)
    run = world.start(dag, **{"name": name, "delay": "0.15", "beats": str(beats), **params})
    object.__setattr__(run, "beats", beats)
    return run


def processes_of(world: World, run: Run) -> list[psutil.Process]:
    """Ranks of all of the job's pods, as this machine sees them."""
    head = f"{world.row(run).job_id}/"
    return [process for process in psutil.process_iter()
            if environ_of(process).get("FFDL_PLACEMENT", "").startswith(head)]  # fmt: skip


def pods_of(world: World, installation: Installation, run: Run) -> list[str]:
    label = {"labelSelector": f"ffdl.airflow/job={world.row(run).job_id}"}
    path = f"/api/v1/namespaces/{installation.namespace}/pods"
    found = installation.bed.api("GET", path, params=label)["items"]
    return [str(pod["metadata"]["name"]) for pod in found]


def require_gone(world: World, installation: Installation, run: Run, *, since: float) -> None:
    """No rank has beaten GONE_S after, and no pod is there a grace period later."""
    wait_for(lambda: not processes_of(world, run), timeout=60, message=lambda: world.log(run))
    late = [life for life in world.lives(run) if life.last - since > GONE_S]
    assert not late, f"acted at {since}: {late}{world.log(run)}"
    left_s = since + POD_GRACE_S + GONE_S - time.time()
    wait_for(lambda: not pods_of(world, installation, run), timeout=max(1.0, left_s))
    final = wait_for(lambda: world.state(run).terminal and world.state(run))
    assert final.phase == "Stopped"
    assert not final.placed


def test_what_is_marked_failed_is_gone(world: World, airflow_installation: Installation) -> None:
    """A deferred task, and a whole run."""
    task = start(world, airflow_installation, "counting", "task", steps=1000)
    whole = start(world, airflow_installation, "counting_group", "run", steps=1000)
    for run in (task, whole):
        world.wait_training(run)
    task.wait_task("train", "deferred")
    whole.wait_task("train.launch", "deferred")
    at = time.time()
    task.mark("train", "failed")
    whole.mark_run("failed")
    require_gone(world, airflow_installation, task, since=at)
    require_gone(world, airflow_installation, whole, since=at)
    assert "marked failed" in world.state(task).reason


def test_a_cleared_task_goes_on_in_new_pods(
    world: World, airflow_installation: Installation
) -> None:
    run = start(world, airflow_installation, "counting", "cleared", steps=80)
    world.wait_training(run)
    run.wait_task("train", "deferred")
    at = time.time()
    assert run.clear("train") == ["train"]
    assert run.wait() == "success", run.story() + world.log(run)
    first = [life for life in world.lives(run) if life.attempt == 1]
    assert first
    assert all(life.last - at < GONE_S for life in first), (at, first)
    world.require_no_overlap(run)
    world.require_right_model(run, steps=80)
    once, again = world.events(run, Kind.GO_INTENDED)
    assert once.body["resume"] is None
    assert again.body["resume"]["step"] >= 5
    assert not pods_of(world, airflow_installation, run)
