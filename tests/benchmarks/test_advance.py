"""What a driver costs: reading a long log cold, and one look at a gang that runs."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.events import Kind, NewEvent
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import fold
from ffdl_airflow.ledger.base import Batch
from ffdl_airflow.ledger.sql import SqlLedger
from ffdl_airflow.stages.advance import Done, Driver, Waits
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.submit import submit
from ffdl_airflow.testing import builders
from ffdl_airflow.testing.fake_engine import FakeEngine
from ffdl_airflow.testing.instant import ManualClock, instant_deps
from tests.benchmarks.figures import table
from tests.chaos.installation import Installation, job_id_of

EVENTS, COLD, LOOKS = 1000, 50, 300
JOB = "bert-base-0123456789"


def test_a_finished_job_of_1000_events(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    deps = _finished(tmp_path, SqlLedger(url))
    events = deps.ledger.read(JOB)
    assert len(events) == EVENTS
    gc.freeze()

    def advance() -> None:
        assert isinstance(Driver(deps, JOB).advance(Goal.REGISTER), Done)

    table(
        f"A finished job of {EVENTS} events on SQLite, ms",
        {
            "Driver(deps, job).advance, cold": _ms(advance, COLD),
            "  of that: reading the ledger": _ms(lambda: deps.ledger.read(JOB), COLD),
            "  of that: the fold": _ms(lambda: fold(JOB, events), COLD),
            "opening the ledger (once a process)": _ms(lambda: SqlLedger(url).close(), COLD),
        },
        {"Driver(deps, job).advance, cold": "20"},
    )


def test_one_look_at_a_gang_that_runs(
    installation: Installation, wait_until: Callable[..., Any]
) -> None:
    options = {"steps": 100_000, "every": 50_000, "step-delay": 0.1}
    manifest = installation.manifest("look", replicas=2, options=options)
    process = installation.start("run", "-f", manifest)
    job_id = job_id_of(process)
    wait_until(lambda: installation.events(job_id, Kind.RUNNING), message="running")
    process.kill()
    process.communicate()
    deps = installation.deps()
    driver = Driver(deps, job_id)
    driver.advance(Goal.LAUNCH)

    def look() -> None:
        assert isinstance(driver.advance(Goal.LAUNCH), Waits)

    cpu_before, wall = time.process_time(), _ms(look, LOOKS)
    cpu_ms = (time.process_time() - cpu_before) * 1000 / LOOKS
    state = driver.refresh()
    engine, status = deps.engine, installation.deps().engine.observe(state.placement_id, 0).status
    assert status is not None
    table(
        "One look at a running gang of 2, ms",
        {
            "Driver.advance": wall,
            "  CPU of the driver": [cpu_ms],
            "  of that: engine.observe": _ms(
                lambda: engine.observe(state.placement_id, state.journal_seq), LOOKS
            ),
            "  of that: ledger.read of what is new": _ms(
                lambda: deps.ledger.read(job_id, after=state.seq), LOOKS
            ),
            "  where it has a new status: ledger.put_status": _ms(
                lambda: deps.ledger.put_status(job_id, {**status, "now": time.monotonic()}), LOOKS
            ),
        },
        {},
    )
    assert installation.run("stop", job_id, "--now").returncode == 0


def _ms(call: Callable[[], Any], times: int) -> list[float]:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append((time.perf_counter() - began) * 1000)
    return found


def _finished(tmp_path: Path, ledger: SqlLedger) -> Deps:
    """A job that ran for long: EVENTS events, most of them summaries of its progress."""
    clock, engine = ManualClock(), FakeEngine()
    deps = instant_deps(tmp_path, ledger=ledger, engine=engine, clock=clock)
    submit(deps, builders.job(), job_id=JOB, owner={"key": "bench"})
    driver = Driver(deps, JOB)
    driver.advance(Goal.LAUNCH)
    placement = driver.refresh().placement_id
    left = EVENTS - driver.refresh().seq - _events_of_the_end()
    batch = [
        NewEvent(kind=Kind.PROGRESS_SUMMARY, at=clock() + timedelta(minutes=n), attempt=1,
                 body={"placement": 1, "step": n, "loss": 1 / n, "samples_per_s": 1234.5})
        for n in range(1, left + 1)
    ]  # fmt: skip
    ledger.append(Batch(stream=JOB, expected_seq=None, events=batch))
    engine.seal(placement, left)
    engine.finish(placement, {"kind": protocol.CAUSE_OK, "text": "well"})
    assert isinstance(driver.advance(Goal.REGISTER), Done)
    return deps


def _events_of_the_end() -> int:
    """CheckpointSealed, AttemptEnded, Trained, Released, RegisterIntended, ModelRegistered,
    Succeeded."""
    return 7
