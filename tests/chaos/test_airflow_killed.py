"""Everything of Airflow is killed at once: the job does not notice, and nothing of it is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installation import Installation, show

from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.goal import Goal
from tests.trainers.counting import weights_after

pytest.importorskip("airflow", reason="needs Airflow itself")

STEPS, EVERY, DELAY_S = 120, 20, 0.05
HOLD_S = 4
DAG = """
from airflow.sdk import DAG
from ffdl_airflow import TrainingJobOperator

job = {job!r}
with DAG({dag_id!r}, schedule=None):
    TrainingJobOperator(task_id="train", job=job, until={until!r})
"""


@pytest.fixture(scope="module")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests here: its database takes longer to make than a test to run."""
    return tmp_path_factory.mktemp("airflow")


def start_airflow(
    installation: Installation, airflow_home: Path, until: str, **spec: Any
) -> subprocess.Popen[str]:
    """A process group in which the DAG runs."""
    options = {"steps": STEPS, "every": EVERY, "step-delay": DELAY_S}
    manifest = installation.manifest("killed", replicas=2, options=options, **spec)
    dags = airflow_home / "dags"
    dags.mkdir(exist_ok=True)
    dag_id = f"killed_{until}"
    file = dags / f"{dag_id}.py"
    file.write_text(DAG.format(job=str(manifest), until=until, dag_id=dag_id))
    process = installation.start_airflow(airflow_home, file, dag_id)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.strip() == "ready":
            break
    else:
        pytest.fail("".join(lines))
    return process


def kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def job_of(installation: Installation, wait_until: Callable[..., Any]) -> str:
    found: list[str] = wait_until(installation.jobs, message="the job is in the ledger")
    return found[0]


def shown(installation: Installation, *words: str) -> Any:
    done = installation.run(*words, "-o", "json")
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout)


def test_killed_while_training(
    installation: Installation, airflow_home: Path, wait_until: Callable[..., Any]
) -> None:
    process = start_airflow(installation, airflow_home, "register")
    job_id = job_of(installation, wait_until)
    wait_until(lambda: installation.events(job_id, Kind.RUNNING), message="running")
    kill(process)
    seen = installation.events(job_id)
    assert len(installation.ranks(job_id)) == 2
    wait_until(lambda: not installation.processes(), message="the gang has ended by itself")
    assert installation.events(job_id) == seen
    (row,) = shown(installation, "get", job_id)
    assert (row["step"], row["attempt"]) == (STEPS, 1)
    assert "ended well" in row["reason"]
    (attempt,) = shown(installation, "describe", job_id)["attempts"]
    assert (attempt["result"], attempt["last_step"]) == ("ok", STEPS)
    kinds = [event["kind"] for event in shown(installation, "events", job_id)]
    assert kinds.count("AttemptEnded") == 1
    assert installation.events(job_id) == seen
    state = installation.drive(job_id)
    events = installation.events(job_id)
    story = show(events)
    assert state.phase == "Succeeded", story
    (running,) = [event for event in events if event.kind is Kind.RUNNING]
    (ended,) = [event for event in events if event.kind is Kind.ATTEMPT_ENDED]
    assert ended.at < ended.recorded_at
    assert attempt["ended_at"] == shown(installation, "describe", job_id)["attempts"][0]["ended_at"]
    length_s = (ended.at - running.at).total_seconds()
    assert STEPS * DELAY_S <= length_s <= STEPS * DELAY_S + 15, story
    assert installation.weights(job_id) == weights_after(STEPS), story
    assert [step for _, step in installation.steps(job_id)] == list(range(1, STEPS + 1))


def test_killed_while_holding(
    installation: Installation, airflow_home: Path, wait_until: Callable[..., Any]
) -> None:
    process = start_airflow(installation, airflow_home, "reserve", reservation={"hold": HOLD_S})
    job_id = job_of(installation, wait_until)
    wait_until(lambda: len(installation.agents(job_id)) == 2, message="two agents")
    journal = Path(installation.settings.checkpoint_root) / job_id / "journal" / "1.jsonl"
    wait_until(lambda: journal.exists() and "Reserved" in journal.read_text(), message="a hold")
    kill(process)
    assert len(installation.agents(job_id)) == 2
    wait_until(lambda: not installation.processes(), timeout=30, message="the gang has left")
    kinds = [event["kind"] for event in shown(installation, "events", job_id)]
    assert kinds[-1] == "HoldExpired"
    assert "hold has expired" in shown(installation, "get", job_id)[0]["reason"]
    assert installation.drive(job_id, Goal.RESERVE).phase == "Reserved"
    state = installation.drive(job_id)
    events = installation.events(job_id)
    assert state.phase == "Succeeded", show(events)
    (expired,) = [event for event in events if event.kind is Kind.HOLD_EXPIRED]
    first, second = (event for event in events if event.kind is Kind.RESERVED)
    assert HOLD_S <= (expired.at - first.at).total_seconds() <= HOLD_S + 2
    assert expired.at < second.at
    assert expired.body["held_s"] >= HOLD_S
    assert installation.weights(job_id) == weights_after(STEPS)
