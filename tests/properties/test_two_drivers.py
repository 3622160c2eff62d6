"""The rule machine: a job, two drivers, and everything that can come between.

One driver may fall asleep between its append and its act (its next call on the engine), for as long
as the machine likes: the job may be stopped, cleared, ended by the other driver meanwhile. Whatever
happens, there is never a second gang, no attempt runs twice, nothing is made after the end, and the
log stays foldable and its cost adds up.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.accounting import cost
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import JobState, fold
from ffdl_airflow.core.snapshot import restore
from ffdl_airflow.stages import wishes
from ffdl_airflow.stages.advance import Done, Driver, Ended, Restarting
from ffdl_airflow.stages.submit import submit
from ffdl_airflow.testing.builders import job
from ffdl_airflow.testing.fake_engine import FakeEngine, Gang
from ffdl_airflow.testing.instant import InstantPublisher, ManualClock, instant_deps
from ffdl_airflow.testing.memory_ledger import MemoryLedger

JOB = "bert-base-0123456789"
CAUSES = {
    "rank killed": {"kind": "signal", "signal": 9, "rank": 0, "replica": "worker-0"},
    "exit 1": {"kind": "exit", "exit": 1, "rank": 1, "replica": "worker-1"},
    "agent lost": {"kind": "agent-lost", "text": "worker-1 is silent"},
    "hang": {"kind": "hang", "text": "no step for 600 s"},
    "well": {"kind": "ok"},
}


class Nap:
    """Stops the thread of one driver before its next call on the engine, until it is woken."""

    def __init__(self) -> None:
        self.asleep = threading.Event()
        self._wake = threading.Event()
        self._armed = True

    def point(self) -> None:
        if self._armed:
            self._armed = False
            self.asleep.set()
            assert self._wake.wait(30)

    def wake(self) -> None:
        self._wake.set()


class SleepyEngine:
    """The engine as a driver sees it that may fall asleep before it acts."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self.nap: Nap | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if name not in ("reserve", "end", "connect"):
            return found
        return lambda *args: self._sleep_then(found, *args)

    def _sleep_then(self, call: Callable[..., Any], *args: Any) -> Any:
        if self.nap is not None:
            self.nap.point()
        return call(*args)


