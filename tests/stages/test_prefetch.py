"""Prefetch: movers are asked, their failures judged, and nothing is held meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.core.errors import ErrorReport
from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import Phase
from ffdl_airflow.stages.advance import Done, Ended, Restarting, Waits
from ffdl_airflow.stages.prefetch import sources
from ffdl_airflow.stores.cache import MoveProgress, MoveState
from ffdl_airflow.testing.builders import job
from tests.stages.conftest import World

RUNNING = MoveState(
    state="running", facts={}, progress=MoveProgress(objects_done=3, objects_total=9)
)
MOVED = ErrorReport(
    code="SOURCE_MOVED", text="the source has changed while it was read", found="x", allowed="y",
    next_step="try again", fault="infrastructure", retryable=True,
)  # fmt: skip


def failed(**fields: Any) -> MoveState:
    error = {name: getattr(MOVED, name) for name in ErrorReport.__dataclass_fields__} | fields
    return MoveState(state="failed", facts={}, error=ErrorReport(**error))


def ready(store: str) -> MoveState:
    progress = MoveProgress(objects_done=9, objects_total=9, bytes_done=900, moved_bytes=700)
    return MoveState(
        state="ready", generation=f"{store}-g1", path=Path("/cache") / store, progress=progress,
        facts={"gitCommit": None}, warnings=("odd key",),
    )  # fmt: skip


class Movers:
    """Answers that the test has written down; the last one stays."""

    def __init__(self, **answers: list[MoveState]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str]] = []
        self.dropped: list[str] = []
        self.released: list[str] = []

    def ensure(self, store: str, source: Any, *, job: str) -> MoveState:
        self.asked.append((store, source["path"]))
        answers = self.answers[store]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def drop(self, store: str, source: Any, *, job: str) -> None:
        self.dropped.append(store)

    def release_all(self, *, job: str) -> None:
        self.released.append(job)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1")
    return tmp_path / "data"


def start(world: World, movers: Movers, data: Path, **spec: Any) -> None:
    world.use(cache=movers)
    stores = [{"name": "corpus", "path": str(data)}]
    training = {"framework": "jax", "command": ["t"], "code": str(data)}
    world.submit(job(dataStores=stores, training=training, **spec))


def test_sources_are_data_and_code() -> None:
    stores = [{"name": "corpus", "path": "/d"}]
    training = {"framework": "jax", "command": ["t"], "code": "/c"}
    assert sources(job(dataStores=stores, training=training)) == {
        "corpus": {"kind": "local", "path": "/d"}, "code": {"kind": "code", "path": "/c"},
    }  # fmt: skip
    assert sources(job()) == {}


def test_movers_are_waited_for(world: World, data: Path) -> None:
    movers = Movers(corpus=[RUNNING] * 3 + [ready("corpus")], code=[ready("code")])
    start(world, movers, data)
    assert isinstance(world.advance(), Waits)  # whoever wants it all waits here too
    assert world.engine.gangs == {}
    outcome = world.advance(Goal.PREFETCH)
    assert isinstance(outcome, Waits)
    assert (outcome.wait.what, outcome.wait.at_most_s) == ("fetching corpus 3/9", 0.1)
    assert isinstance(world.advance(Goal.PREFETCH), Done)
    (started,) = world.events(Kind.PREFETCH_STARTED)
    assert set(started.body["sources"]) == {"corpus", "code"}
    (done,) = world.events(Kind.DATA_READY)
    assert done.body["moved_bytes"] == 1400
    assert done.body["stores"]["corpus"] == {
        "generation": "corpus-g1", "path": "/cache/corpus", "objects": 9, "bytes": 900,
        "moved_bytes": 700, "warnings": ["odd key"], "gitCommit": None,
    }  # fmt: skip
    assert world.engine.gangs == {}


@pytest.mark.parametrize("phase", ["starting", "waiting: no node has room"])
def test_before_anything_is_counted_it_is_told_what_a_mover_does(
    world: World, data: Path, phase: str
) -> None:
    state = MoveState(state="running", facts={}, progress=MoveProgress(phase=phase))
    start(world, Movers(corpus=[state], code=[ready("code")]), data)
    outcome = world.advance(Goal.PREFETCH)
    assert isinstance(outcome, Waits)
    assert outcome.wait.what == f"fetching corpus ({phase})"


def test_a_moving_source_is_read_again_after_a_while(world: World, data: Path) -> None:
    movers = Movers(corpus=[failed(), failed(), ready("corpus")], code=[ready("code")])
    start(world, movers, data)
    outcome = world.advance(Goal.PREFETCH)  # the first restart has no back-off, the second has
    assert isinstance(outcome, Waits)
    assert outcome.wait.what == "back-off"
    assert movers.dropped == ["corpus", "corpus"]
    world.clock.advance(outcome.wait.at_most_s)
    assert isinstance(world.advance(Goal.PREFETCH), Done)
    assert [event.body["class"] for event in world.events(Kind.VERDICT)] == [
        "STORAGE_TRANSIENT"
    ] * 2
    assert world.state.costly == 2
    assert world.state.attempt == 0


def test_who_has_tries_of_his_own_gets_it_back(world: World, data: Path) -> None:
    start(world, Movers(corpus=[failed()], code=[ready("code")]), data)
    outcome = world.advance(Goal.PREFETCH, give_back=True)
    assert isinstance(outcome, Restarting)
    assert outcome.verdict["cause"] == "the source has changed while it was read"


@pytest.mark.parametrize(
    ("fields", "failure"),
    [({"fault": "user", "retryable": False}, "DATA_MISSING"),
     ({"code": "DISK_FULL", "retryable": False}, "DISK_FULL")],
)  # fmt: skip
def test_what_does_not_go_away_ends_the_job(
    world: World, data: Path, fields: Any, failure: str
) -> None:
    movers = Movers(corpus=[failed(**fields)], code=[ready("code")])
    start(world, movers, data)
    assert isinstance(world.advance(), Ended)
    assert world.state.phase is Phase.FAILED
    assert "the source has changed" in world.state.reason
    (event,) = world.events(Kind.FAILED)
    assert event.body["class"] == failure
    assert event.body["next_step"]
    assert movers.released, "the claims are dropped with the job's end"


def test_the_budget_holds_for_movers_too(world: World, data: Path) -> None:
    start(world, Movers(corpus=[failed()], code=[ready("code")]), data, backoffLimit=1)
    outcome = world.advance()
    while isinstance(outcome, Waits):
        world.clock.advance(outcome.wait.at_most_s)
        outcome = world.advance()
    assert isinstance(outcome, Ended)
    assert "backoffLimit 1 is used up" in world.state.reason
