"""100 deferred jobs in one triggerer: how late is its loop, and how soon does a kill begin?"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from ffdl_airflow import services
from ffdl_airflow.core.events import Event, Kind, parse_iso
from ffdl_airflow.ledger.base import Ledger
from ffdl_airflow.settings import from_values
from ffdl_airflow.testing.airflow_server import AirflowServer, Run, ServerSettings
from tests.benchmarks.figures import table
from tests.benchmarks.triggerer_dags import JOBS
from tests.conftest import wait_for

ROOT = Path(__file__).parents[2]
KILLS = 5
WATCHED_S = 10.0
"""How long the loop is watched, at least."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AirflowServer]:
    (tmp_path / "dags").mkdir()
    shutil.copy(Path(__file__).with_name("triggerer_dags.py"), tmp_path / "dags")
    # The stub refuses to be in the API server, so that no listener is quicker than the trigger.
    environ = {"AIRFLOW__FFDL__STATE_DIR": str(tmp_path / "ffdl"), "PYTHONPATH": str(ROOT),
               "AIRFLOW__FFDL__ENGINE": "tests.benchmarks.stub_engine:make"}  # fmt: skip
    made = AirflowServer(ServerSettings(home=tmp_path, dags=tmp_path / "dags", environ=environ))
    made.start()
    yield made
    made.stop()


def test_a_kill_among_100_deferred_jobs(server: AirflowServer, tmp_path: Path) -> None:
    ledger = services.deps(from_values({}, state_dir=tmp_path / "ffdl")).ledger
    until = tmp_path / "enough"
    alone = _lag(server, until, lambda: None)
    run = server.run_dag("many")
    count = lambda state: sum(value == state for value in run.states().values())
    wait_for(lambda: count("deferred") == JOBS, timeout=900, message=run.story)
    wait_for(lambda: len([r for r in ledger.jobs() if r.phase == "Running"]) == JOBS, timeout=300)
    first_steps: list[float] = []

    def kill() -> None:
        first_steps.extend(_kill(server, run, number, ledger) for number in range(KILLS))

    beside = _lag(server, until, kill)
    rows = {"loop lag alone, ms": alone, f"loop lag with {JOBS} jobs, ms": beside,
            "on_kill called → stop in the ledger, ms": first_steps}  # fmt: skip
    p99 = statistics.quantiles(beside, n=100)[98]
    table(f"One triggerer, {JOBS} deferred jobs", rows,
          {f"loop lag with {JOBS} jobs, ms": f"p99 {p99:.1f}",
           "on_kill called → stop in the ledger, ms": "≤ 1000"})  # fmt: skip
    assert count("deferred") == JOBS - KILLS


def _lag(server: AirflowServer, until: Path, meanwhile: Callable[[], None]) -> list[float]:
    """Lateness of timers in ms in the last 20 s before ``meanwhile`` was over."""
    until.unlink(missing_ok=True)
    run = server.run_dag("lag", conf={"until": str(until)})
    run.wait_task("lag", "deferred", timeout=300)
    wait_for(lambda: "starting" in run.log("lag", 1), timeout=120)
    meanwhile()
    time.sleep(WATCHED_S)
    until.touch()
    assert run.wait() == "success", run.story()
    return [1000 * late for late in run.xcom("lag")]


def _kill(server: AirflowServer, run: Run, number: int, ledger: Ledger) -> float:
    """Mark one mapped task as failed; ms from Airflow's call of on_kill to the wish."""
    path, mapped = f"{run.path}/taskInstances/train", {"map_index": number}
    job_id = server.call("GET", f"{path}/xcomEntries/ffdl_job_id", params=mapped)["value"]
    server.call("PATCH", f"{path}/{number}", json={"new_state": "failed"})

    def wishes() -> list[Event]:
        return [event for event in ledger.read(job_id) if event.kind is Kind.STOP_WANTED
                and event.source.get("trigger")]  # fmt: skip

    def calls() -> list[Mapping[str, str]]:
        whole = {"full_content": True, **mapped}
        found = server.call("GET", f"{path}/logs/1", params=whole)["content"]
        return [line for line in found if "invoking on_kill" in str(line)]

    wish = wait_for(wishes, timeout=60, message="the trigger's wish")[0]
    called = wait_for(calls, timeout=60, message="the call of on_kill in the task's log")[0]
    return 1000 * (wish.recorded_at - parse_iso(called["timestamp"])).total_seconds()
