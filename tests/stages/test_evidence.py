"""What a driver makes of a control plane that says why replicas are lost, at its own time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.events import Kind, iso
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.observation import Observation, Presence
from ffdl_airflow.stages.advance import Waits
from ffdl_airflow.stages.evidence import WORD_S
from ffdl_airflow.testing.fake_engine import FakeEngine, Gang
from tests.stages.conftest import World

SILENT = {"kind": protocol.CAUSE_AGENT_LOST, "replica": "worker-1",
          "text": "the agent of worker-1 was silent"}  # fmt: skip
TOLD = {"kind": protocol.CAUSE_TERMINATED, "replica": "worker-1",
        "text": "the agent of worker-1 was told to end"}  # fmt: skip


class Telling(FakeEngine):
    """A fake engine with a control plane: the test says what that says of replicas."""

    def __init__(self) -> None:
        super().__init__(slots=4)
        self.lost: tuple[Mapping[str, Any], ...] = ()
        self.says: dict[str, Any] = {}

    def observe(self, placement_id: str, after: int) -> Observation:
        seen = super().observe(placement_id, after)
        return replace(seen, lost=self.lost, **self.says)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, engine=Telling())


def lost(world: World, what: str, replica: str = "worker-1") -> dict[str, Any]:
    return {"what": what, "replica": replica, "node": "gpu-7", "message": f"it was {what}",
            "ran": True, "at": iso(world.clock())}  # fmt: skip


def verdict(world: World) -> Mapping[str, Any]:
    (found,) = world.events(Kind.VERDICT)
    return found.body


@pytest.mark.parametrize("cause", [SILENT, TOLD])
def test_a_verdict_waits_for_the_control_planes_word(world: World, cause: dict[str, Any]) -> None:
    world.run_to(Goal.LAUNCH)
    world.engine.says = {"unsaid": ("worker-1",)}
    world.finish(cause)
    outcome = world.advance()
    assert isinstance(outcome, Waits)
    assert outcome.wait.what == "what the control plane says of worker-1"
    assert not world.events(Kind.VERDICT)
    world.engine.says, world.engine.lost = {}, (lost(world, "preempted"),)
    world.settle()
    assert verdict(world)["class"] == "PREEMPTED"
    assert verdict(world)["cause"] == "worker-1 on gpu-7: it was preempted"


def test_a_word_that_never_comes_is_not_waited_for_without_end(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    world.engine.says = {"unsaid": ("worker-1",)}
    world.clock.now = datetime.now(timezone.utc)  # as the ledger has it
    world.finish(SILENT)
    assert isinstance(world.advance(), Waits)
    world.clock.advance(WORD_S + 1)
    world.settle()
    assert (verdict(world)["class"], verdict(world)["cause"]) == ("KILLED_OUTSIDE", SILENT["text"])


def test_a_gang_that_has_lost_an_agent_holds_nothing(world: World) -> None:
    """Whatever it still says: it is on its way out."""
    world.run_to(Goal.LAUNCH)
    world.finish(SILENT)
    world.advance()
    (restart,) = world.events(Kind.RESTART_DECIDED)
    assert restart.body["to"] == "Reserving"


def test_a_preemption_does_not_overrule_an_ordered_end(world: World) -> None:
    """The job has run out of its time, and while it saves a pod of it is preempted."""
    world.run_to(Goal.LAUNCH)
    ending = {"class": "DEADLINE", "cause": "launch took too long", "next_step": "raise it"}
    world.driver._append([
        event(world, Kind.END_INTENDED, why="launch took too long", mode="save", verdict=ending)
    ])  # fmt: skip
    world.engine.lost = (lost(world, "preempted"),)
    world.settle()
    assert verdict(world)["class"] == "DEADLINE"
    assert world.state.phase == "Failed"


def event(world: World, kind: Kind, **body: Any) -> Any:
    from ffdl_airflow.core.events import NewEvent

    return NewEvent(kind=kind, at=world.clock(), body={"placement": 1, **body})


def test_an_unknown_presence_is_waited_for(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    world.engine.says = {"presence": Presence.UNKNOWN, "status": None}
    outcome = world.advance()
    assert isinstance(outcome, Waits)
    assert not world.events(Kind.ATTEMPT_ENDED)


def test_what_keeps_a_placed_gang_from_starting_is_told_once(world: World) -> None:
    world.engine.says = {"waiting": "worker-0: image x cannot be pulled yet", "status": None,
                         "facts": ()}  # fmt: skip
    world.submit()
    for _ in range(3):
        assert isinstance(world.advance(), Waits)
    (waiting,) = world.events(Kind.WAITING)
    assert waiting.body["reason"] == "worker-0: image x cannot be pulled yet"
    assert world.state.waiting == waiting.body["reason"]


def test_a_gang_that_leaves_before_it_starts_is_told_in_its_own_words(world: World) -> None:
    world.engine.says = {"presence": Presence.GONE, "status": None, "facts": (),
                         "last_word": "not joined within 60 s: worker-1"}  # fmt: skip
    world.submit()
    world.settle(Goal.RESERVE)
    assert world.events(Kind.RELEASED)[0].body["why"] == "not joined within 60 s: worker-1"
    assert world.events(Kind.RELEASED)[0].body["lost"]


def test_a_loss_while_a_gang_is_being_placed_ends_what_cannot_start(world: World) -> None:
    world.engine.gangs["other-0123456789/1"] = Gang("other-0123456789/1", (0, 1, 2))
    world.submit()
    assert isinstance(world.advance(), Waits)
    assert world.state.phase == "Reserving"
    world.engine.lost = (lost(world, "config"),)
    world.settle()
    assert world.state.phase == "Failed"
    (failed,) = world.events(Kind.FAILED)
    assert failed.body["class"] == "CONFIG"
