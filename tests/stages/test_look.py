"""Reading a job that nobody drives: what its gang has written down since is shown."""

from __future__ import annotations

from typing import Any

from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.stages.look import Address, Reader, brought_up, find_job, story
from ffdl_airflow.stages.submit import submit
from ffdl_airflow.testing.builders import job
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


def test_a_reader_sees_what_is_new_and_what_the_gang_has_written(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    reader = Reader(world.deps, JOB)
    first = reader.glance()
    assert [event.seq for event in first.events] == [event.seq for event in world.events()]
    assert first.status is not None
    assert reader.glance().events == []
    world.seal(100)
    world.finish()
    before = world.events()
    seen = reader.glance()
    assert (seen.events, seen.state.checkpoint["step"]) == ([], 100)
    assert seen.state.last_attempt_ok
    assert world.events() == before, "nothing was appended"
    world.settle()
    last = reader.glance()
    assert [event.seq for event in last.events] == [e.seq for e in world.events()[len(before) :]]
    assert (last.state.phase, last.status) == ("Succeeded", None)


def test_a_job_is_found_by_where_it_comes_from(world: World) -> None:
    def address(dag: str = "nightly", **more: Any) -> Address:
        return Address(dag_id=dag, scope="train", **more)

    assert find_job(world.ledger, address()) is None
    for number, key in enumerate(("nightly/r1/train/-1", "nightly/r2/train/-1",
                                  "nightly/r2/train/3", "nightly/r2/other.train/-1",
                                  "weekly/r1/train/-1")):  # fmt: skip
        world.clock.advance(1)
        submit(world.deps, job(), job_id=f"job-{number}", owner={"key": f"airflow {key}"})
    found = world.ledger
    assert find_job(found, address(run_id="r1")) == "job-0"
    assert find_job(found, address(run_id="r2")) == "job-1"
    assert find_job(found, address(run_id="r2", map_index=3)) == "job-2"
    assert find_job(found, address()) == "job-1", "the newest run"
    assert find_job(found, address("weekly")) == "job-4"
    assert find_job(found, address(run_id="r3")) is None
