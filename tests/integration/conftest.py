"""One real Airflow for a test file, and how its jobs and their ranks are looked at from outside."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from ffdl_airflow import services
from ffdl_airflow.core.events import Event, Kind
from ffdl_airflow.core.lifecycle import JobState, fold
from ffdl_airflow.ledger.base import JobRow
from ffdl_airflow.settings import from_values
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.testing.airflow_server import AirflowServer, Run, ServerSettings
from tests.conftest import environ_of, processes_under, wait_for
from tests.trainers.counting import weights_after

HERE = Path(__file__).parent
SLOTS = 32
"""More than the gangs of one test file need: none waits for another's slots."""
GONE_S = 10.0
"""How long ranks may live on after a person has taken their task away: the requirement's."""


@dataclass(frozen=True)
class Life:
    """One process of a rank: its attempt, and from when to when it lived, by its own word."""

    attempt: int
    rank: int
    start: float
    last: float


def lives_in(beats: Path) -> list[Life]:
    """What the processes of ranks say of themselves in a folder, by their start."""
    found = []
    for path in beats.iterdir() if beats.exists() else ():
        attempt, rank, _pid = path.name.split("-")
        if start := path.read_text():
            found.append(Life(int(attempt), int(rank), float(start), path.stat().st_mtime))
    return sorted(found, key=lambda life: life.start)


class World:
    """A running Airflow with our package, its ledger and the beats of all ranks."""

    def __init__(self, home: Path, **settings: Any) -> None:
        self.home = home
        dags = home / "dags"
        prepare = settings.pop("prepare", None)
        if prepare is None:
            shutil.copytree(HERE / "dags", dags, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            prepare(dags)
        shutil.copytree(HERE.parent / "trainers", home / "trainers",
                        ignore=shutil.ignore_patterns("__pycache__", "test_*"))  # fmt: skip
        self.values = {"slots": str(SLOTS), "state_dir": str(home / "ffdl")}
        environ = {f"AIRFLOW__FFDL__{key.upper()}": value for key, value in self.values.items()}
        environ |= settings.pop("environ", {})
        self.values |= settings.pop("hidden", {})  # of the connection: in no component's section
        self.server = AirflowServer(
            ServerSettings(home=home, dags=dags, environ=environ, **settings)
        )
        self._started = 0

    def deps(self) -> Deps:
        return services.deps(from_values(self.values, state_dir=self.home / "ffdl"))

    def start(self, dag_id: str, **params: Any) -> Run:
        """Start a DAG of `dags/jobs.py`; each run's ranks beat in a folder of their own."""
        self._started += 1
        beats = self.home / "beats" / str(self._started)
        run = self.server.run_dag(dag_id, conf={"beats": str(beats), **params})
        object.__setattr__(run, "beats", beats)
        return run

    def row(self, run: Run) -> JobRow:
        """The job of a run, as soon as there is one."""

        def found() -> JobRow | None:
            rows = [row for row in self.deps().ledger.jobs()
                    if row.summary["owner"].get("run_id") == run.run_id
                    and row.summary["owner"].get("dag_id") == run.dag_id]  # fmt: skip
            assert len(rows) < 2, rows
            return rows[0] if rows else None

        row: JobRow = wait_for(found, message=run.story)
        return row

    def events(self, run: Run, *kinds: Kind) -> list[Event]:
        found = self.deps().ledger.read(self.row(run).job_id)
        return [event for event in found if not kinds or event.kind in kinds]

    def state(self, run: Run) -> JobState:
        return fold(self.row(run).job_id, self.events(run))

    def lives(self, run: Run) -> list[Life]:
        """Every process of a rank of the run's job so far."""
        return lives_in(run.beats)  # type: ignore[attr-defined]

    def wait_training(self, run: Run, *, attempt: int = 1, step: int = 6) -> None:
        """Until both ranks of an attempt live and a checkpoint lies behind them."""

        def found() -> bool:
            row, status = self.row(run), self.row(run).status or {}
            ranks = {life.rank for life in self.lives(run) if life.attempt == attempt}
            there = row.phase == "Running" and status.get("attempt") == attempt
            return there and len(ranks) == 2 and (status.get("step") or 0) >= step

        wait_for(found, timeout=120, message=lambda: run.story() + self.log(run))

    def ranks_alive(self, run: Run) -> list[psutil.Process]:
        head = f"{self.row(run).job_id}/"
        return [p for p in processes_under(self.home)
                if environ_of(p).get("FFDL_PLACEMENT", "").startswith(head)]  # fmt: skip

    def wait_gone(self, run: Run, *, since: float) -> None:
        """Until no process of the job lives; fails where one has beaten GONE_S after ``since``."""
        wait_for(lambda: not self.ranks_alive(run), timeout=60, message=lambda: self.log(run))
        late = [life for life in self.lives(run) if life.last - since > GONE_S]
        assert not late, f"acted at {since}: {late}\n{self.log(run)}"

    def require_no_overlap(self, run: Run) -> None:
        """No rank of an attempt had begun while one of an earlier attempt was there."""
        lives = self.lives(run)
        for one in lives:
            for other in lives:
                if one.attempt < other.attempt:
                    assert one.last <= other.start, f"{one} and {other}"

    def require_right_model(self, run: Run, *, steps: int) -> None:
        model = self.state(run).model
        assert model is not None, self.log(run)
        weights = (Path(model["path"]) / "weights.txt").read_text().strip()
        assert weights == weights_after(steps)
        assert len(self.events(run, Kind.MODEL_REGISTERED)) >= 1

    def log(self, run: Run) -> str:
        """The job's own log, for the message of a failed test."""
        return "\n" + "\n".join(
            f"{e.at:%H:%M:%S.%f} {e.kind} {str(dict(e.body))[:300]}" for e in self.events(run)
        )

    def close(self) -> None:
        self.server.stop()
        for process in processes_under(self.home):
            process.kill()


@pytest.fixture(scope="module")
def make_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(**settings: Any) -> World:
        made.append(World(tmp_path_factory.mktemp("airflow"), **settings))
        made[-1].server.start()
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture(scope="module")
def world(make_world: Callable[..., World]) -> World:
    """Airflow on SQLite, with one triggerer."""
    return make_world()


def now() -> float:
    return time.time()