class TwoDrivers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tmp = Path(tempfile.mkdtemp())
        self.ledger, self.engine, self.clock = MemoryLedger(), FakeEngine(slots=2), ManualClock()
        self.sleepy = SleepyEngine(self.engine)
        publisher = InstantPublisher()
        engines = {"a": self.sleepy, "b": self.engine}
        self.deps = {
            name: instant_deps(self.tmp, ledger=self.ledger, engine=engine, clock=self.clock,
                               publisher=publisher, driver=name)  # type: ignore[arg-type]
            for name, engine in engines.items()
        }  # fmt: skip
        self.publisher = publisher
        submit(self.deps["b"], job(backoffLimit=2), job_id=JOB, owner={"key": "test"})
        self.drivers = {name: Driver(deps, JOB) for name, deps in self.deps.items()}
        self.nap: Nap | None = None
        self.thread: threading.Thread | None = None
        self.faults: list[BaseException] = []
        self.clears = 1
        self.step = 0

    def teardown(self) -> None:
        self._wake()
        shutil.rmtree(self.tmp)
        assert not self.faults

    def state(self) -> JobState:
        return fold(JOB, self.ledger.read(JOB))

    def gang(self) -> Gang | None:
        return next((gang for gang in self.engine.gangs.values() if gang.alive), None)

    def running(self) -> Gang | None:
        gang = self.gang()
        return gang if gang is not None and gang.state == protocol.RUNNING else None

    @rule(who=st.sampled_from("ab"), goal=st.sampled_from(list(Goal)), give_back=st.booleans())
    def drive(self, who: str, goal: Goal, give_back: bool) -> None:
        if who == "a" and self.nap is not None:
            return
        if goal is Goal.RELEASE and not self.state().terminal:
            return  # it stops the job; that has its own rule
        self.drivers[who].advance(goal, give_back=give_back)

    @rule()
    def a_new_driver(self) -> None:
        self.drivers["b"] = Driver(self.deps["b"], JOB)

    @precondition(lambda self: self.nap is None)
    @rule(goal=st.sampled_from([Goal.RESERVE, Goal.LAUNCH, Goal.REGISTER]))
    def drive_and_fall_asleep(self, goal: Goal) -> None:
        self.nap = self.sleepy.nap = Nap()
        done = threading.Event()

        def run() -> None:
            try:
                self.drivers["a"].advance(goal)
            except BaseException as error:  # noqa: BLE001 - shown by the machine
                self.faults.append(error)
            finally:
                done.set()

        self.thread = threading.Thread(target=run)
        self.thread.start()
        while not (self.nap.asleep.wait(0.001) or done.is_set()):
            continue
        if done.is_set():
            self._wake()

    @precondition(lambda self: self.nap is not None)
    @rule()
    def wake(self) -> None:
        self._wake()

    @precondition(lambda self: self.nap is not None)
    @rule(mode=st.sampled_from(["now", "save"]))
    def the_job_ends_while_a_driver_sleeps(self, mode: str) -> None:
        self.stop(mode, late=False)
        while not isinstance(self.drivers["b"].advance(Goal.REGISTER), (Done, Ended)):
            continue
        ran = [list(gang.started) for gang in self.engine.gangs.values()]
        self._wake()
        assert self.gang() is None, "a driver that woke after the end made a gang"
        assert ran == [list(gang.started) for gang in self.engine.gangs.values()]

    def _wake(self) -> None:
        if self.nap is not None and self.thread is not None:
            self.nap.wake()
            self.thread.join(30)
            assert not self.thread.is_alive()
        self.nap = self.sleepy.nap = self.thread = None
        assert not self.faults, self.faults

    @precondition(lambda self: self.running())
    @rule(cause=st.sampled_from(sorted(CAUSES)))
    def the_attempt_ends(self, cause: str) -> None:
        self.engine.finish(self.running().placement_id, CAUSES[cause])  # type: ignore[union-attr]

    @precondition(lambda self: self.running())
    @rule()
    def a_checkpoint(self) -> None:
        self.step += 100
        self.engine.seal(self.running().placement_id, self.step)  # type: ignore[union-attr]

    @precondition(lambda self: self.gang())
    @rule()
    def all_agents_die(self) -> None:
        self.engine.lose(self.gang().placement_id)  # type: ignore[union-attr]

    @precondition(lambda self: self.gang() and self.gang().state == protocol.HOLDING)
    @rule()
    def the_hold_runs_out(self) -> None:
        self.engine.expire(self.gang().placement_id)  # type: ignore[union-attr]

    @rule(mode=st.sampled_from(["now", "save"]), late=st.booleans())
    def stop(self, mode: str, late: bool) -> None:
        clears = self.state().clears - 1 if late else None
        wishes.stop(self.deps["b"], JOB, mode=mode, by="test", clears=clears)

    @rule(mode=st.sampled_from(["resume", "fresh"]), again=st.booleans())
    def clear(self, mode: str, again: bool) -> None:
        self.clears += not again
        wishes.clear(self.deps["b"], JOB, task="train", number=self.clears, mode=mode)

    @rule(seconds=st.sampled_from([0.1, 3.0, 400.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def there_is_one_gang_at_most(self) -> None:
        assert sum(gang.alive for gang in self.engine.gangs.values()) <= 1

    @invariant()
    def what_has_ended_holds_nothing(self) -> None:
        state = self.state()
        if state.terminal and not state.placed:
            assert self.gang() is None

    @invariant()
    def no_attempt_runs_twice(self) -> None:
        started = [n for gang in self.engine.gangs.values() for n in gang.started]
        assert len(started) == len(set(started))

    @invariant()
    def the_log_tells_one_story(self) -> None:
        events = self.ledger.read(JOB)
        state = fold(JOB, events)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert state.placed or not state.attempt_open
        assert state.costly <= 2
        (row,) = self.ledger.jobs(JOB)
        assert row.seq == state.seq
        start = restore(row.snapshot)
        assert start is not None
        assert fold(JOB, events[start.seq :], start) == state

    @invariant()
    def cost_adds_up(self) -> None:
        spent = cost(self.ledger.read(JOB), now=self.clock(), slots=2)
        assert abs(sum(spent.by_use.values()) - spent.total_s) < 1e-6
        assert abs(spent.total_s - 2 * spent.wall_s) < 1e-6
        assert all(value >= 0 for value in spent.by_use.values())

    @invariant()
    def a_job_is_registered_once_a_checkpoint(self) -> None:
        keys = list(self.publisher.published)
        assert len(keys) == len(set(keys))

    @precondition(lambda self: self.nap is None)
    @rule()
    def left_alone_it_comes_to_an_end(self) -> None:
        """From every state a driver that goes on, and gangs that end well, lead to an end."""
        for _ in range(60):
            outcome = self.drivers["b"].advance(Goal.REGISTER)
            if isinstance(outcome, (Done, Ended)):
                break
            assert not isinstance(outcome, Restarting)
            self.clock.advance(301)
            gang = self.running()
            if gang is not None:
                self.step += 100
                self.engine.seal(gang.placement_id, self.step)
                self.engine.finish(gang.placement_id, CAUSES["well"])
        state = self.state()
        assert state.terminal, state
        assert not state.placed
        assert self.gang() is None


TestTwoDrivers = TwoDrivers.TestCase
