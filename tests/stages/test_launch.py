"""Launch and evidence: which checkpoint, which attempt, and what follows from a failure."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.events import Kind, parse_iso
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import Phase
from ffdl_airflow.engines.base import AgentRefused, Evidence, ProcessLog
from ffdl_airflow.stages import wishes
from ffdl_airflow.stages.advance import Done, Ended, Restarting, Waits
from ffdl_airflow.stages.deps import Job
from ffdl_airflow.stages.reserve import plan_for
from ffdl_airflow.testing.builders import T0, job
from ffdl_airflow.testing.fake_engine import FakeClient, FakeEngine
from tests.stages.conftest import EXIT_1, JOB, KILLED, World


def resumed(world: World) -> list[int | None]:
    """Step that each attempt was to start from."""
    bodies = [event.body for event in world.events(Kind.GO_INTENDED)]
    return [body["resume"]["step"] if body["resume"] else None for body in bodies]


def refused(world: World) -> list[tuple[int, str, int]]:
    bodies = [event.body for event in world.events(Kind.CHECKPOINT_REFUSED)]
    return [(body["step"], body["reason"], body["lost_steps"]) for body in bodies]


def test_a_first_attempt_starts_from_nothing(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    assert resumed(world) == [None]
    assert (world.state.phase, world.gang.started) == (Phase.RUNNING, [1])


def test_a_life_without_trouble(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    world.seal(200)
    world.finish()
    assert isinstance(world.advance(Goal.LAUNCH), Done)
    assert world.state.phase is Phase.TRAINED
    assert isinstance(world.advance(), Done)
    assert world.state.phase is Phase.SUCCEEDED
    assert world.engine.capacity().free == 4


def test_the_next_attempt_resumes_from_the_newest_checkpoint(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    world.seal(100)
    world.seal(200)
    world.finish(KILLED)
    assert isinstance(world.advance(), Waits)
    assert resumed(world) == [None, 200]
    assert world.gang.started == [1, 2], "the placement was kept"
    assert refused(world) == []


def damage_nothing(folder: Path) -> None:
    """Leave it as it is."""


def truncate(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"w")


def flip(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"v" + b"w" * 199)


def lose_a_file(folder: Path) -> None:
    (folder / "weights.bin").unlink()


def lose_the_manifest(folder: Path) -> None:
    (folder / protocol.MANIFEST).unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [(truncate, "file weights.bin has 1 bytes, not 200"), (flip, "another SHA-256"),
     (lose_a_file, "file weights.bin is missing"), (lose_the_manifest, "no readable MANIFEST")],
)  # fmt: skip
def test_a_damaged_checkpoint_is_put_aside(world: World, damage: Any, reason: str) -> None:
    world.run_to(Goal.LAUNCH)
    world.seal(100)
    damage(world.seal(200))
    world.finish(KILLED)
    world.advance()
    assert resumed(world) == [None, 100]
    ((step, why, lost),) = refused(world)
    assert (step, lost) == (200, 100)
    assert reason in why
    aside = world.checkpoints / "refused" / f"{protocol.step_dir(200)}.1"
    assert aside.is_dir()
    assert world.events(Kind.CHECKPOINT_REFUSED)[0].body["path"] == str(aside)
    checkpoint = world.state.checkpoint
    assert checkpoint is not None
    assert (checkpoint["step"], len(checkpoint["sha256"])) == (100, 64)


def test_a_checkpoint_that_is_gone_is_an_event_too(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    world.seal(100)
    folder = world.seal(200)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    world.finish(KILLED)
    world.advance()
    assert resumed(world) == [None, 100]
    assert refused(world) == [(200, "the directory is gone", 100)]


def test_the_same_step_may_be_refused_twice(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    for number in (1, 2):
        lose_a_file(world.seal(200))
        world.finish(KILLED)
        world.advance()
        names = sorted(path.name for path in (world.checkpoints / "refused").iterdir())
        assert names == [f"{protocol.step_dir(200)}.{n}" for n in range(1, number + 1)]


def test_nothing_valid_is_a_start_from_nothing(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    lose_a_file(world.seal(200))
    world.finish(KILLED)
    world.advance()
    assert resumed(world) == [None, None]
    assert refused(world) == [(200, "file weights.bin is missing", 200)]


def test_a_model_of_an_older_checkpoint_can_be_registered(world: World) -> None:
    """The newest one is damaged, and the attempt that resumes ends without a newer one."""
    world.run_to(Goal.LAUNCH)
    good = json.loads((world.seal(100) / protocol.MANIFEST).read_text())
    truncate(world.seal(200))
    world.finish(KILLED)
    world.advance()
    world.finish()
    assert isinstance(world.advance(), Done)
    assert world.state.model is not None
    assert world.state.model["sha256"] == good["sha256"]


def test_what_could_not_be_read_is_not_read_again(world: World) -> None:
    """It looks good, but the program says that it is corrupt: the next older one."""
    world.run_to(Goal.LAUNCH)
    world.seal(100)
    world.seal(200)
    world.finish(KILLED)
    world.advance()
    world.finish(EXIT_1, tail="RuntimeError: PytorchStreamReader failed reading zip archive")
    world.settle()
    assert resumed(world) == [None, 200, 100]
    assert [(step, lost) for step, _, lost in refused(world)] == [(200, 100)]
    assert world.state.costly == 0


def test_a_damaged_file_without_a_checkpoint_is_the_programs(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    world.finish(EXIT_1, tail="EOFError: Ran out of input")
    world.advance()
    assert [event.body["class"] for event in world.events(Kind.VERDICT)] == ["DATA_MISSING"]
    assert refused(world) == []


def test_a_fresh_clear_passes_over_what_was_there(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    world.seal(200)
    world.finish(KILLED)
    world.advance()
    assert wishes.clear(world.deps, JOB, task="train", number=2, mode="fresh")
    assert not wishes.clear(world.deps, JOB, task="train", number=2, mode="fresh")
    while world.state.phase is not Phase.RUNNING:
        world.advance()
    assert resumed(world) == [None, 200, None]
    assert refused(world) == []


def test_what_is_left_of_the_time_goes_with_the_order(world: World) -> None:
    orders = []

    class Noting(FakeClient):
        def go(self, order: Any) -> None:
            orders.append(dict(order))
            super().go(order)

    world.engine.connect = lambda placement_id: Noting(world.engine, placement_id)
    world.submit(job(resources={"gpuTimeLimit": 3}))
    world.advance(Goal.LAUNCH)
    for _ in range(2):
        world.finish(KILLED)
        world.settle(Goal.LAUNCH)
    limits = [order["time_left_s"] for order in orders]
    assert limits[0] == 3.0
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] == 1.0, "a second at least"
    assert [order["attempt"] for order in orders] == [1, 2, 3]


@pytest.mark.parametrize("code", ["expired", "not-holding", "stale-attempt"])
def test_a_gang_that_says_no_is_looked_at_again(world: World, code: str) -> None:
    class Refusing(FakeClient):
        def go(self, order: Any) -> None:
            raise AgentRefused(code, {})

    world.engine.connect = lambda placement_id: Refusing(world.engine, placement_id)
    world.submit()
    outcome = world.advance(Goal.LAUNCH)
    assert isinstance(outcome, Waits)
    assert (world.state.phase, outcome.wait.what) == (Phase.STARTING, "the gang, holding")


def test_a_refusal_that_nobody_knows_is_not_hidden(world: World) -> None:
    class Refusing(FakeClient):
        def go(self, order: Any) -> None:
            raise AgentRefused("wrong-token", {})

    world.engine.connect = lambda placement_id: Refusing(world.engine, placement_id)
    world.submit()
    with pytest.raises(AgentRefused, match="wrong-token"):
        world.advance(Goal.LAUNCH)


def test_a_wish_to_save_is_passed_on_once(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    wishes.save(world.deps, JOB, by="ada")
    world.advance()
    world.advance()
    (requested,) = world.events(Kind.SAVE_REQUESTED)
    assert requested.source["agent"] is True


def test_a_failure_that_costs_is_given_back_to_who_has_tries(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    world.finish({"kind": "hang", "text": "no step for 600 s"})
    outcome = world.advance(give_back=True)
    assert isinstance(outcome, Restarting)
    assert (outcome.verdict["class"], outcome.delay_s) == ("HANG", 0.0)
    assert world.state.phase is Phase.RESERVED
    assert isinstance(world.advance(give_back=True), Waits)
    world.finish(KILLED)
    assert isinstance(world.advance(give_back=True), Waits), "this one costs nothing"


def test_a_mistake_of_the_program_ends_the_job_with_the_story(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    world.finish(EXIT_1, tail="ModuleNotFoundError: No module named 'flash_attn'")
    assert isinstance(world.settle(), Ended)
    state = world.state
    assert state.phase is Phase.FAILED
    assert state.reason.startswith("ModuleNotFoundError: No module named 'flash_attn'")
    assert not state.placed
    assert world.engine.capacity().free == 4


def test_a_lost_gang_is_followed_by_a_new_one(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    world.seal(100)
    world.engine.lose(world.gang.placement_id)
    world.advance()
    assert world.state.placement == 2
    assert resumed(world) == [None, 100]
    (verdict,) = world.events(Kind.VERDICT)
    assert verdict.body["class"] == "KILLED_OUTSIDE"
    assert "journal's last entries may be missing" in verdict.body["cause"]


def test_a_stop_that_nobody_wished_came_from_outside(world: World) -> None:
    world.run_to(Goal.LAUNCH)
    world.finish({"kind": "stop", "text": "SIGTERM to the agent of worker-0"})
    world.advance()
    (verdict,) = world.events(Kind.VERDICT)
    assert (verdict.body["class"], verdict.body["costs"]) == ("KILLED_OUTSIDE", False)
    assert world.state.phase is Phase.RUNNING


def test_a_hold_that_runs_out_reserves_again(world: World) -> None:
    world.run_to(Goal.RESERVE)
    world.engine.expire(world.gang.placement_id)
    world.advance(Goal.LAUNCH)
    assert (world.state.placement, world.state.phase) == (2, Phase.RUNNING)
    assert world.state.early_losses == 0


class EndedAs(FakeEngine):
    """Its gangs are gone as ``evidence`` says."""

    evidence = Evidence()

    def end(self, placement_id: str, request: Any) -> Any:
        super().end(placement_id, request)
        return self.evidence


@pytest.mark.parametrize(
    ("evidence", "by_its_word"),
    [(Evidence(), True), (Evidence(killed=1), False),
     (Evidence(abandoned={"worker-1": "gpu-1"}), False)],
)  # fmt: skip
def test_a_place_was_held_until_the_gang_had_left(
    tmp_path: Path, evidence: Evidence, by_its_word: bool
) -> None:
    """By its own word, and longer where something of it was still there."""
    world = World(tmp_path, engine=EndedAs(slots=4))
    world.engine.evidence = evidence
    world.run_to(Goal.RESERVE)
    gang = world.gang
    world.engine.expire(gang.placement_id)
    world.clock.advance(3600)
    world.advance(Goal.LAUNCH)
    (released,) = world.events(Kind.RELEASED)
    left_at = parse_iso(gang.journal[-1]["at"])
    assert released.at == (left_at if by_its_word else world.clock())
    assert left_at < world.clock()


class Dying(FakeEngine):
    """Its gangs die before they have joined."""

    def reserve(self, plan: Any) -> Any:
        answer = super().reserve(plan)
        if plan.placement_id in self.gangs:
            self.lose(plan.placement_id)
        return answer


def test_a_gang_that_is_lost_before_it_starts_is_bounded(tmp_path: Path) -> None:
    world = World(tmp_path, engine=Dying(slots=4))
    world.submit()
    world.settle(Goal.LAUNCH)
    assert world.clock() - T0 > timedelta(minutes=30), "not as fast as it can"
    assert (world.state.phase, world.state.placement) == (Phase.FAILED, 20)
    assert "lost 20 times" in world.state.reason


class Logging(FakeEngine):
    """An engine on whose host the logs lie."""

    def __init__(self, folder: Path) -> None:
        super().__init__(slots=4)
        self.folder = folder

    def logs(self, job_id: str) -> list[ProcessLog]:
        found = []
        for attempt, rank, text in ((1, 0, "x" * 9000 + "\nKeyError: 'a'\n"), (1, 1, "short\n"),
                                    (1, None, "served\n"), (2, 0, "later\n")):  # fmt: skip
            path = self.folder / f"{attempt}-{rank}.log"
            path.write_text(text)
            replica = "ps-0" if rank is None else f"worker-{rank}"
            label = replica if rank is None else str(rank)
            found.append(ProcessLog(placement=1, attempt=attempt, replica=replica, rank=rank,
                                    label=label, path=str(path)))  # fmt: skip
        return found


def test_the_evidence_is_kept(tmp_path: Path) -> None:
    world = World(tmp_path, engine=Logging(tmp_path))
    world.run_to(Goal.LAUNCH)
    world.finish(EXIT_1, tail="KeyError: 'a'")
    world.advance()
    folder = tmp_path / "state" / "jobs" / JOB / "attempts" / "1" / "evidence"
    verdict = json.loads((folder / "verdict.json").read_text())
    assert (verdict["v"], verdict["class"], verdict["cause"]) == (1, "USER_ERROR", "KeyError: 'a'")
    assert sorted(path.name for path in (folder / "ranks").iterdir()) == [
        "0.tail", "1.tail", "ps-0.tail",
    ]  # fmt: skip
    tail = (folder / "ranks" / "0.tail").read_bytes()
    assert (len(tail), tail[-14:]) == (protocol.TAIL_BYTES, b"\nKeyError: 'a'\n"[-14:])
    assert (folder / "ranks" / "1.tail").read_text() == "short\n"
    timeline = [json.loads(line) for line in (folder / "timeline.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in timeline] == ["GoIntended", "Running", "AttemptEnded"]


@pytest.mark.parametrize(
    ("spec", "grace_s", "hold_s", "placement_s"),
    [({}, 30.0, 600.0, 300.0),
     ({"gracePeriod": 7, "reservation": {"hold": 60, "placement": 5}}, 7.0, 60.0, 5.0)],
)  # fmt: skip
def test_times_of_the_spec_go_before_those_of_the_installation(
    world: World, spec: Any, grace_s: float, hold_s: float, placement_s: float
) -> None:
    world.submit(job(**spec))
    world.advance(Goal.PREFETCH)
    timing = plan_for(world.deps, Job.of(world.state)).timing
    assert (timing.grace_s, timing.hold_s, timing.placement_s) == (grace_s, hold_s, placement_s)


def test_the_checkpoint_path_of_the_spec_gets_the_jobs_own_folder(world: World) -> None:
    world.submit(job(checkpoint={"path": str(world.tmp / "elsewhere/")}))
    world.advance(Goal.PREFETCH)
    plan = plan_for(world.deps, Job.of(world.state))
    assert plan.common["checkpoint_dir"] == f"{world.tmp}/elsewhere/{JOB}"
