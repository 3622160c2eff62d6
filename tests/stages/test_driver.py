"""The driver: stops, releases, waits, and a ledger that fails in the middle of anything."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_airflow.core.errors import InfrastructureError, NotFoundError, UserError
from ffdl_airflow.core.events import Event, Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import Phase
from ffdl_airflow.ledger.base import Batch, Conflict
from ffdl_airflow.stages import wishes
from ffdl_airflow.stages.advance import Done, Driver, Ended, Waits
from ffdl_airflow.stages.deps import Wait
from ffdl_airflow.stages.drive import drive, wait
from ffdl_airflow.testing.builders import job
from ffdl_airflow.testing.instant import InstantGenerations
from ffdl_airflow.testing.memory_ledger import MemoryLedger
from tests.stages.conftest import JOB, KILLED, World


def test_there_is_no_job(world: World) -> None:
    with pytest.raises(NotFoundError, match="there is no job"):
        world.advance()
    for wish in (lambda: wishes.save(world.deps, JOB, by="ada"),
                 lambda: wishes.stop(world.deps, JOB, mode="now", by="ada")):  # fmt: skip
        with pytest.raises(NotFoundError):
            wish()
    assert world.events() == []


def test_too_few_slots_are_waited_for_and_told_once(world: World) -> None:
    other = World(world.tmp / "other", engine=world.engine)
    other.submit(job(replicas=3))
    other.driver = Driver(other.deps, JOB)
    other.advance(Goal.RESERVE)
    world.engine.gangs["other-job-0123456789/1"] = world.engine.gangs.pop(f"{JOB}/1")
    world.submit()
    for _ in range(3):
        outcome = world.advance(Goal.RESERVE)
        assert isinstance(outcome, Waits)
        assert "2 slots are needed, 1 are free" in outcome.wait.what
    assert len(world.events(Kind.WAITING)) == 1
    (row,) = world.ledger.jobs()
    assert "2 slots are needed" in row.summary["waiting"]


@pytest.mark.parametrize("mode", ["now", "save"])
def test_a_wish_to_stop_ends_all(world: World, mode: str) -> None:
    world.run_to(Goal.LAUNCH)
    wishes.stop(world.deps, JOB, mode=mode, by="ada", why="enough")
    assert isinstance(world.settle(), Ended)
    assert (world.state.phase, world.state.reason) == (Phase.STOPPED, "enough")
    assert world.engine.capacity().free == 4


def test_a_late_wish_does_not_stop_the_next_gang(world: World) -> None:
    """A kill that comes after the clear that it belongs to; one that knows of it counts."""
    world.run_to(Goal.LAUNCH)
    wishes.clear(world.deps, JOB, task="train", number=2, mode="resume")
    wishes.stop(world.deps, JOB, mode="now", by="on_kill", clears=0)
    world.settle(Goal.LAUNCH)
    assert world.state.phase is Phase.RUNNING
    assert world.state.placement == 2
    wishes.stop(world.deps, JOB, mode="now", by="on_kill", clears=1)
    assert isinstance(world.settle(Goal.LAUNCH), Ended)
    assert world.state.phase is Phase.STOPPED


def test_a_driver_of_another_engine_touches_nothing(world: World) -> None:
    """It does not see the gang, and would take it for gone."""
    world.run_to(Goal.LAUNCH)
    seq = len(world.events())
    other = replace(world.deps, engine_name="elsewhere")
    with pytest.raises(UserError, match=r"elsewhere.*fake"):
        Driver(other, JOB).advance(Goal.LAUNCH)
    assert len(world.events()) == seq


def test_a_driver_on_another_host_touches_nothing_of_a_one_host_engine(world: World) -> None:
    world.use(source={"host": "lab-1"})
    world.run_to(Goal.LAUNCH)
    seq = len(world.events())
    other = replace(world.deps, one_host=True, source={"host": "lab-2"})
    with pytest.raises(UserError, match=r"lab-2.*lab-1"):
        Driver(other, JOB).advance(Goal.LAUNCH)
    assert len(world.events()) == seq
    here = replace(world.deps, one_host=True)
    assert isinstance(Driver(here, JOB).advance(Goal.LAUNCH), Waits)


def test_release_ends_what_holds(world: World) -> None:
    world.run_to(Goal.RESERVE)
    assert isinstance(world.settle(Goal.RELEASE), Done)
    assert world.engine.capacity().free == 4


def test_another_driver_says_that_it_adopts(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    world.use(source={"host": "lab-2", "pid": 7})
    for _ in range(2):
        world.advance()
        world.driver = Driver(world.deps, JOB)
    (event,) = world.events(Kind.ADOPTED)
    assert (event.body, event.source) == (
        {"placement": 1, "attempt": 1}, {"host": "lab-2", "pid": 7},
    )  # fmt: skip


def test_waiting_asks_the_gang_or_sleeps(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    outcome = world.advance()
    assert isinstance(outcome, Waits)
    wait(world.deps, outcome.wait, at_most_s=0.01)
    world.engine.lose(world.gang.placement_id)
    wait(world.deps, outcome.wait, at_most_s=0.01)
    wait(world.deps, Wait(what="x", at_most_s=0.0), at_most_s=9.0)


def test_a_loop_drives_to_the_end(world: World) -> None:
    world.submit()
    seen = []

    def on_wait(outcome: Waits) -> None:
        seen.append(str(outcome.state.phase))
        if outcome.state.phase is Phase.RUNNING:
            world.seal(100)
            world.finish()

    outcome = drive(world.deps, world.driver, Goal.REGISTER, on_wait=on_wait)
    assert isinstance(outcome, Done)
    assert seen[-1] == "Running"


class Failing(MemoryLedger):
    """The n-th append fails, before it is written or (the answer is lost) after."""

    def __init__(self, *, at: int, written: bool) -> None:
        super().__init__()
        self.left, self.written = at, written

    def append(self, *batches: Batch) -> list[Event]:
        self.left -= 1
        if self.left != 0:
            return super().append(*batches)
        if self.written:
            super().append(*batches)
        raise InfrastructureError("the ledger cannot be used: disk I/O error")


def life(world: World) -> tuple[int, int]:
    """A life with one killed rank, driven through failures. Returns (appends failed, attempts)."""
    failures = 0
    phase = None
    for _ in range(200):
        try:
            if not world.events():
                world.submit()
            outcome = world.driver.advance(Goal.REGISTER)
        except InfrastructureError:
            failures += 1
            continue
        if not isinstance(outcome, Waits):
            break
        world.clock.advance(1)
        phase = (outcome.state.phase, outcome.state.attempt)
        if phase == (Phase.RUNNING, 1) and world.gang.state == "running":
            world.seal(100)
            world.finish(KILLED)
        elif phase == (Phase.RUNNING, 2) and world.gang.state == "running":
            world.seal(200, attempt=2)
            world.finish()
    return failures, world.state.attempt


LIFE_APPENDS = 18
"""Appends of the life below when nothing fails; the last test says so if that changes."""


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("at", range(1, LIFE_APPENDS + 1))
def test_a_ledger_that_fails_in_the_middle_loses_nothing(
    tmp_path: Path, at: int, written: bool
) -> None:
    undisturbed = World(tmp_path / "a")
    life(undisturbed)
    world = World(tmp_path / "b", Failing(at=at, written=written))
    failures, attempts = life(world)
    assert (failures, attempts) == (1, 2)
    assert world.state.phase is Phase.SUCCEEDED
    kinds = [event.kind for event in world.events()]
    assert [k for k in kinds if k is not Kind.ADOPTED] == [
        event.kind for event in undisturbed.events() if event.kind is not Kind.ADOPTED
    ]
    started = [n for gang in world.engine.gangs.values() for n in gang.started]
    assert started == [1, 2], "each attempt ran once"
    assert len(world.publisher.published) == 1
    assert world.engine.capacity().free == 4
    assert world.ledger.jobs()[0].phase == "Succeeded"


def test_the_number_of_appends_is_as_said(tmp_path: Path) -> None:
    world = World(tmp_path, Failing(at=0, written=False))
    life(world)
    assert -world.ledger.left == LIFE_APPENDS  # type: ignore[attr-defined]


def test_a_clear_is_seen_in_lists_at_once(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    world.seal(100)
    world.finish()
    assert isinstance(world.settle(), Done)
    assert world.ledger.jobs()[0].phase == "Succeeded"
    assert wishes.clear(world.deps, JOB, task="train", number=2, mode="resume")
    (row,) = world.ledger.jobs()
    assert (row.phase, row.summary["reason"], row.summary["ended_at"]) == (
        "Validated", "cleared", None,
    )  # fmt: skip


class Claims(InstantGenerations):
    """Counts how often the claims of the job were dropped."""

    def __init__(self) -> None:
        self.released = 0

    def release_all(self, *, job: str) -> None:
        self.released += 1


def test_a_clear_that_is_known_takes_no_claim_from_what_runs(world: World) -> None:
    claims = Claims()
    world.use(cache=claims)
    world.run_to(Goal.RESERVE)
    for _ in range(3):
        wishes.clear(world.deps, JOB, task="train", number=2, mode="resume")
    assert claims.released == 1
    assert len(world.events(Kind.CLEARED)) == 1


class Busy(MemoryLedger):
    """Somebody else is always faster, for a while."""

    def __init__(self, conflicts: int) -> None:
        super().__init__()
        self.conflicts = conflicts

    def append(self, *batches: Batch) -> list[Event]:
        if self.conflicts and batches[0].events[0].kind is Kind.STOP_WANTED:
            self.conflicts -= 1
            raise Conflict(JOB, 1, 2)
        return super().append(*batches)


@pytest.mark.parametrize(("conflicts", "gets_in"), [(3, True), (49, True), (50, False)])
def test_a_wish_gets_in(tmp_path: Path, conflicts: int, gets_in: bool) -> None:
    world = World(tmp_path, Busy(conflicts))
    world.submit()
    if gets_in:
        wishes.stop(world.deps, JOB, mode="now", by="ada")
        assert world.state.stop_wanted is not None
    else:
        with pytest.raises(Conflict):
            wishes.stop(world.deps, JOB, mode="now", by="ada")


def test_many_wishes_at_once_are_all_kept(world: World) -> None:
    world.submit()
    threads = [
        threading.Thread(target=wishes.stop, args=(world.deps, JOB),
                         kwargs={"mode": "save", "by": f"user-{n}"})
        for n in range(8)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {event.body["by"] for event in world.events(Kind.STOP_WANTED)} == {
        f"user-{n}" for n in range(8)
    }
