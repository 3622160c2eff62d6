"""Four slots, gangs of three and two at once, and a kill in half of the rounds.

Never a half-placed gang that stays, no deadlock, no slot lost, no process left.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil
import pytest
from installation import Installation, show

from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.job import job_id_for
from ffdl_airflow.core.manifests.ffdl import read_job
from ffdl_airflow.stages import wishes
from ffdl_airflow.stages.submit import submit
from tests.trainers.counting import weights_after

STEPS = 12
VICTIMS = ("driver", "agent", "trainer")


def test_two_gangs_that_do_not_fit_together(
    installation: Installation, wait_until: Callable[..., Any], rounds: Callable[..., int]
) -> None:
    chance = random.Random(4711)
    for number in range(rounds(6, soak=200)):
        jobs = {_submit(installation, size, f"r{number}"): size for size in (3, 2)}
        drivers = {job_id: installation.fork_driver(job_id) for job_id in jobs}
        if number % 2:
            job_id = chance.choice(sorted(jobs))
            victim = VICTIMS[number // 2 % len(VICTIMS)]
            _kill(installation, victim, job_id, drivers, wait_until, chance)
        for job_id, size in jobs.items():
            _finish(installation, job_id, drivers[job_id], wait_until)
            story = show(installation.events(job_id))
            assert installation.weights(job_id) == weights_after(STEPS), story
            for placed in installation.events(job_id, Kind.PLACED):
                assert len(placed.body["joined"]) == len(placed.body["slots"]) == size, story
        wait_until(lambda: not installation.processes(), message="every process is gone")
        assert installation.inventory().free == 4, installation.inventory()


def _submit(installation: Installation, size: int, scope: str) -> str:
    options = {"steps": STEPS, "every": 4, "step-delay": 0.02}
    path = installation.manifest(f"gang-{size}", replicas=size, options=options)
    job = read_job(path.read_text())
    job_id = job_id_for(job.metadata.name, scope)
    submit(installation.deps(), job, job_id=job_id, owner={"key": "test"})
    return job_id


def _kill(installation: Installation, victim: str, job_id: str, drivers: dict[str, int],
          wait_until: Callable[..., Any], chance: random.Random) -> None:  # fmt: skip
    """At a random moment of its life, or when there is nothing left to kill."""
    phase = chance.choice([Kind.RESERVE_INTENDED, Kind.PLACED, Kind.RUNNING])
    wait_until(lambda: installation.events(job_id, phase, Kind.SUCCEEDED), message=str(phase))
    if victim == "driver":
        os.kill(drivers[job_id], signal.SIGKILL)
        os.waitpid(drivers[job_id], 0)
        drivers[job_id] = installation.fork_driver(job_id)
        return
    found: dict[Any, psutil.Process] = {}

    def look() -> bool:
        nonlocal found
        found = (installation.agents if victim == "agent" else installation.ranks)(job_id)  # type: ignore[assignment]
        return bool(found) or bool(installation.events(job_id, Kind.SUCCEEDED))

    wait_until(look, message=f"a living {victim}")
    for process in [found[chance.choice(sorted(found))]] if found else []:
        with suppress(psutil.NoSuchProcess):  # it may just have ended
            process.kill()


def _finish(installation: Installation, job_id: str, driver: int,
            wait_until: Callable[..., Any]) -> None:  # fmt: skip
    """Its driver ends by itself, and well."""
    ended = wait_until(lambda: os.waitpid(driver, os.WNOHANG)[0], timeout=120,
                       message=lambda: show(installation.events(job_id)))  # fmt: skip
    assert ended == driver
    state = installation.state(job_id)
    assert state.phase == "Succeeded", f"{state.reason}\n{show(installation.events(job_id))}"


class StopsBefore:
    """An engine whose driver stops itself (SIGSTOP) before one act."""

    def __init__(self, engine: Any, act: str) -> None:
        self._engine = engine
        self._act = act

    def __getattr__(self, name: str) -> Any:
        if name == self._act:
            self._act = ""
            os.kill(os.getpid(), signal.SIGSTOP)
        found = getattr(self._engine, name)
        if name == "connect" and self._act == "go":
            return lambda placement_id: StopsBefore(found(placement_id), "go")
        return found


@pytest.mark.parametrize("act", ["reserve", "go"])
def test_a_driver_that_sleeps_through_the_end_creates_nothing(
    installation: Installation, wait_until: Callable[..., Any], act: str
) -> None:
    job_id = _submit(installation, 2, act)
    driver = installation.fork_driver(job_id, wrap=lambda engine: StopsBefore(engine, act))
    wait_until(lambda: psutil.Process(driver).status() == psutil.STATUS_STOPPED, message="asleep")
    intent = Kind.RESERVE_INTENDED if act == "reserve" else Kind.GO_INTENDED
    assert installation.events(job_id, intent)
    wishes.stop(installation.deps(), job_id, mode="now", by="test")
    assert installation.drive(job_id).phase == "Stopped"
    os.kill(driver, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(driver, 0)[1]) == 0
    assert installation.processes() == []
    assert not installation.steps(job_id)
    assert installation.inventory().free == 4
    assert not installation.events(job_id, Kind.RUNNING)
    if act == "reserve":
        assert not installation.events(job_id, Kind.PLACED)


def test_a_small_gang_does_not_starve_a_big_one(
    installation: Installation, wait_until: Callable[..., Any]
) -> None:
    """A gang of two runs; one of four waits; a later one of two could fit, but would delay it."""
    jobs = []
    for size, steps, scope in ((2, 100_000, "first"), (4, STEPS, "big"), (2, STEPS, "late")):
        options = {"steps": steps, "every": 50, "step-delay": 0.02}
        path = installation.manifest(f"queue-{scope}", replicas=size, options=options)
        job = read_job(path.read_text())
        job_id = job_id_for(job.metadata.name, scope)
        submit(installation.deps(), job, job_id=job_id, owner={"key": "test"})
        pid = installation.fork_driver(job_id, Goal.REGISTER)
        jobs.append((job_id, pid))
        kinds = (Kind.PLACED,) if scope == "first" else (Kind.WAITING,)
        wait_until(lambda j=job_id, k=kinds: installation.events(j, *k), message=f"{scope} {kinds}")
    first, driver = jobs[0]
    wishes.stop(installation.deps(), first, mode="now", by="test")
    wait_until(lambda: os.waitpid(driver, os.WNOHANG)[0], message="the first driver ends")
    for job_id, pid in jobs[1:]:
        _finish(installation, job_id, pid, wait_until)
    placed = [installation.events(job_id, Kind.PLACED)[0].at for job_id, _ in jobs]
    assert placed == sorted(placed)
    assert "ahead in the queue" in installation.events(jobs[2][0], Kind.WAITING)[0].body["reason"]
