"""The reaper: what it ends, what it leaves, and that one bad job is no other's trouble."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.core.events import Event, Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import Phase
from ffdl_airflow.engines.base import EndRequest
from ffdl_airflow.hooks.standing import Standing
from ffdl_airflow.ledger.base import Batch
from ffdl_airflow.stages.reap import reap
from ffdl_airflow.testing.fake_engine import FakeEngine
from ffdl_airflow.testing.memory_ledger import MemoryLedger
from tests.stages.conftest import JOB, World


class Listing(FakeEngine):
    """An engine that can list what exists."""

    def placements(self) -> list[str]:
        return [gang.placement_id for gang in self.gangs.values() if gang.alive]


def test_an_engine_that_lists_nothing_has_nothing_to_reap(world: World) -> None:
    world.run_to(Goal.RESERVE)
    assert reap(world.deps) == []


def test_what_is_needed_stays(tmp_path: Path) -> None:
    world = World(tmp_path, engine=Listing(slots=4))
    world.run_to(Goal.LAUNCH)
    assert reap(world.deps) == []
    assert world.gang.alive


def orphan(world: World, make: Any) -> str:
    world.run_to(Goal.LAUNCH)
    make(world)
    (found,) = reap(world.deps)
    assert reap(world.deps) == []
    assert world.engine.capacity().free == 4
    return found.why


def test_a_gang_of_a_job_that_nobody_knows_is_ended(tmp_path: Path) -> None:
    world = World(tmp_path, engine=Listing(slots=4))
    other = World(tmp_path / "other", engine=world.engine)
    other.run_to(Goal.RESERVE)
    (found,) = reap(world.deps)
    assert (found.placement_id, found.why) == (f"{JOB}/1", "the ledger does not know its job")
    assert world.engine.capacity().free == 4


def stopped_behind(world: World) -> None:
    """The job has ended, and its driver was killed before it ended the placement."""
    body = {"reason": "stopped by ada"}
    event = world.events()[-1]
    new = type(event)(**{**vars(event), "kind": Kind.STOPPED, "body": body, "dedupe": None,
                         "source": {}})  # fmt: skip
    world.ledger.append(Batch(stream=JOB, expected_seq=None, events=[new]))  # type: ignore[list-item]


def released_behind(world: World) -> None:
    event = world.events()[-1]
    new = type(event)(**{**vars(event), "kind": Kind.RELEASED, "body": {"placement": 1},
                         "dedupe": None, "source": {}})  # fmt: skip
    world.ledger.append(Batch(stream=JOB, expected_seq=None, events=[new]))  # type: ignore[list-item]


def replaced_behind(world: World) -> None:
    """An older gang that comes back, as a sleeping driver could have made it."""
    world.engine.end(f"{JOB}/1", EndRequest(why="test"))
    while world.state.placement == 1:
        world.advance()
    gang = world.engine.gangs[f"{JOB}/1"]
    gang.state = "holding"
    world.engine.end(f"{JOB}/2", EndRequest(why="test"))


@pytest.mark.parametrize(
    ("make", "why"),
    [(stopped_behind, "its job has ended (Stopped)"), (released_behind, "its job has released it"),
     (replaced_behind, "its job has a newer placement")],
)  # fmt: skip
def test_what_nobody_comes_back_for_is_ended(tmp_path: Path, make: Any, why: str) -> None:
    world = World(tmp_path, engine=Listing(slots=4))
    assert orphan(world, make).startswith(why)


class Torn(MemoryLedger):
    """A ledger that cannot read some jobs."""

    def read(self, stream: str, after: int = 0) -> list[Event]:
        if stream.startswith("torn"):
            raise ValueError(f"{stream} cannot be read")
        return super().read(stream, after)


def test_a_job_that_cannot_be_read_keeps_no_other_from_being_ended(tmp_path: Path) -> None:
    world = World(tmp_path, Torn(), Listing(slots=4))
    lost = World(tmp_path / "lost", engine=world.engine)
    lost.run_to(Goal.RESERVE)
    torn = replace(world.engine.gangs[f"{JOB}/1"], placement_id="torn-1/1")
    world.engine.gangs = {torn.placement_id: torn, **world.engine.gangs}
    broken, ended = reap(world.deps)
    assert broken.error == "ValueError: torn-1 cannot be read"
    assert "could not be looked at" in broken.text
    assert (ended.placement_id, ended.error) == (f"{JOB}/1", None)


def test_a_bounded_round_looks_at_so_many_and_each_has_its_turn(tmp_path: Path) -> None:
    names = {f"torn-{number}/1" for number in range(10)}
    engine = Listing(slots=4)
    world = World(tmp_path, Torn(), engine)
    engine.placements = lambda: sorted(names)  # type: ignore[method-assign]
    seen: set[str] = set()
    for _ in range(300):
        found = reap(world.deps, at_most=3)
        assert len(found) == 3
        seen |= {one.placement_id for one in found}
    assert seen == names
    assert len(reap(world.deps)) == 10


@pytest.mark.parametrize(("says", "ends"), [("taken", True), ("missing", True),
                                            ("wanted", False), ("unknown", False)])  # fmt: skip
def test_an_owner_that_will_not_come_back(tmp_path: Path, says: str, ends: bool) -> None:
    world = World(tmp_path, engine=Listing(slots=4))
    world.run_to(Goal.LAUNCH)
    found = reap(world.deps, standing=lambda owner: Standing(says))
    assert [one.placement_id for one in found] == [f"{JOB}/1"] * ends
    assert (world.state.phase is Phase.STOPPED) is ends
