"""Reading a job that nobody drives: what its gang has written down since is shown."""

from __future__ import annotations

from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.stages.look import brought_up, story
from tests.stages.conftest import JOB, KILLED, World


def test_what_no_driver_has_taken_yet_is_told(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    before = world.events()
    assert story(world.deps, JOB) == before
    world.seal(100)
    world.finish()
    told = story(world.deps, JOB)
    assert [event.kind for event in told[len(before) :]] == [
        Kind.CHECKPOINT_SEALED, Kind.ATTEMPT_ENDED,
    ]  # fmt: skip
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    assert world.events() == before, "nothing was appended"


def test_a_job_that_is_not_there_has_no_story(world: World) -> None:
    assert story(world.deps, JOB) == []


def test_a_row_is_brought_up(world: World) -> None:
    world.submit()
    (row,) = world.ledger.jobs()
    assert brought_up(world.deps, row) is row
    world.advance(Goal.LAUNCH)
    (row,) = world.ledger.jobs()
    assert brought_up(world.deps, row) is row
    world.seal(100)
    (row,) = world.ledger.jobs()
    assert brought_up(world.deps, row).summary["checkpoint_step"] == 100
    world.finish()
    told = brought_up(world.deps, row)
    assert told.phase == "Stopping"
    assert told.summary["reason"].startswith("attempt 1 has ended well; a driver goes on")


def test_a_failure_that_nobody_judged_yet(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    (row,) = world.ledger.jobs()
    world.finish(KILLED)
    assert brought_up(world.deps, row).phase == "Stopping"
