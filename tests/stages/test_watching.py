"""The utilization ladder and the deadlines of stages, as a driver climbs and keeps them."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest

from ffdl_airflow.core.events import Kind, iso
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import Phase
from ffdl_airflow.stages import wishes
from ffdl_airflow.stages.advance import Driver, Ended, Waits
from ffdl_airflow.stages.evidence import folder_of
from ffdl_airflow.stores.cache import MoveState
from ffdl_airflow.testing.builders import T0, job
from ffdl_airflow.testing.instant import InstantGenerations
from tests.stages.conftest import JOB, World

UNIT = {"replica": "worker-1", "rank": 1, "unit": "gpu 0", "percent": 2.0, "threshold": 30.0,
        "since": iso(T0)}  # fmt: skip
LADDER = (Kind.WATCHDOG_WARNED, Kind.WATCHDOG_RECOVERED)


def figures(*, idle: int, exempt: str | None = None, at: float = 60) -> dict[str, Any]:
    since = iso(T0 + timedelta(seconds=at)) if idle else None
    return {"resource": "gpu", "window_s": 60.0, "aggregate": "mean", "exempt": exempt,
            "percent": 50.0, "busy": 2 - idle, "idle": idle, "unknown": 0, "idle_at": since,
            "all_idle_at": since if idle == 2 else None, "units": [UNIT] * idle}  # fmt: skip


def train(world: World, **spec: Any) -> None:
    world.submit(job(**spec))
    assert isinstance(world.advance(), Waits)
    assert world.state.phase is Phase.RUNNING


def look(world: World, later_s: float = 0, **utilization: Any) -> None:
    world.clock.advance(later_s)
    world.gang.utilization = figures(**utilization)
    world.advance()


def test_a_warning_is_an_event_of_the_moment_it_is_about(world: World) -> None:
    train(world)
    look(world, 500, idle=1)
    (warned,) = world.events(*LADDER)
    assert warned.at == T0 + timedelta(seconds=60)
    assert warned.recorded_at > warned.at
    assert (warned.attempt, warned.body["placement"]) == (1, 1)
    assert warned.body["reason"].startswith("GPU use below 30 % over 60 s")
    assert world.ledger.jobs()[0].summary["warning"] == warned.body["reason"]
    look(world, 3600, idle=1)
    assert len(world.events(*LADDER)) == 1, "once"


def test_two_drivers_say_it_once(world: World) -> None:
    train(world)
    world.clock.advance(100)
    world.gang.utilization = figures(idle=1)
    other = Driver(world.deps, JOB)
    other.refresh()
    world.advance()
    other.advance(Goal.REGISTER)
    assert len(world.events(Kind.WATCHDOG_WARNED)) == 1


def test_use_that_comes_back_withdraws_the_warning(world: World) -> None:
    train(world)
    look(world, 100, idle=1)
    look(world, 100, idle=0)
    assert [event.kind for event in world.events(*LADDER)] == list(LADDER)
    assert world.ledger.jobs()[0].summary["warning"] is None
    look(world, 100, idle=1, at=300)
    assert len(world.events(Kind.WATCHDOG_WARNED)) == 1, "not before the cooldown"
    look(world, 500, idle=1, at=300)
    second = world.events(Kind.WATCHDOG_WARNED)[-1]
    assert second.at == T0 + timedelta(seconds=660), "600 s after the first"


@pytest.mark.parametrize("fields", [{"idle": 0}, {"idle": 2, "exempt": "saving"}])
def test_work_and_other_work_are_not_warned_of(world: World, fields: dict[str, Any]) -> None:
    train(world)
    look(world, 4000, **fields)
    assert world.events(*LADDER) == []


def test_a_warning_ends_with_its_attempt(world: World) -> None:
    train(world)
    look(world, 100, idle=2)
    world.finish({"kind": "exit", "exit": 1, "rank": 0, "replica": "worker-0", "text": "exit 1"})
    world.settle()
    assert world.state.warned is None
    assert world.state.phase is Phase.RUNNING
    assert world.state.warnings, "the cooldown goes on"


def test_action_stop_saves_stops_and_fails_the_job(world: World) -> None:
    train(world, watchdog={"action": "stop"})
    look(world, 100, idle=2)
    look(world, 500, idle=2)
    assert not world.events(Kind.END_INTENDED)
    world.clock.advance(500)
    outcome = world.settle()
    assert isinstance(outcome, Ended)
    assert world.state.phase is Phase.FAILED
    (intended,) = world.events(Kind.END_INTENDED)
    assert intended.body["mode"] == "save"
    (verdict,) = world.events(Kind.VERDICT)
    assert verdict.body["class"] == "IDLE"
    assert "gpu 0 of worker-1 2 %" in verdict.body["cause"]
    assert "minGpuUtilization" in verdict.body["next_step"]
    (failed,) = world.events(Kind.FAILED)
    assert failed.body["class"] == "IDLE"
    assert failed.body["next_step"] == verdict.body["next_step"]
    assert (folder_of(world.deps, JOB, 1) / "verdict.json").exists()


def failure(world: World) -> dict[str, Any]:
    assert isinstance(world.settle(), Ended)
    assert world.state.phase is Phase.FAILED
    (failed,) = world.events(Kind.FAILED)
    assert failed.body["class"] == "DEADLINE"
    return dict(failed.body)


def test_launch_is_over_at_its_deadline_whoever_drives_then(world: World) -> None:
    train(world, deadlines={"launch": 900})
    outcome = world.advance()
    assert isinstance(outcome, Waits)
    assert outcome.wait.at_most_s <= 50
    world.clock.advance(880)
    world.seal(100)
    outcome = world.advance()
    assert isinstance(outcome, Waits)
    assert outcome.wait.at_most_s <= 25, "a driver wakes for the deadline"
    world.clock.advance(30)
    world.use()
    body = failure(world)
    assert "launch took longer than spec.deadlines.launch, 900 s" in body["reason"]
    (intended,) = world.events(Kind.END_INTENDED)
    assert intended.body["mode"] == "save"
    assert world.state.checkpoint["step"] == 100
    assert (folder_of(world.deps, JOB, 1) / "verdict.json").exists()


def test_launch_counts_through_its_restarts(world: World) -> None:
    train(world, deadlines={"launch": 100})
    world.clock.advance(60)
    world.engine.lose(world.gang.placement_id)
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert world.state.placement == 2
    world.clock.advance(60)
    failure(world)


class Endless(InstantGenerations):
    """Data that never come."""

    def ensure(self, store: str, source: Any, *, job: str) -> MoveState:
        return MoveState(state="running", facts={})


def test_prefetch_is_over_at_its_deadline_and_drops_its_claims(world: World) -> None:
    dropped: list[str] = []
    cache = Endless()
    cache.release_all = lambda *, job: dropped.append(job)
    world.use(cache=cache)
    (world.tmp / "code").mkdir()
    (world.tmp / "code" / "train.py").touch()
    training = {"framework": "custom", "command": ["true"], "code": str(world.tmp / "code")}
    world.submit(job(training=training, deadlines={"prefetch": 30}))
    assert isinstance(world.advance(), Waits)
    world.clock.advance(31)
    assert "prefetch took longer" in failure(world)["reason"]
    assert dropped == [JOB]


def test_reserve_is_over_with_what_it_waited_for(world: World) -> None:
    world.submit(job(replicas=4, deadlines={"reserve": 60}))
    world.advance(Goal.PREFETCH)
    world.engine._slots = 1
    waits = world.advance()
    assert isinstance(waits, Waits)
    world.clock.advance(61)
    body = failure(world)
    assert "4 slots are needed, 1 are free" in body["reason"]
    assert "raise spec.deadlines.reserve" in body["next_step"]
    assert not world.engine.gangs


def test_a_job_goes_on_after_its_deadline_was_raised(world: World) -> None:
    train(world, deadlines={"launch": 100})
    world.seal(100)
    world.clock.advance(200)
    failure(world)
    world.engine._ticks = itertools.count(200)  # the gang's clock goes on as ours does
    wishes.clear(world.deps, JOB, task="train", number=1, mode="resume")
    world.settle()
    assert world.state.phase is Phase.RUNNING, "launch counts anew"
    assert world.state.resume["step"] == 100
