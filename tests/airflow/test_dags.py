"""Operators and group in real DAG runs (`dag.test`), with real gangs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow import services
from ffdl_airflow.core.events import Kind
from ffdl_airflow.settings import from_environment
from tests.trainers.counting import weights_after

JOB = """
job = {
    "apiVersion": "ffdl.cloud.ibm.com/v1", "kind": "TrainingJob",
    "metadata": {"name": "count-{{ dag.dag_id | replace('_', '-') }}"},
    "spec": {
        "training": {"framework": "custom", "code": "trainer", "entryPoint": "counting.py",
                     "args": ["--steps", "12", "--every", "4", *EXTRA]},
        "replicas": 2, "checkpoint": {"every": 4}, "model": {"name": "count"},
        "backoffLimit": 2,
    },
}
"""
GROUP = """
from airflow.sdk import DAG
from ffdl_airflow import TrainingJobGroup
EXTRA = []
{job}
with DAG("{dag}", schedule=None) as dag:
    TrainingJobGroup("train", job=job, show_watchdog=False)
"""
TASK = """
from airflow.sdk import DAG
from ffdl_airflow import TrainingJobOperator
EXTRA = {extra}
{job}
with DAG("{dag}", schedule=None) as dag:
    TrainingJobOperator(task_id="train", job=job, deferrable={deferrable})
"""

RunDag = Callable[[str, str], Any]


def _ledger() -> Any:
    return services.deps(from_environment()).ledger


def _states(run: Any) -> dict[str, str]:
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def test_a_group_goes_through_every_stage(run_dag: RunDag, ffdl_home: Path) -> None:
    run = run_dag("whole_group", GROUP.format(job=JOB, dag="whole_group"))
    stages = ("prefetch", "reserve", "launch", "release", "register")
    assert _states(run) == {f"train.{stage}": "success" for stage in stages}
    (row,) = _ledger().jobs()
    assert row.summary["name"] == "count-whole-group"
    assert row.phase == "Succeeded"
    model = row.summary["model"]
    assert (Path(model["path"]) / "weights.txt").read_text().strip() == weights_after(12)
    kinds = [event.kind for event in _ledger().read(row.job_id)]
    assert kinds.count(Kind.SUBMITTED) == kinds.count(Kind.RESERVE_INTENDED) == 1
    assert row.summary["owner"]["dag_id"] == "whole_group"


@pytest.mark.parametrize("deferrable", [True, False])
def test_an_operator_returns_the_model(run_dag: RunDag, deferrable: bool) -> None:
    dag = f"one_task_{deferrable}".lower()
    run = run_dag(dag, TASK.format(job=JOB, dag=dag, deferrable=deferrable, extra=[]))
    assert _states(run) == {"train": "success"}
    (row,) = _ledger().jobs()
    (ti,) = run.get_task_instances()
    result = _xcom(ti)
    assert result["job_id"] == row.job_id
    assert result["phase"] == "Succeeded"
    assert result["model"] == {"name": "count", "version": 1,
                               "sha256": row.summary["model"]["sha256"]}  # fmt: skip
    assert result["checkpoint"]["step"] == 12
    assert _xcom(ti, key="ffdl_job_id") == row.job_id


def test_a_failure_that_costs_is_a_try_and_the_next_one_resumes(run_dag: RunDag) -> None:
    """Exit 3 at step 6 of the first attempt: Airflow sees the failure, the job goes on from 4."""
    extra = ["--fail-at", "6:3", "--only-attempt", "1", "--only-rank", "0"]
    source = TASK.format(job=JOB, dag="resumes", deferrable=True, extra=extra)
    run = run_dag("resumes", source)
    (row,) = _ledger().jobs()
    events = _ledger().read(row.job_id)
    assert _states(run) == {"train": "success"}, [str(e.document()) for e in events]
    (ti,) = run.get_task_instances()
    assert ti.try_number == 2
    (restart,) = [event for event in events if event.kind is Kind.RESTART_DECIDED]
    assert restart.body["costs"] is True
    went = [event.body["resume"] for event in events if event.kind is Kind.GO_INTENDED]
    assert went[0] is None
    assert went[1]["step"] == 4
    model = row.summary["model"]
    assert (Path(model["path"]) / "weights.txt").read_text().strip() == weights_after(12)


def test_a_user_error_fails_at_once_and_creates_nothing(run_dag: RunDag, ffdl_home: Path) -> None:
    source = TASK.format(job=JOB.replace('"replicas": 2', '"replicas": 9'), dag="too_many",
                         deferrable=True, extra=[])  # fmt: skip
    run = run_dag("too_many", source)
    assert _states(run) == {"train": "failed"}
    (ti,) = run.get_task_instances()
    assert ti.try_number == 1
    assert _xcom(ti, key="ffdl_job_id") is None, "the link would lead nowhere"
    assert _ledger().jobs() == []
    assert list((ffdl_home / "checkpoints").iterdir()) == []


BEGINNING = """
import os
from pathlib import Path
from airflow.sdk import DAG
from ffdl_airflow import TrainingJobOperator, TrainingJobSensor
MAPPING = {"metadata": {"name": "x"}, "spec": {"training": {"framework": "custom", "command": [
    "true", "{{ 1 / 0 }}"]}}}

