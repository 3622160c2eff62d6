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

    from ffdl_airflow.triggers.job import Mandate, TrainingJobTrigger

    made = TrainingJobTrigger(job_id="digits-0123456789", goal="launch", engine="local",
                              ffdl_conn_id="ffdl_default",
                              mandate=Mandate(give_back=True, clears=1, told=7, deadline=None),
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


def test_tries_of_mapped_tasks_and_default_args() -> None:
    """Airflow fills in its own defaults for mapped tasks first; what a user says wins always."""
    from airflow.sdk import DAG

    from ffdl_airflow import FfdlRetryPolicy, TrainingJobOperator
    from ffdl_airflow.operators.assets import MODELS

    with DAG("tries", schedule=None):
        mapped = TrainingJobOperator.partial(task_id="mapped").expand(job=["a.yaml", "b.yaml"])
        none = TrainingJobOperator.partial(task_id="none", retries=0).expand(job=["a.yaml"])
    for task in (mapped, mapped.unmap({"job": "a.yaml"})):
        assert (task.retries, task.retry_delay) == (6, timedelta(seconds=2))
        assert isinstance(task.retry_policy, FfdlRetryPolicy)
        assert task.outlets == [MODELS]
    assert none.unmap({"job": "a.yaml"}).retries == 0
    with DAG("said", schedule=None, default_args={"retries": 1}):
        assert TrainingJobOperator(task_id="plain", command=["true"]).retries == 1
        said = TrainingJobOperator.partial(task_id="said").expand(job=["a.yaml"])
        assert said.retries == 1


def test_a_group_without_its_prefix_is_refused() -> None:
    from airflow.sdk import DAG

    from ffdl_airflow import TrainingJobGroup

    with DAG("d", schedule=None), pytest.raises(ValueError, match="prefix_group_id"):
        TrainingJobGroup("train", job=job_document(), prefix_group_id=False)


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


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"job": 5}, "job: found 5, allowed: a mapping, YAML text, the path of a YAML file"),
    ({"job": [1]}, r"job: found \[1\], allowed: a mapping"),
    ({"job": [1], "gpu": 1}, r"job: found \[1\], allowed beside shortcuts: a mapping, or none"),
    ({}, "job, command: found neither, allowed: one of them or both"),
    ({"image": "t:1"}, "job, command: found neither"),
    ({"command": ["t"], "replicas": "2"}, "replicas: found '2', allowed: a whole number, at least"),
    ({"command": ["t"], "replicas": 0}, "replicas: found 0, allowed: a whole number, at least 1"),
    ({"command": ["t"], "gpu": True}, "gpu: found True, allowed: a whole number, at least 0"),
    ({"command": ["t"], "until": "lunch"}, "until: found 'lunch', allowed: submit, prefetch, res"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[str(w[0]) for w in WRONG])
def test_what_can_be_seen_when_the_dag_is_parsed(arguments: dict[str, Any], message: str) -> None:
    from ffdl_airflow import TrainingJobOperator

    with pytest.raises(ValueError, match=message):
        TrainingJobOperator(task_id="t", **arguments)


def test_what_comes_later_is_not_judged_before() -> None:
    from airflow.sdk import DAG, task

    from ffdl_airflow import TrainingJobGroup, TrainingJobOperator

    with DAG("later", schedule=None):
        made = task(job_document, task_id="made")()
        TrainingJobOperator(task_id="t", job=made)
        TrainingJobOperator(task_id="u", command=["t"], replicas="{{ params.n }}")
        with pytest.raises(ValueError, match="job: found 5"):
            TrainingJobGroup("g", job=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [5, timedelta(0)])
def test_a_deadline_is_a_time(limit: Any) -> None:
    from ffdl_airflow import run_deadline

    with pytest.raises(ValueError, match=r"limit: found .*, allowed: a timedelta above 0"):
        run_deadline(limit)


def test_mistakes_of_a_user_are_not_tried_again() -> None:
    """Also those that Airflow raises before any code of ours: of a mapped task's templates."""
    import jinja2
    from airflow.sdk import RetryAction
    from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse

    from ffdl_airflow import FfdlRetryPolicy, ReapOperator, TrainingJobSensor

    def answer(kind: ErrorType) -> AirflowRuntimeError:
        return AirflowRuntimeError(ErrorResponse(error=kind))

    mistakes = (jinja2.UndefinedError("'x' is undefined"), AirflowNotFoundException("no conn_id"),
                answer(ErrorType.VARIABLE_NOT_FOUND))  # fmt: skip
    others = (answer(ErrorType.API_SERVER_ERROR), TypeError("a fault of our own"))
    for task in (ReapOperator(task_id="r"), TrainingJobSensor(task_id="s", job_id="x-1")):
        assert isinstance(task.retry_policy, FfdlRetryPolicy)
        for error in mistakes:
            assert task.retry_policy.evaluate(error, 1, 6).action is RetryAction.FAIL
        for error in others:
            assert task.retry_policy.evaluate(error, 1, 6).action is RetryAction.DEFAULT


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
    assert after["train.prefetch"] == ["train.reserve", "train.watchdog"]
    assert after["train.watchdog"] == []
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
