"""What every engine promises. Subclass it and give the fixtures.

``engine`` has four free slots (or what its place calls so); ``reopened`` is a second object on the
same place, as another driver has it. ``plan`` is a :class:`PlanFactory` whose gangs run a program
that goes on until it is ended; ``builders.gang_plan`` makes them for gangs on this host. What an
engine cannot be asked for, a test has to do to it: ``lose`` kills all agents of a placement from
outside, ``expire`` sees to it that a hold of ``SHORT_S`` is over (nothing to do where time passes
by itself). Where a test can have them, ``left`` counts the processes of a placement, and
``elsewhere`` is an engine of another installation on the same hosts.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pytest

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.events import Kind, NewEvent
from ffdl_airflow.core.observation import Observation, Presence
from ffdl_airflow.core.plan import GangPlan
from ffdl_airflow.engines.base import (
    AgentAway,
    AgentRefused,
    Ending,
    EndRequest,
    Engine,
    Evidence,
    Granted,
    Over,
    SupportsPlacements,
    Waiting,
)  # fmt: skip

SLOTS = 4
SHORT_S = 1.0
"""A hold that a test can wait for, in seconds."""
LIMIT_S = 60.0
"""Longest wait for anything here; a local gang needs a tenth of a second, pods some seconds."""

Spoil = Callable[[str], None]
"""Does something to the placement that is named."""


Count = Callable[[str], int]
"""How many processes there are of the placement that is named, agents and what they have begun."""


class PlanFactory(Protocol):
    """``plan("a", replicas=2)``: a plan of a job of that name; the same for the same arguments.

    ``deaf``, only asked for where ``left`` is given: it runs ``builders.DEAF``.
    """

    def __call__(
        self, name: str, *, replicas: int = 1, placement: int = 1, hold_s: float = 60.0,
        deaf: bool = False,
    ) -> GangPlan:  # fmt: skip
        """See the class."""
        ...


def until(condition: Callable[[], Any], what: object) -> Any:
    """What the condition gives as soon as that is true."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {LIMIT_S:g} s: {what}"
        time.sleep(0.01)
    return found


def granted(engine: Engine, plan: GangPlan) -> Granted:
    """Reserve, asking again until the gang has its resources."""
    answers: list[object] = []

    def ask() -> bool:
        answers[:] = [engine.reserve(plan)]
        return isinstance(answers[0], Granted)

    until(ask, answers)
    answer = answers[0]
    assert isinstance(answer, Granted)
    return answer


def held(engine: Engine, plan: GangPlan) -> Observation:
    """Reserve, and wait until the whole gang holds its place."""
    granted(engine, plan)
    return in_state(engine, plan, protocol.HOLDING)


def in_state(engine: Engine, plan: GangPlan, state: str) -> Observation:
    """Wait until the gang is in a state; the observation has the whole journal."""
    seen: list[Observation] = []

    def look() -> bool:
        seen[:] = [engine.observe(plan.placement_id, 0)]
        return seen[0].gang_state == state

    until(look, f"{plan.placement_id} is {state}")
    return seen[0]


def running(engine: Engine, plan: GangPlan, attempt: int = 1) -> Observation:
    """Start an attempt on a gang that holds, and wait until it runs."""
    engine.connect(plan.placement_id).go(order(attempt))
    return in_state(engine, plan, protocol.RUNNING)


def order(attempt: int) -> dict[str, Any]:
    """What *go* is told, for a start from nothing."""
    return {"attempt": attempt, "resume_from": None, "resume_step": None, "time_left_s": None,
            "env": {}}  # fmt: skip


def ended(engine: Engine, plan: GangPlan, *, mode: str = protocol.STOP_NOW) -> Evidence:
    """End the placement, asking again until it is gone."""
    request = EndRequest(why="the test is over", mode=mode, grace_s=1.0)

    def ask() -> Evidence | None:
        answer = engine.end(plan.placement_id, request)
        assert isinstance(answer, (Evidence, Ending))
        return answer if isinstance(answer, Evidence) else None

    found: Evidence = until(ask, f"{plan.placement_id} is ended")
    return found


