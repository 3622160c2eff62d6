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
    TrainingJobGroup("train", job=job)
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
    assert _ledger().jobs() == []
    assert list((ffdl_home / "checkpoints").iterdir()) == []


def _xcom(ti: Any) -> Any:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        found = XComModel.get_many(
            run_id=ti.run_id, task_ids=ti.task_id, dag_ids=ti.dag_id, key="return_value"
        )
        row = session.execute(found.with_only_columns(XComModel.value)).first()
    return XComModel.deserialize_value(row)
