"""The link of a task to the page of its job; in a real Airflow: test_in_airflow.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ffdl_airflow.links.job import XCOM_JOB_ID, TrainingJobLink

KEY = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=3)
EXAMPLES = Path(__file__).parents[2] / "example_dags"


def link(monkeypatch: pytest.MonkeyPatch, job_id: Any) -> str:
    from airflow.sdk.execution_time.xcom import XCom

    def left(*, key: str, task_id: str, dag_id: str, run_id: str, map_index: int) -> Any:
        assert (key, task_id, dag_id, run_id, map_index) == (XCOM_JOB_ID, "t", "d", "r", 3)
        return job_id

    monkeypatch.setattr(XCom, "get_one", left)
    return TrainingJobLink().get_link(None, ti_key=KEY)


def test_it_leads_to_the_job_below_airflows_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://a.example/air/")
    assert link(monkeypatch, "digits-1") == "https://a.example/air/ffdl/jobs/digits-1"


def test_without_a_job_there_is_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    assert link(monkeypatch, None) == ""


def test_every_task_of_ours_has_it() -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.serialized_objects import DagSerialization

    file = str(EXAMPLES / "training_from_ui.py")
    bag = DagBag(dag_folder=file, bundle_path=EXAMPLES, bundle_name="examples")
    document = DagSerialization.to_dict(bag.dags["training_from_ui"])
    (task,) = DagSerialization.from_dict(document).tasks
    assert [(found.name, found.xcom_key) for found in task.operator_extra_links] == [
        ("Training job", "_link_TrainingJobLink")
    ]


def test_every_number_of_the_form_has_bounds() -> None:
    """What Airflow's processes cannot tell each other is refused by the form, not by a task."""
    from airflow.dag_processing.dagbag import DagBag

    file = str(EXAMPLES / "training_from_ui.py")
    bag = DagBag(dag_folder=file, bundle_path=EXAMPLES, bundle_name="examples")
    schemas = {name: param.schema for name, param in bag.dags["training_from_ui"].params.items()}
    numbers = {name: of for name, of in schemas.items() if of["type"] in ("integer", "number")}
    assert "seed" in numbers
    assert all("enum" in of or "maximum" in of for of in numbers.values()), numbers


def test_airflow_knows_it_from_the_provider() -> None:
    from airflow.providers_manager import ProvidersManager

    assert "ffdl_airflow.links.job.TrainingJobLink" in ProvidersManager().extra_links_class_names