def journal(engine: Engine, plan: GangPlan, *kinds: Kind) -> list[NewEvent]:
    """Facts of the placement, of some kinds or of all."""
    facts = engine.observe(plan.placement_id, 0).facts
    return [fact for fact in facts if not kinds or fact.kind in kinds]


def gone(engine: Engine, plan: GangPlan) -> Callable[[], bool]:
    """Whether no agent of the placement lives."""
    return lambda: engine.observe(plan.placement_id, 0).presence is Presence.GONE


class EndContract:
    """Of what is ended nothing is left and nothing is made any more; a part of EngineContract."""

    @pytest.fixture
    def left(self) -> Count | None:
        """None: the processes are where no test sees them."""
        return None

    @pytest.fixture
    def elsewhere(self) -> Engine | None:
        """None: there is one installation only."""
        return None

    def test_what_was_ended_before_it_was_made_is_never_made(
        self, engine: Engine, reopened: Engine, plan: PlanFactory
    ) -> None:
        """A driver that slept between its intent and its act creates nothing."""
        gang = plan("never")
        assert ended(engine, gang).killed == 0
        assert isinstance(reopened.reserve(gang), Over)
        assert isinstance(engine.reserve(gang), Over)
        assert engine.observe(gang.placement_id, 0).presence is Presence.GONE
        assert engine.capacity().free == SLOTS
        held(engine, plan("never", placement=2))

    def test_what_was_ended_while_it_waited_is_never_made(
        self, engine: Engine, plan: PlanFactory
    ) -> None:
        """And it does not stand in the way of others any more."""
        holder, waiter, last = plan("x", replicas=2), plan("y", replicas=4), plan("z", replicas=2)
        held(engine, holder)
        assert isinstance(engine.reserve(waiter), Waiting)
        ended(engine, waiter)
        held(engine, last)
        assert isinstance(engine.reserve(waiter), Over)

    def test_end_leaves_nothing_and_may_be_called_again(
        self, engine: Engine, reopened: Engine, plan: PlanFactory
    ) -> None:
        """The gang that held is gone, its slots are free, its name is used up."""
        gang = plan("ended", replicas=2)
        held(engine, gang)
        ended(engine, gang)
        assert ended(reopened, gang) == ended(engine, gang)
        seen = engine.observe(gang.placement_id, 0)
        assert (seen.presence, seen.status) == (Presence.GONE, None)
        assert engine.capacity().free == SLOTS
        assert isinstance(engine.reserve(gang), Over)
        client = engine.connect(gang.placement_id)
        with pytest.raises((AgentAway, AgentRefused)):
            client.go(order(1))
        with pytest.raises((AgentAway, AgentRefused)):
            client.renew(1.0)

    def test_end_of_what_runs(self, engine: Engine, plan: PlanFactory) -> None:
        """The attempt's end is in the journal, with a stop as its cause."""
        gang = plan("runs", replicas=2)
        held(engine, gang)
        running(engine, gang)
        ended(engine, gang)
        (fact,) = journal(engine, gang, Kind.ATTEMPT_ENDED)
        assert (fact.attempt, fact.body["ok"]) == (1, False)
        assert fact.body["cause"]["kind"] == protocol.CAUSE_STOP
        assert engine.observe(gang.placement_id, 0).presence is Presence.GONE
        assert engine.capacity().free == SLOTS

    def test_end_after_a_save(self, engine: Engine, plan: PlanFactory) -> None:
        """What runs is asked to save first, and is not waited for longer than asked."""
        gang = plan("saved")
        held(engine, gang)
        running(engine, gang)
        ended(engine, gang, mode=protocol.STOP_SAVE)
        told = journal(engine, gang, Kind.SAVE_REQUESTED, Kind.ATTEMPT_ENDED)
        assert [fact.kind for fact in told] == [Kind.SAVE_REQUESTED, Kind.ATTEMPT_ENDED]
        assert engine.capacity().free == SLOTS

    def test_end_leaves_no_process(
        self, engine: Engine, plan: PlanFactory, left: Count | None
    ) -> None:
        """Also none that ignores SIGTERM in a session of its own."""
        if left is None:
            pytest.skip("its processes cannot be counted from here")
        gang = plan("deaf", deaf=True)
        held(engine, gang)
        running(engine, gang)
        until(lambda: left(gang.placement_id) >= 1 + 3, "an agent, its child, and two below")
        ended(engine, gang)
        assert left(gang.placement_id) == 0

    def test_end_touches_nothing_else(self, engine: Engine, plan: PlanFactory) -> None:
        """Not even the next placement of the same job, or the first of one by a longer name."""
        gang = plan("near")
        others = [plan("near", placement=2), plan("near-by")]
        for one in (gang, *others):
            held(engine, one)
            running(engine, one)
        ended(engine, gang)
        for other in others:
            assert engine.observe(other.placement_id, 0).gang_state == protocol.RUNNING
            assert not journal(engine, other, Kind.ATTEMPT_ENDED)
        assert engine.capacity().free == SLOTS - len(others)
        if isinstance(engine, SupportsPlacements):
            names = sorted(other.placement_id for other in others)
            until(lambda: sorted(engine.placements()) == names, "what is left is listed")

    def test_end_touches_no_other_installation(
        self, engine: Engine, elsewhere: Engine | None, plan: PlanFactory
    ) -> None:
        """The same DAG in both: the same job id, and the same number of placement."""
        if elsewhere is None:
            pytest.skip("there is no other installation")
        gang = plan("same")
        for one in (engine, elsewhere):
            held(one, gang)
        for one in (engine, elsewhere):
            running(one, gang)
        ended(engine, gang)
        assert elsewhere.observe(gang.placement_id, 0).gang_state == protocol.RUNNING
        assert elsewhere.capacity().free == SLOTS - 1
        ended(elsewhere, gang)


