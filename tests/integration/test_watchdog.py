"""The watchdog task and the sensors in a real Airflow: they show, they wait, they never act."""

from __future__ import annotations

from ffdl_airflow.core.events import Kind
from tests.conftest import wait_for
from tests.integration.conftest import World


def test_the_watchdog_shows_a_warning_while_launch_runs_and_ends_with_it(world: World) -> None:
    awake = world.home / "awake"
    run = world.server.run_dag("watched", conf={"words": f"work:2 sleep:{awake} work:20"})
    assert run.wait_task("train.watchdog", "deferred")

    def warned() -> str | None:
        told = run.log("train.watchdog", 1)
        return told if "WatchdogWarned" in told else None

    told = wait_for(warned, timeout=120, message=run.story)
    assert "CPU use below 5 %" in told, told
    assert run.states()["train.launch"] == "deferred"
    job_id = run.xcom("train.watchdog", "ffdl_job_id")
    assert job_id == world.row(run).job_id, "the link leads there while it waits"
    page = world.server.request("GET", f"/ffdl/jobs/{job_id}")
    assert "CPU use below 5 %" in page.text, page.text
    waits = world.server.run_dag("waits", conf={"run": run.run_id})
    assert waits.wait_task("running", "success")
    awake.touch()
    assert run.wait() == "success", run.story()
    assert run.states()["train.watchdog"] == "success"
    told = run.log("train.watchdog", 1)
    assert "CPU utilization" in told, told
    assert "WatchdogRecovered" in told, told
    shown = run.xcom("train.watchdog")
    assert (shown["warnings"], shown["job_id"]) == (1, job_id)
    assert waits.wait() == "success", waits.story()
    found = waits.xcom("registered")
    assert (found["phase"], found["model"]["name"]) == ("Succeeded", "watched")
    assert waits.xcom("running", "ffdl_job_id") == job_id


def test_a_launch_that_fails_ends_the_watchdog_and_the_sensor_says_why(world: World) -> None:
    run = world.server.run_dag("watched", conf={"words": "nonsense"})
    assert run.wait() == "failed", run.story()
    assert run.states()["train.watchdog"] == "success", run.story()
    waits = world.server.run_dag("waits", conf={"run": run.run_id})
    assert waits.wait_task("registered", "failed")
    assert waits.wait() == "failed"
    assert "Failed" in waits.log("registered", 1)
    assert waits.tasks()["registered"]["try_number"] == 1, "no useless tries"


def test_a_launch_past_its_deadline_saves_and_fails(world: World) -> None:
    run = world.server.run_dag("watched", conf={"words": "work:400", "launch_s": 10})
    assert run.wait() == "failed", run.story()
    launch = run.tasks()["train.launch"]
    assert (launch["state"], launch["try_number"]) == ("failed", 1), "no useless tries"
    told = run.log("train.launch", 1)
    assert "launch took longer than spec.deadlines.launch, 10 s" in told, told
    assert "raise spec.deadlines.launch" in told, told
    assert not world.ranks_alive(run)
    assert world.events(run, Kind.CHECKPOINT_SEALED), world.log(run)
    assert run.states()["train.release"] == "success"
    assert run.states()["train.watchdog"] == "success", run.story()


def test_clearing_the_watchdog_touches_nothing_else(world: World) -> None:
    run = world.server.run_dag("watched", conf={"words": "work:1"})
    assert run.wait() == "success", run.story()
    before = {name: task["start_date"] for name, task in run.tasks().items()}
    assert run.clear("train.watchdog") == ["train.watchdog"]
    assert run.wait_task("train.watchdog", "success")
    assert run.wait() == "success", run.story()
    after = {name: task["start_date"] for name, task in run.tasks().items()}
    assert [name for name in before if before[name] != after[name]] == ["train.watchdog"]