HIGH = {"metadata": {"name": "x"}, "spec": {"priority": "high", "training": {
    "framework": "custom", "command": ["true"]}}}


def tell(context):
    Path(os.environ["TOLD"]).write_text(str(context["exception"]))


"""
MISTAKES = {
    "syntax": ("job='{{ 1 + }}'", "job: found '{{ 1 + }}' (line 1: unexpected"),
    "undefined": ("job='{{ params.nothere.x }}'", "job: found '{{ params.nothere.x }}' ('"),
    "missing_file": ("job='{{ dag.dag_id }}.yaml'", "missing_file.yaml ([Errno 2] No such file"),
    "in_the_file": ("job='wrong_template.yaml'", "wrong_template.yaml (line 2: "),
    "inside": ("job=MAPPING", "job.spec.training.command[1]: found '{{ 1 / 0 }}' (ZeroDivisionErr"),
    "connection": ("command=['true'], ffdl_conn_id='nope'", "ffdl_conn_id: found 'nope', which Ai"),
    "variable": ("job='{{ var.value.nope }}'", "job: found '{{ var.value.nope }}' ("),
    "priority": ("job=HIGH", "spec.priority: found 'high', allowed: offline-batch, online-high"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_failed_try_that_says_what(
    run_dag: RunDag, dags_folder: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field, found and allowed; and no job for the link to lead to."""
    arguments, message = MISTAKES[name]
    told = tmp_path / "told"
    monkeypatch.setenv("TOLD", str(told))
    (dags_folder / "wrong_template.yaml").write_text("metadata:\n  name: '{{ nothere. }}'\n")
    task = f"TrainingJobOperator(task_id='train', on_failure_callback=tell, {arguments})"
    run = run_dag(name, f"{BEGINNING}with DAG({name!r}, schedule=None) as dag:\n    {task}\n")
    assert _states(run) == {"train": "failed"}
    (ti,) = run.get_task_instances()
    assert ti.try_number == 1
    assert message in told.read_text()
    assert "allowed: " in told.read_text()
    assert _xcom(ti, key="ffdl_job_id") is None
    assert _ledger().jobs() == []


def _xcom(ti: Any, *, key: str = "return_value") -> Any:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        found = XComModel.get_many(
            run_id=ti.run_id, task_ids=ti.task_id, dag_ids=ti.dag_id, key=key
        )
        row = session.execute(found.with_only_columns(XComModel.value)).first()
    return None if row is None else XComModel.deserialize_value(row)
