"""The sensors and their triggers: what they wait for, what they tell, and that they only read."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.core.errors import InfrastructureError, UserError
from ffdl_airflow.core.events import Kind, iso
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import Phase
from ffdl_airflow.stages.look import Address
from ffdl_airflow.testing.builders import T0
from tests.airflow.test_dags import JOB as SPEC
from tests.airflow.test_dags import _ledger, _states, _xcom
from tests.stages.conftest import EXIT_1, JOB, World

PLACE = {"dag_id": "nightly", "run_id": "r1", "map_index": -1}
OWNER = {"key": "airflow nightly/r1/train/-1", **PLACE}
ADDRESS = {**PLACE, "scope": "train"}
LAUNCH = {**PLACE, "task_id": "train.launch"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.submit(owner=OWNER)
    return made


def figures(use: str) -> dict[str, Any]:
    idle = use == "idle"
    unit = {"replica": "worker-0", "rank": 0, "unit": "gpu 0", "percent": 2.0, "threshold": 30.0,
            "since": iso(T0)}  # fmt: skip
    return {"resource": "gpu", "window_s": 60.0, "aggregate": "mean",
            "exempt": use if use == "saving" else None, "percent": 2.0 if idle else 90.0,
            "busy": int(not idle), "idle": int(idle), "unknown": 0,
            "idle_at": iso(T0) if idle else None, "all_idle_at": None,
            "units": [unit] if idle else []}  # fmt: skip


class Lines(logging.Handler):
    """A log as a list; Airflow turns pytest's own capturing off."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


class Shown:
    """The watchdog's looks at a job, and the lines of its log."""

    def __init__(self, world: World) -> None:
        from ffdl_airflow.hooks.standing import TaskRef
        from ffdl_airflow.triggers.reading import UseWatch

        self._world, self._lines = world, Lines()
        log = logging.Logger("watchdog", logging.INFO)  # noqa: LOG001 - one that nobody configures
        log.addHandler(self._lines)
        self._watch = UseWatch(world.deps, log, address=Address(**ADDRESS),
                               launch=TaskRef(**LAUNCH))  # fmt: skip

    def look(self, *, later_s: float = 5, use: str | None = None) -> tuple[Any, list[str]]:
        self._world.clock.advance(later_s)
        if use is not None:
            self._world.gang.utilization = figures(use)
        self._lines.told.clear()
        before = self._world.events()
        over = self._watch.look()
        assert self._world.events() == before, "it never acts"
        return over, list(self._lines.told)


def test_the_watchdog_tells_changes_at_once_and_figures_now_and_then(world: World) -> None:
    shown = Shown(world)
    assert shown.look() == (None, [])
    world.advance(Goal.LAUNCH)
    _, lines = shown.look(use="busy")
    assert lines == [
        "Running (attempt 1)",
        "no step yet, GPU utilization 90 % (mean of 60 s), busy",
    ]
    assert shown.look(use="busy") == (None, [])
    assert len(shown.look(use="busy", later_s=60)[1]) == 1
    assert shown.look(use="saving")[1][0].endswith("exempt: saving")
    world.gang.utilization = figures("idle")
    world.advance(Goal.LAUNCH)
    _, lines = shown.look()
    assert lines[0].startswith("WatchdogWarned (attempt 1): GPU use below 30 %"), lines
    assert lines[1].endswith("idle: 1 of 1")
    world.seal(100)
    world.finish()
    over, lines = shown.look()
    assert over is None, "the gang is still there"
    world.settle()
    over, lines = shown.look()
    assert (over["kind"], over["phase"], over["warnings"]) == ("over", "Succeeded", 1)
    assert lines[0].startswith("AttemptEnded")