class EngineContract(EndContract):
    """Run on the fake and on every adapter."""

    def has_its_places(self, placed: Mapping[str, Any], gang: GangPlan) -> None:
        """Placed says what the gang has. An engine without numbered slots names nodes instead."""
        assert len(placed["slots"]) == gang.slots

    def test_a_gang_is_placed_whole(self, engine: Engine, plan: PlanFactory) -> None:
        """Placed names every replica and what it has; before the first reserve there is nothing."""
        gang = plan("whole", replicas=3)
        before = engine.observe(gang.placement_id, 0)
        assert (before.presence, before.status, before.facts) == (Presence.ABSENT, None, ())
        seen = held(engine, gang)
        assert seen.presence is Presence.ALIVE
        assert [fact.kind for fact in seen.facts] == [Kind.PLACED, Kind.RESERVED]
        assert seen.facts[0].body["joined"] == [replica.name for replica in gang.replicas]
        self.has_its_places(seen.facts[0].body, gang)
        assert seen.facts[0].body["placement"] == gang.placement
        status = engine.connect(gang.placement_id).status()
        assert status["state"] == protocol.HOLDING
        assert not status["attempt"]

    def test_reserve_may_be_called_again(self, engine: Engine, plan: PlanFactory) -> None:
        """The same place, not a second one, however often it is asked for."""
        gang = plan("again", replicas=2)
        first = granted(engine, gang)
        held(engine, gang)
        assert [engine.reserve(gang) for _ in range(3)] == [first] * 3
        assert engine.capacity().free == SLOTS - 2
        assert len(journal(engine, gang, Kind.PLACED)) == 1

    def test_two_drivers_make_one_gang(
        self, engine: Engine, reopened: Engine, plan: PlanFactory
    ) -> None:
        """At the same moment; both get the same slots."""
        gang = plan("twice", replicas=2)
        answers: list[Any] = []
        together = threading.Barrier(2)

        def reserve(mine: Engine) -> None:
            together.wait()
            answers.append(granted(mine, gang))

        threads = [threading.Thread(target=reserve, args=(mine,)) for mine in (engine, reopened)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 2
        assert isinstance(answers[0], Granted)
        assert answers[0] == answers[1]
        in_state(reopened, gang, protocol.HOLDING)
        assert engine.capacity().free == SLOTS - 2
        assert len(journal(engine, gang, Kind.PLACED)) == 1
        ended(reopened, gang)
        assert engine.capacity().free == SLOTS

    def test_what_does_not_fit_waits(self, engine: Engine, plan: PlanFactory) -> None:
        """With a reason that names the holder; nothing is created, and its turn comes."""
        first, second = plan("holder", replicas=3), plan("waiter", replicas=2)
        held(engine, first)
        answer = engine.reserve(second)
        assert isinstance(answer, Waiting)
        assert first.placement_id in answer.reason
        assert engine.observe(second.placement_id, 0).presence is Presence.ABSENT
        assert engine.capacity().free == SLOTS - 3
        ended(engine, first)
        held(engine, second)
        assert engine.capacity().free == SLOTS - 2

    def test_each_fact_comes_once(
        self, engine: Engine, reopened: Engine, plan: PlanFactory
    ) -> None:
        """After the number that is known already, in order, to every driver, also at the end."""
        gang = plan("facts")
        held(engine, gang)
        running(engine, gang)
        ended(engine, gang)
        facts = engine.observe(gang.placement_id, 0).facts
        numbers = [fact.source["journal_seq"] for fact in facts]
        assert numbers == sorted(set(numbers))
        assert len({fact.dedupe for fact in facts}) == len(facts)
        for count, number in enumerate(numbers, start=1):
            assert reopened.observe(gang.placement_id, number).facts == facts[count:]
        kinds = [fact.kind for fact in facts]
        assert kinds[:3] == [Kind.PLACED, Kind.RESERVED, Kind.RUNNING]
        assert Kind.ATTEMPT_ENDED in kinds[3:]
        assert [fact.at for fact in facts] == sorted(fact.at for fact in facts)

    def test_go_may_be_called_again(
        self, engine: Engine, reopened: Engine, plan: PlanFactory
    ) -> None:
        """One attempt of a number, whoever asks and how often."""
        gang = plan("go")
        held(engine, gang)
        for mine in (engine, reopened, engine):
            mine.connect(gang.placement_id).go(order(1))
        in_state(engine, gang, protocol.RUNNING)
        reopened.connect(gang.placement_id).go(order(1))
        (fact,) = journal(engine, gang, Kind.RUNNING)
        assert fact.attempt == 1
        assert engine.observe(gang.placement_id, 0).attempt == 1

    def test_go_is_refused_with_a_code(self, engine: Engine, plan: PlanFactory) -> None:
        """An attempt that is over or older, and one while another runs."""
        gang = plan("refused")
        held(engine, gang)
        running(engine, gang, attempt=2)
        client = engine.connect(gang.placement_id)
        with pytest.raises(AgentRefused) as stale:
            client.go(order(1))
        assert stale.value.code == "stale-attempt"
        with pytest.raises(AgentRefused) as busy:
            client.go(order(3))
        assert busy.value.code == "not-holding"
        assert [fact.attempt for fact in journal(engine, gang, Kind.RUNNING)] == [2]

    def test_a_restart_on_the_same_placement(self, engine: Engine, plan: PlanFactory) -> None:
        """Stop, then hold: the place is kept and the next attempt runs on it."""
        gang = plan("restart", replicas=2)
        held(engine, gang)
        running(engine, gang)
        engine.connect(gang.placement_id).stop(mode="now", why="again, please", then="hold")
        in_state(engine, gang, protocol.HOLDING)
        (first,) = journal(engine, gang, Kind.ATTEMPT_ENDED)
        assert (first.attempt, first.body["cause"]["kind"]) == (1, protocol.CAUSE_STOP)
        assert engine.capacity().free == SLOTS - 2
        running(engine, gang, attempt=2)
        assert [fact.attempt for fact in journal(engine, gang, Kind.RUNNING)] == [1, 2]
        assert len(journal(engine, gang, Kind.PLACED)) == 1

    def test_stop_then_leave(self, engine: Engine, plan: PlanFactory) -> None:
        """The gang goes by itself; ``end`` still closes the fence."""
        gang = plan("leave")
        held(engine, gang)
        running(engine, gang)
        engine.connect(gang.placement_id).stop(mode="now", why="enough", then="leave")
        until(gone(engine, gang), "the gang has left")
        assert len(journal(engine, gang, Kind.ATTEMPT_ENDED)) == 1
        ended(engine, gang)
        assert engine.capacity().free == SLOTS

    def test_a_save_is_asked_for_once_it_runs(self, engine: Engine, plan: PlanFactory) -> None:
        """Noted in the journal; refused before."""
        gang = plan("save")
        held(engine, gang)
        client = engine.connect(gang.placement_id)
        with pytest.raises(AgentRefused) as refused:
            client.save("too early")
        assert refused.value.code == "not-running"
        running(engine, gang)
        client.save("a test")
        until(lambda: journal(engine, gang, Kind.SAVE_REQUESTED), "the request is noted")
        assert engine.observe(gang.placement_id, 0).gang_state == protocol.RUNNING

    def test_a_hold_that_ends(self, engine: Engine, plan: PlanFactory, expire: Spoil) -> None:
        """The gang leaves by itself, and others get the slots without a word from its driver."""
        gang = plan("short", replicas=3, hold_s=SHORT_S)
        held(engine, gang)
        expire(gang.placement_id)
        until(gone(engine, gang), "the gang has left")
        seen = engine.observe(gang.placement_id, 0)
        assert [fact.kind for fact in seen.facts].count(Kind.HOLD_EXPIRED) == 1
        assert seen.last_word
        assert seen.left_at is not None
        other = plan("next", replicas=4)
        until(lambda: isinstance(engine.reserve(other), Granted), "the slots are given on")
        with pytest.raises((AgentAway, AgentRefused)):
            engine.connect(gang.placement_id).go(order(1))
        ended(engine, gang)
        assert engine.capacity().free == 0

    def test_a_renewed_hold(self, engine: Engine, plan: PlanFactory) -> None:
        """It counts from the renewal: the gang is there when the first hold would have ended."""
        gang = plan("renewed", hold_s=SHORT_S)
        held(engine, gang)
        engine.connect(gang.placement_id).renew(60.0)
        time.sleep(SHORT_S)
        assert engine.observe(gang.placement_id, 0).gang_state == protocol.HOLDING

    def test_a_gang_that_is_lost(self, engine: Engine, plan: PlanFactory, lose: Spoil) -> None:
        """GONE, what it wrote is still there, others get its slots, and ``end`` finds nothing."""
        gang = plan("lost", replicas=3)
        held(engine, gang)
        running(engine, gang)
        lose(gang.placement_id)
        until(gone(engine, gang), "the gang is gone")
        assert len(journal(engine, gang, Kind.RUNNING)) == 1
        assert engine.observe(gang.placement_id, 0).last_word is None
        with pytest.raises(AgentAway):
            engine.connect(gang.placement_id).status()
        other = plan("after", replicas=4)
        until(lambda: isinstance(engine.reserve(other), Granted), "the slots are given on")
        ended(engine, gang)
        in_state(engine, other, protocol.HOLDING)

    def test_nobody_is_there(self, engine: Engine, plan: PlanFactory) -> None:
        """``connect`` never fails, its calls do."""
        client = engine.connect(plan("nobody").placement_id)
        with pytest.raises(AgentAway):
            client.status()
        with pytest.raises(AgentAway):
            client.go(order(1))

    def test_a_newer_status_is_waited_for(self, engine: Engine, plan: PlanFactory) -> None:
        """At most as long as asked for, and the number only grows."""
        gang = plan("poll")
        held(engine, gang)
        client = engine.connect(gang.placement_id)
        known = client.status()["seq"]
        began = time.monotonic()
        assert client.status(after=known + 1000, wait_s=0.2)["seq"] >= known
        assert time.monotonic() - began < LIMIT_S
        client.go(order(1))
        assert client.status(after=known, wait_s=LIMIT_S)["seq"] > known

    def test_capacity_adds_up(self, engine: Engine, plan: PlanFactory) -> None:
        """Free and used slots are all there are, and each used one names its placement."""
        assert (engine.capacity().total, engine.capacity().free) == (SLOTS, SLOTS)
        gangs = [plan("one"), plan("two", replicas=2)]
        for gang in gangs:
            held(engine, gang)
        found = engine.capacity()
        used = [use.placement for use in found.uses if use.placement is not None]
        assert found.total == len(found.uses) == SLOTS
        assert found.free == SLOTS - len(used)
        assert sorted(used) == sorted(gang.placement_id for gang in gangs for _ in gang.replicas)
        for gang in gangs:
            ended(engine, gang)
        assert engine.capacity().free == SLOTS
