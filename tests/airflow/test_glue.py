"""What Airflow asks of providers, operators and triggers; without running anything."""

from __future__ import annotations

import json
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.core.errors import AttemptFailed, InfrastructureError, UserError
from ffdl_airflow.testing.builders import job, job_document

EXAMPLES = Path(__file__).parents[2] / "example_dags"


def test_the_trigger_comes_back_as_it_was() -> None:
    from airflow._shared.module_loading import import_string

    from ffdl_airflow.triggers.job import TrainingJobTrigger

    made = TrainingJobTrigger(job_id="digits-0123456789", goal="launch", engine="local",
                              ffdl_conn_id="ffdl_default", give_back=True,
                              ledger={"id": "93131cb7", "host": "worker-1"})  # fmt: skip
    path, kwargs = made.serialize()
    again = import_string(path)(**json.loads(json.dumps(kwargs)))
    assert again.serialize() == (path, kwargs)


@pytest.mark.parametrize("event", [None, "done", {}, {"v": 2, "kind": "done"}])
def test_an_event_that_is_not_ours_is_refused(event: Any) -> None:
    from ffdl_airflow.triggers.job import Payload

    with pytest.raises(ValueError, match="not ours"):
        Payload.parse(event)


def test_tries_follow_the_budget() -> None:
    from ffdl_airflow.operators.stage import tries_for

    assert tries_for(job(backoffLimit=1)) == 4
    assert tries_for(job_document()) == 6
    assert tries_for("jobs/bert.yaml") == 6


def test_the_retry_policy_follows_the_verdict() -> None:
    from airflow.sdk import RetryAction

    from ffdl_airflow import FfdlRetryPolicy

    policy = FfdlRetryPolicy()
    failed = AttemptFailed("rank 1 ended with exit code 1", verdict={"delay_s": 4.2})
    decision = policy.evaluate(failed, 1, 6)
    assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, timedelta(seconds=4.2))
    assert policy.evaluate(UserError("no such field"), 1, 6).action is RetryAction.FAIL
    assert policy.evaluate(InfrastructureError("disk"), 1, 6).action is RetryAction.DEFAULT
    assert policy.evaluate(RuntimeError("?"), 1, 6).action is RetryAction.DEFAULT
    assert FfdlRetryPolicy.deserialize(policy.serialize()).evaluate(failed, 1, 6) == decision


def test_shortcuts_make_a_job() -> None:
    from ffdl_airflow import TrainingJobOperator

    made = TrainingJobOperator(task_id="train_it", command=["python", "-c", "pass"], replicas=2,
                               gpu=1, env={"A": "b"}, image="reg.example/t:1")  # fmt: skip
    assert made.job == {
        "metadata": {"name": "train-it"},
        "spec": {
            "training": {"framework": "custom", "command": ["python", "-c", "pass"],
                         "env": {"A": "b"}, "image": "reg.example/t:1"},
            "replicas": 2, "resources": {"gpu": 1},
        },
    }  # fmt: skip
    with pytest.raises(ValueError, match="mapping"):
        TrainingJobOperator(task_id="t", job="job.yaml", gpu=1)


def test_every_example_parses_and_serialises() -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.serialized_objects import DagSerialization

    bag = DagBag(dag_folder=str(EXAMPLES), bundle_path=EXAMPLES, bundle_name="examples")
    assert not bag.import_errors
    assert {"training_group", "training_job"} <= set(bag.dags)
    for dag in bag.dags.values():
        document = json.loads(json.dumps(DagSerialization.to_dict(dag)))
        assert set(DagSerialization.from_dict(document).task_ids) == set(dag.task_ids)


def test_the_group_is_wired_so_that_clears_touch_what_they_should() -> None:
    from airflow.sdk import DAG

    from ffdl_airflow import TrainingJobGroup

    with DAG("wiring", schedule=None) as dag:
        TrainingJobGroup("train", job=job_document())
    after = {t.task_id: sorted(t.downstream_task_ids) for t in dag.tasks}
    assert after["train.prefetch"] == ["train.reserve"]
    assert after["train.launch"] == ["train.register", "train.release"]
    assert after["train.register"] == []
    assert dag.get_task("train.reserve").is_setup
    assert dag.get_task("train.release").is_teardown


def test_the_installed_package_announces_itself() -> None:
    groups = {"apache_airflow_provider": "get_provider_info", "airflow.plugins": "FfdlPlugin"}
    for group, attribute in groups.items():
        found = [e for e in entry_points(group=group) if e.value.startswith("ffdl_airflow")]
        assert [e.value.split(":")[1] for e in found] == [attribute], f"{group}: not installed?"
        assert found[0].load() is not None


def test_another_ledger_is_refused_with_both_hosts(ffdl_home: Path) -> None:
    from ffdl_airflow import services
    from ffdl_airflow.settings import from_environment
    from ffdl_airflow.stages.submit import require_ledger

    deps = services.deps(from_environment())
    require_ledger(deps, None)
    require_ledger(deps, {"id": deps.ledger.ledger_id, "host": "anything"})
    with pytest.raises(UserError, match=rf"{deps.source['host']}.*worker-1") as caught:
        require_ledger(deps, {"id": "93131cb7", "host": "worker-1"})
    assert "PostgreSQL" in caught.value.next_step
