"""An engine that is not in the package: it keeps the contract, and a whole job runs on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow import services
from ffdl_airflow.agent.processes import carrying
from ffdl_airflow.engines import processes
from ffdl_airflow.settings import from_values
from ffdl_airflow.testing.contracts.engine import SLOTS, Count, EngineContract, Spoil
from tests.cli.conftest import Ffdl
from tests.engines.outside import ProcessEngine


class TestOutside(EngineContract):
    """The same as for the package's own engines."""

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Iterator[ProcessEngine]:
        yield from emptied(engine_in(tmp_path))

    @pytest.fixture
    def elsewhere(self, tmp_path: Path) -> Iterator[ProcessEngine]:
        yield from emptied(engine_in(tmp_path / "elsewhere"))

    @pytest.fixture
    def reopened(self, tmp_path: Path) -> ProcessEngine:
        return engine_in(tmp_path)

    @pytest.fixture
    def lose(self, engine: ProcessEngine) -> Spoil:
        return lambda placement_id: kill_agents(engine, placement_id)

    @pytest.fixture
    def expire(self) -> Spoil:
        return lambda placement_id: None

    @pytest.fixture
    def left(self, engine: ProcessEngine) -> Count:
        return lambda placement_id: len(processes.find(engine.mark(placement_id)))


def engine_in(folder: Path) -> ProcessEngine:
    return ProcessEngine(folder / "outside", slots=SLOTS, key=b"a key of this test")


def emptied(engine: ProcessEngine) -> Iterator[ProcessEngine]:
    yield engine
    for placement_id in engine.placements():
        processes.kill_all(engine.mark(placement_id))


def kill_agents(engine: ProcessEngine, placement_id: str) -> None:
    for agent in carrying(engine.mark(placement_id), None):
        os.kill(agent.pid, signal.SIGKILL)


def test_a_whole_job(ffdl: Ffdl, wait_until: Callable[..., Any]) -> None:
    """Its driver and its gang are killed on the way."""
    ffdl.env |= {"FFDL_ENGINE": "tests.engines.outside:make", "FFDL_HEARTBEAT_S": "0.2"}
    args = "--steps 40 --every 5 --step-delay 0.1"
    driver = ffdl.start("run", "-f", ffdl.manifest("count", args=args))
    assert driver.stdout is not None
    job_id = driver.stdout.readline().strip().removeprefix("job ")
    wait_until(lambda: (ffdl.job(job_id)["step"] or 0) > 5)
    driver.kill()
    driver.wait()
    kill_agents(engine_in(ffdl.home / "state"), f"{job_id}/1")
    done = ffdl("run", "--job", job_id, "-o", "json")
    assert done.code == 0, done
    assert done.json["phase"] == "Succeeded"
    attempts = ffdl("describe", job_id, "-o", "json").json["attempts"]
    assert [one["resume"] is not None for one in attempts] == [False, True]
    assert ffdl("reap", "-o", "json").json == []


def test_it_is_taken_for_one_of_this_host(tmp_path: Path) -> None:
    values = {"engine": "tests.engines.outside:make"}
    made = services.deps(from_values(values, state_dir=tmp_path))
    assert isinstance(made.engine, ProcessEngine)
    assert made.one_host


@pytest.fixture
def ffdl(tmp_path: Path) -> Iterator[Ffdl]:
    made = Ffdl(tmp_path)
    yield made
    made.close()
