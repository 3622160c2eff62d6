"""A job that is driven against fakes: engine, ledger, data, registry and clock, on real folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.events import Event, Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.job import TrainingJob
from ffdl_airflow.core.lifecycle import JobState, fold
from ffdl_airflow.ledger.base import Ledger
from ffdl_airflow.stages.advance import Driver, Outcome, Waits
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.submit import submit
from ffdl_airflow.testing.builders import job
from ffdl_airflow.testing.fake_engine import FakeEngine, Gang
from ffdl_airflow.testing.instant import InstantPublisher, ManualClock, instant_deps
from ffdl_airflow.testing.memory_ledger import MemoryLedger

JOB = "bert-base-0123456789"
OWNER = {"key": "command line", "user": "ada"}
WELL = {"kind": protocol.CAUSE_OK}
KILLED = {"kind": protocol.CAUSE_SIGNAL, "signal": 9, "rank": 0, "replica": "worker-0",
          "text": "rank 0 of worker-0 was killed by SIGKILL"}  # fmt: skip
EXIT_1 = {"kind": protocol.CAUSE_EXIT, "exit": 1, "rank": 1, "replica": "worker-1",
          "text": "rank 1 of worker-1 exited with code 1"}  # fmt: skip


class World:
    """One installation of fakes and the job in it."""

    def __init__(self, tmp: Path, ledger: Ledger | None = None, engine: Any = None) -> None:
        self.tmp = tmp
        self.ledger = ledger or MemoryLedger()
        self.engine = engine or FakeEngine(slots=4)
        self.clock = ManualClock()
        self.publisher = InstantPublisher()
        self.deps: Deps = instant_deps(
            tmp, ledger=self.ledger, engine=self.engine, clock=self.clock, publisher=self.publisher
        )
        self.driver = Driver(self.deps, JOB)

    def use(self, **fields: Any) -> None:
        """Other adapters for a new driver."""
        self.deps = replace(self.deps, **fields)
        self.driver = Driver(self.deps, JOB)

    def submit(
        self, submitted: TrainingJob | None = None, owner: Mapping[str, Any] = OWNER
    ) -> None:
        submit(self.deps, submitted or job(), job_id=JOB, owner=owner)

    def advance(self, goal: Goal = Goal.REGISTER, *, give_back: bool = False) -> Outcome:
        return self.driver.advance(goal, give_back=give_back)

    def settle(self, goal: Goal = Goal.REGISTER) -> Outcome:
        """Advance through back-off and the leaving of gangs, until something else is waited for."""
        for _ in range(50):
            outcome = self.advance(goal)
            if not isinstance(outcome, Waits):
                return outcome
            if outcome.wait.what == "back-off":
                self.clock.advance(outcome.wait.at_most_s)
            elif "leaving" not in outcome.wait.what:
                return outcome
        raise AssertionError(outcome)

    def run_to(self, goal: Goal) -> None:
        """Submit where that is needed, and advance until it waits."""
        if not self.events():
            self.submit()
        self.advance(goal)

    def events(self, *kinds: Kind) -> list[Event]:
        found = self.ledger.read(JOB)
        return [event for event in found if not kinds or event.kind in kinds]

    @property
    def state(self) -> JobState:
        return fold(JOB, self.ledger.read(JOB))

    @property
    def gang(self) -> Gang:
        return next(gang for gang in self.engine.gangs.values() if gang.alive)

    @property
    def checkpoints(self) -> Path:
        return self.tmp / "checkpoints" / JOB

    def seal(self, step: int, *, attempt: int = 1) -> Path:
        """A real checkpoint on disk, and the gang's word of it where one runs."""
        folder = self.checkpoints / protocol.step_dir(step)
        folder.mkdir(parents=True)
        (folder / "weights.bin").write_bytes(b"w" * step)
        manifest = protocol.seal_checkpoint(
            str(folder), step=step, attempt=attempt, world_size=2, generation=None
        )
        if any(gang.state == protocol.RUNNING for gang in self.engine.gangs.values()):
            body = {"step": step, "path": str(folder), "sha256": manifest["sha256"], "bytes": step}
            self.engine.note(self.gang, protocol.J_CHECKPOINT, body)
        return folder

    def finish(self, cause: Mapping[str, Any] = WELL, *, tail: str = "") -> None:
        self.engine.finish(self.gang.placement_id, cause, tail=tail)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