def test_the_watchdog_ends_with_launch_also_where_there_is_no_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ffdl_airflow.triggers import reading

    shown = Shown(world)
    world.advance(Goal.LAUNCH)
    asked: list[Any] = []

    def state(ref: Any, found: str | None = None) -> str | None:
        asked.append(ref)
        return found

    for still in (None, "deferred", "up_for_retry", "running"):
        monkeypatch.setattr(reading, "task_state", lambda ref, s=still: state(ref, s))
        assert shown.look()[0] is None
    monkeypatch.setattr(reading, "task_state", lambda ref: state(ref, "failed"))
    assert shown.look()[0]["phase"] == "Running"
    assert asked[0].task_id == "train.launch"
    elsewhere = reading.UseWatch(world.deps, logging.getLogger("watchdog"), launch=asked[0],
                                 address=Address(dag_id="other", scope="train"))  # fmt: skip
    assert elsewhere.look() == {"kind": "over", "job_id": None, "warnings": 0}


@pytest.mark.parametrize(
    ("until", "kinds"),
    [
        ("prefetch", [None, "reached", "reached", "reached"]),
        ("Running", [None, None, "reached", "reached"]),
        ("register", [None, None, None, "reached"]),
        ("Failed", [None, None, None, "lost"]),
    ],
)
def test_a_goal_or_a_phase_is_waited_for(world: World, until: str, kinds: list[Any]) -> None:
    from ffdl_airflow.triggers.reading import GoalWatch

    watch = GoalWatch(world.deps, job_id=None, address=Address(**ADDRESS), until=until)
    found = []
    for goal in (None, Goal.PREFETCH, Goal.LAUNCH, Goal.REGISTER):
        if goal is Goal.REGISTER:
            world.seal(100)
            world.finish()
        if goal is not None:
            world.settle(goal)
        over = watch.look()
        found.append(over and over["kind"])
    assert found == kinds
    assert watch.job_id == JOB


def test_the_link_of_a_sensor_waits_for_the_job(world: World) -> None:
    """A job that is named may not be there yet: its page would not be, either."""
    from ffdl_airflow.triggers.reading import GoalWatch

    watch = GoalWatch(world.deps, job_id="nothing-0000000000", address=None, until="register")
    assert (watch.look(), watch.found) == (None, None)
    watch = GoalWatch(world.deps, job_id=JOB, address=None, until="register")
    assert (watch.look(), watch.found) == (None, JOB)


def test_a_job_that_cannot_come_there_any_more_says_why(world: World) -> None:
    from ffdl_airflow.triggers.reading import GoalWatch

    watch = GoalWatch(world.deps, job_id=JOB, address=None, until="register")
    world.settle()
    for _ in range(5):
        if world.state.phase is not Phase.RUNNING:
            break
        world.finish(EXIT_1)
        world.settle()
    over = watch.look()
    assert over is not None
    assert (over["kind"], over["phase"]) == ("lost", "Failed")
    assert "rank 1" in over["text"]


def triggers() -> list[Any]:
    from ffdl_airflow.triggers.reading import TrainingJobReachedTrigger, UtilizationTrigger

    shared = {"ffdl_conn_id": "ffdl_default", "engine": None, "interval_s": 2.0}
    return [
        TrainingJobReachedTrigger(job_id=JOB, until="launch", address=None, **shared),
        TrainingJobReachedTrigger(job_id=None, until="Running", address=ADDRESS, **shared),
        UtilizationTrigger(launch=LAUNCH, ledger={"id": "x", "host": "h"}, address=ADDRESS,
                           **shared),
    ]  # fmt: skip


def test_the_triggers_come_back_as_they_were() -> None:
    from airflow._shared.module_loading import import_string

    for made in triggers():
        path, kwargs = made.serialize()
        again = import_string(path)(**json.loads(json.dumps(kwargs)))
        assert again.serialize() == (path, kwargs)


class Broken:
    """A look that fails so often before it works."""

    def __init__(self, faults: int, error: Exception) -> None:
        self._left, self._error = faults, error

    def look(self) -> dict[str, Any]:
        self._left -= 1
        if self._left >= 0:
            raise self._error
        return {"kind": "over"}


