"""Which GPUs a replica sees on this host."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from ffdl_airflow.core.plan import Places, Timing, build
from ffdl_airflow.engines.local.engine import LocalEngine
from ffdl_airflow.testing import builders

PLACES = Places(checkpoint_dir="/c", output_dir="/o", log_dir="/o", python=sys.executable)
WORKERS = {"name": "worker", "replicas": 2, "resources": {"gpu": 2}}


def document(engine: LocalEngine, framework: str, *roles: dict[str, Any]) -> dict[str, Any]:
    training = {"framework": framework, "command": ["train"]}
    plan = build(builders.job(training=training, replicas=None, roles=list(roles)), job_id="j",
                 placement=1, places=PLACES, timing=Timing(), generations={})  # fmt: skip
    (made,) = engine.render(plan)
    return made


def seen(engine: LocalEngine, framework: str, *roles: dict[str, Any]) -> dict[str, str | None]:
    replicas = document(engine, framework, *roles)["replicas"]
    return {one["name"]: one["env"].get("CUDA_VISIBLE_DEVICES") for one in replicas}


def test_each_replica_sees_its_own(make_engine: Callable[..., LocalEngine]) -> None:
    found = seen(make_engine(gpus=True, slots=8), "pytorch", WORKERS, {"name": "ps"})
    assert found == {"worker-0": "0,1", "worker-1": "2,3", "ps-0": ""}


def test_mpirun_sees_those_of_the_workers_that_it_starts(
    make_engine: Callable[..., LocalEngine],
) -> None:
    engine = make_engine(gpus=True, slots=8)
    assert seen(engine, "mpi", {"name": "launcher"}, WORKERS)["launcher-0"] == "1,2,3,4"
    assert seen(engine, "mpi", WORKERS)["worker-0"] == "0,1,2,3"


def test_without_gpus_nothing_is_said(make_engine: Callable[..., LocalEngine]) -> None:
    assert set(seen(make_engine(), "mpi", {"name": "launcher"}, WORKERS).values()) == {None}


@pytest.mark.parametrize("framework", ["pytorch", "mpi"])
def test_every_gpu_is_watched_where_processes_see_it(
    make_engine: Callable[..., LocalEngine], framework: str
) -> None:
    made = document(make_engine(gpus=True, slots=8), framework, {"name": "launcher"}, WORKERS)
    watched = [one for one in made["replicas"] if one["name"] in made["watch"]["replicas"]]
    assert all(one["processes"] for one in watched)
    assert ",".join(one["env"]["CUDA_VISIBLE_DEVICES"] for one in watched) == "1,2,3,4"
