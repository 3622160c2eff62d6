"""The trigger in an event loop of its own: what it tells, and when its `on_kill` stops a job.

The one thing that is not real here is Airflow's answer about the task's state.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ffdl_airflow.core.errors import InfrastructureError
from ffdl_airflow.core.events import Event, Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import Phase, fold
from ffdl_airflow.stages import wishes
from ffdl_airflow.stages.advance import Driver
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.submit import submit
from ffdl_airflow.testing import builders
from ffdl_airflow.testing.fake_engine import FakeEngine
from ffdl_airflow.testing.instant import ManualClock, instant_deps
from ffdl_airflow.testing.memory_ledger import MemoryLedger
from ffdl_airflow.triggers import job as module
from ffdl_airflow.triggers.job import Mandate, Payload, TrainingJobTrigger
from ffdl_airflow.triggers.threads import DRIVERS
from tests.conftest import wait_for

JOB = "bert-base-0123456789"


class World:
    """A running job on a fake engine, and a trigger that has it."""

    def __init__(self, tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.clock = ManualClock()
        self.engine = FakeEngine(slots=8)
        deps = instant_deps(tmp, ledger=MemoryLedger(), engine=self.engine, clock=self.clock)
        self.deps = replace(deps, source={"host": "here"})
        self.state: Any = "deferred"
        monkeypatch.setattr(module, "task_state", lambda ref: self._answer())
        monkeypatch.setattr(module.FfdlHook, "deps", lambda hook, source: self.deps)
        monkeypatch.setattr(module, "_LOOK_S", 0.01)
        monkeypatch.setattr(module, "dwell_s", lambda: 0.0)
        self.missing = False
        monkeypatch.setattr(module, "run_is_missing", lambda ref: self.missing)
        submit(self.deps, builders.job(), job_id=JOB, owner={"key": "airflow d/r/t/-1"})
        Driver(self.deps, JOB).advance(Goal.LAUNCH)

    def _answer(self) -> Any:
        if isinstance(self.state, Exception):
            raise self.state
        return self.state

    def trigger(self, goal: Goal = Goal.REGISTER, **mandate: Any) -> TrainingJobTrigger:
        given = {"give_back": True, "clears": 0, "told": 0, "deadline": None, **mandate}
        made = TrainingJobTrigger(
            job_id=JOB, goal=goal.value, ffdl_conn_id="ffdl_default", engine=None,
            ledger={"id": self.deps.ledger.ledger_id, "host": "here"}, mandate=Mandate(**given),
        )  # fmt: skip
        made.task_instance = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)
        return made

    def run(self, trigger: TrainingJobTrigger, *, within_s: float = 20.0) -> Payload:
        async def first() -> Payload:
            async for event in trigger.run():
                return Payload.parse(event.payload)
            raise AssertionError

        return asyncio.run(asyncio.wait_for(first(), within_s))

    def kill(self, trigger: TrainingJobTrigger) -> None:
        async def call() -> None:
            await trigger.on_kill()
            await asyncio.gather(*module._STOPS)

        asyncio.run(call())

    def events(self, *kinds: Kind) -> list[Event]:
        return [e for e in self.deps.ledger.read(JOB) if not kinds or e.kind in kinds]

    @property
    def phase(self) -> Phase | None:
        return fold(JOB, self.events()).phase


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path, monkeypatch)
    assert made.phase is Phase.RUNNING
    return made


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed", "upstream_failed"])
def test_a_task_that_was_taken_away_stops_its_job(world: World, state: str) -> None:
    world.state = state
    world.kill(world.trigger())
    assert world.phase is Phase.STOPPED
    (wish,) = world.events(Kind.STOP_WANTED)
    assert wish.body == {"mode": "now", "by": "airflow", "clears": 0,
                         "why": f"the task was marked {state}"}  # fmt: skip
    assert world.engine.capacity().free == 8


@pytest.mark.parametrize(
    "state", ["deferred", "queued", "running", "scheduled", "up_for_retry", "restarting", None,
              InfrastructureError("the API server does not answer")],
)  # fmt: skip
def test_a_task_that_is_wanted_or_unknown_keeps_its_job(world: World, state: Any) -> None:
    """Another triggerer has it, a clear has begun the next try, or nobody can tell."""
    world.state = state
    world.kill(world.trigger())
    assert world.phase is Phase.RUNNING
    assert not world.events(Kind.STOP_WANTED)


@pytest.mark.parametrize(("goal", "stops"), [
    (Goal.PREFETCH, False), (Goal.RESERVE, False), (Goal.LAUNCH, True), (Goal.REGISTER, True),
])  # fmt: skip
def test_marked_as_success_means_go_on_where_a_next_stage_can(
    world: World, goal: Goal, stops: bool
) -> None:
    world.state = "success"
    world.kill(world.trigger(goal))
    assert (world.phase is Phase.STOPPED) is stops


def test_a_deleted_run_stops_its_job(world: World) -> None:
    """A task of a deleted run has no state, as a cleared one has none."""
    world.state, world.missing = None, True
    world.kill(world.trigger())
    assert world.phase is Phase.STOPPED


def test_a_kill_after_a_clear_stops_nothing(world: World) -> None:
    wishes.clear(world.deps, JOB, task="t", number=2, mode="resume")
    world.state = "failed"
    world.kill(world.trigger())
    assert world.events(Kind.STOP_WANTED), "it is on record"
    for _ in range(3):
        Driver(world.deps, JOB).advance(Goal.LAUNCH)
    assert world.phase is Phase.RUNNING


def test_the_first_step_of_a_kill_does_not_queue_behind_drivers(world: World) -> None:
    """All threads for drivers are busy until this test lets them go."""
    release = threading.Event()
    busy = [DRIVERS.submit(release.wait, 60) for _ in range(100)]
    world.state = "failed"
    killer = threading.Thread(target=world.kill, args=(world.trigger(),))
    killer.start()
    try:
        wait_for(lambda: world.events(Kind.STOP_WANTED), message="the wish")
        assert not any(future.done() for future in busy)
    finally:
        release.set()
        killer.join()
    assert world.phase is Phase.STOPPED


def test_it_tells_the_end(world: World) -> None:
    world.engine.finish(f"{JOB}/1", {"kind": "ok", "text": "all ended with 0"})
    told = world.run(world.trigger(Goal.LAUNCH))
    assert told.kind == "done"
    assert told.told == world.events()[-1].seq


def test_it_tells_a_restart_that_costs(world: World) -> None:
    cause = {"kind": "exit", "exit": 3, "rank": 0, "replica": "worker-0", "text": "exit code 3"}
    world.engine.finish(f"{JOB}/1", cause)
    told = world.run(world.trigger())
    assert (told.kind, told.delay_s) == ("restarting", 0.0)
    assert "exit code 3" in told.verdict["cause"]


def test_it_keeps_execution_timeout(world: World) -> None:
    """A save first; then the task is told, and nothing holds a slot."""
    told = world.run(world.trigger(deadline="2020-01-01T00:00:00Z"))
    assert told.kind == "timeout"
    (wish,) = world.events(Kind.STOP_WANTED)
    assert wish.body["mode"] == "save"
    assert world.phase is Phase.STOPPED
    assert world.engine.capacity().free == 8


def test_a_fault_that_goes_away_is_waited_out(world: World) -> None:
    """Nine looks in vain are no news; the tenth would be told."""
    left = 9
    observe = world.engine.observe

    def flaky(placement_id: str, after: int) -> Any:
        nonlocal left
        left -= 1
        if left > 0:
            raise InfrastructureError("the disk is away")
        world.engine.finish(placement_id, {"kind": "ok", "text": "ended"})
        world.monkeypatch.setattr(world.engine, "observe", observe)
        return observe(placement_id, after)

    world.monkeypatch.setattr(world.engine, "observe", flaky)
    assert world.run(world.trigger(Goal.LAUNCH), within_s=60).kind == "done"


def test_it_never_raises(world: World) -> None:
    def broken(hook: Any, source: Any) -> Deps:
        raise RuntimeError("no such driver")

    world.monkeypatch.setattr(module.FfdlHook, "deps", broken)
    told = world.run(world.trigger())
    assert told.kind == "error"
    assert "no such driver" in told.text


def test_another_ledger_is_refused(world: World) -> None:
    trigger = world.trigger()
    trigger.ledger = {"id": "93131cb7", "host": "worker-1"}
    told = world.run(trigger)
    assert (told.kind, told.retryable) == ("error", False)
    assert "worker-1" in told.text