@pytest.mark.parametrize(
    ("faults", "error", "kind"),
    [
        (3, InfrastructureError("the ledger is away"), "over"),
        (99, InfrastructureError("the ledger is away"), "error"),
        (1, UserError("another ledger"), "error"),
        (1, RuntimeError("a fault of ours"), "error"),
    ],
)
def test_a_trigger_never_raises(
    monkeypatch: pytest.MonkeyPatch, faults: int, error: Exception, kind: str
) -> None:
    async def first(trigger: Any) -> Any:
        async for event in trigger.run():
            return event.payload
        return None

    for trigger in triggers():
        trigger.interval_s = 0.01
        monkeypatch.setattr("ffdl_airflow.triggers.reading.dwell_s", lambda: 0.0)
        monkeypatch.setattr(trigger, "_deps", lambda: None)
        monkeypatch.setattr(trigger, "watch", lambda deps: Broken(faults, error))
        payload = asyncio.run(first(trigger))
        assert (payload["v"], payload["kind"]) == (1, kind)
        if kind == "error":
            assert str(error.args[0]).split(".")[0] in payload["text"]
            assert payload["retryable"] is not isinstance(error, UserError)


def test_what_a_sensor_is_asked_for_is_checked() -> None:
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    from ffdl_airflow import TrainingJobSensor, UtilizationWatchdogSensor
    from ffdl_airflow.sensors.job import PHASES

    assert set(PHASES) == {phase.value for phase in Phase}
    with pytest.raises(ValueError, match="found neither, allowed: one of the two"):
        TrainingJobSensor(task_id="w")
    with pytest.raises(ValueError, match="found both"):
        TrainingJobSensor(task_id="w", job_id="x", from_task="t")
    wrong = TrainingJobSensor(task_id="w", job_id="x", until="lunch")
    with pytest.raises(AirflowFailException, match=r"until: found 'lunch', allowed: .*Running"):
        wrong.trigger({})
    with pytest.raises(AirflowFailException, match="it is lost"):
        wrong.answer({"kind": "lost", "text": "it is lost"})
    fault = {"kind": "error", "text": "the ledger is away"}
    with pytest.raises(InfrastructureError, match="the ledger is away"):  # another try may help
        wrong.answer({**fault, "retryable": True})
    with pytest.raises(AirflowFailException, match="the ledger is away"):
        wrong.answer({**fault, "retryable": False})
    watchdog = UtilizationWatchdogSensor(task_id="d", group="g", launch_task_id="g.launch")
    assert watchdog.never_fail
    with pytest.raises(AirflowSkipException, match="not watched: the ledger is away"):
        watchdog.answer({"kind": "error", "text": "the ledger is away"})


WAITING = """
from airflow.sdk import DAG
from ffdl_airflow import TrainingJobOperator, TrainingJobSensor, UtilizationWatchdogSensor
EXTRA = {extra}
{job}
with DAG("{dag}", schedule=None) as dag:
    train = TrainingJobOperator(task_id="train", job=job, retries=0)
    shared = dict(deferrable={deferrable}, retries=0, trigger_rule="all_done", poke_interval=0.2)
    train >> TrainingJobSensor(task_id="done", from_task="train", **shared)
    train >> TrainingJobSensor(task_id="ran", from_task="train", until="Running", **shared)
    train >> TrainingJobSensor(task_id="soft", from_task="train", soft_fail=True, **shared)
    train >> UtilizationWatchdogSensor(task_id="use", group="train", launch_task_id="train",
                                       **shared)
"""
RunDag = Callable[[str, str], Any]


@pytest.mark.parametrize("deferrable", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_sensors_wait_for_the_job_of_a_task(run_dag: RunDag, deferrable: bool, fails: bool) -> None:
    dag = f"waiting_{deferrable}_{fails}".lower()
    extra = ["--fail-at", "6:2"] if fails else []
    job = SPEC.replace('"backoffLimit": 2', '"backoffLimit": 0')
    run = run_dag(dag, WAITING.format(job=job, dag=dag, deferrable=deferrable, extra=extra))
    end = {"train": "failed", "done": "failed", "soft": "skipped"} if fails else {
        "train": "success", "done": "success", "soft": "success"}  # fmt: skip
    assert _states(run) == {**end, "ran": "success", "use": "success"}
    (row,) = _ledger().jobs()
    found = _xcom(next(ti for ti in run.get_task_instances() if ti.task_id == "ran"))
    assert (found["job_id"], found["phase"]) == (row.job_id, row.phase)
    assert Kind.RUNNING in [event.kind for event in _ledger().read(row.job_id)]
