"""Real Airflow, real pods on two nodes: the examples give the model that the local engine gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ffdl_airflow import services
from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.job import job_id_for
from ffdl_airflow.core.manifests.ffdl import read_job
from ffdl_airflow.settings import from_values
from ffdl_airflow.stages.advance import Driver
from ffdl_airflow.stages.drive import drive
from ffdl_airflow.stages.submit import submit
from tests.cluster.installation import Installation
from tests.integration.conftest import World


def locally(world: World, name: str, tmp_path: Path) -> dict[str, Any]:
    """The model that the same job gives on the local engine."""
    folder = world.home / "dags"
    job = yaml.safe_load((folder / f"{name}.yaml").read_text())
    job["spec"]["training"]["code"] = str(folder / job["spec"]["training"]["code"])
    job["spec"]["dataStores"][0]["path"] = str(folder / job["spec"]["dataStores"][0]["path"])
    deps = services.deps(from_values({"slots": "2"}, state_dir=tmp_path / "ffdl"))
    job_id = job_id_for(name, "here")
    submit(deps, read_job(job), job_id=job_id, owner={"key": "test"})
    state = drive(deps, Driver(deps, job_id), Goal.REGISTER).state
    assert state.model is not None, state
    return dict(state.model)


@pytest.mark.parametrize("name", ["digits", "digits_torch"])
def test_a_job_of_two_pods_gives_the_model_of_the_local_engine(
    world: World, airflow_installation: Installation, tmp_path: Path, name: str
) -> None:
    run = world.server.run_dag(f"{name}_pods")
    assert run.wait(timeout=400) == "success", run.story() + world.log(run)
    (placed,) = world.events(run, Kind.PLACED)
    assert set(placed.body["nodes"]) == {"worker-0", "worker-1"}
    model = run.xcom("train")["model"]
    assert model["sha256"] == locally(world, name, tmp_path)["sha256"]
    assert run.xcom("train")["metrics"]["accuracy"] >= 0.95
    namespace = airflow_installation.namespace
    left = airflow_installation.bed.api("GET", f"/api/v1/namespaces/{namespace}/pods")
    assert left["items"] == []
