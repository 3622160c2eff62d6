"""What a failed job tells a person to do fits the reason why there is no further attempt."""

from __future__ import annotations

from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.testing.builders import job
from tests.stages.conftest import EXIT_1, KILLED, World


def test_a_job_that_saves_nothing_is_not_told_that_it_resumes(world: World) -> None:
    """Five attempts are killed from outside, which costs nothing, and no checkpoint comes."""
    world.run_to(Goal.LAUNCH)
    limit = job().spec.noAdvanceLimit
    for _ in range(limit):
        world.finish(KILLED)
        world.settle()
    (failed,) = world.events(Kind.FAILED)
    assert f"{limit} attempts in a row without a newer valid checkpoint" in failed.body["reason"]
    assert failed.body["next_step"].startswith("look why no checkpoint becomes complete: ")
    *restarted, last = [event.body["next_step"] for event in world.events(Kind.VERDICT)]
    assert all(text.startswith("nothing to do: the job resumes") for text in restarted)
    assert last == failed.body["next_step"]


def test_a_second_end_of_the_same_kind_is_called_so(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    for _ in range(2):
        world.finish(EXIT_1, tail="OSError: [Errno 28] No space left on device")
        world.settle()
    (failed,) = world.events(Kind.FAILED)
    assert "(DISK_FULL: a second attempt ended the same way)" in failed.body["reason"]
    assert "make room" in failed.body["next_step"]
