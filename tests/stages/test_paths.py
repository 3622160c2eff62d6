"""Paths are meant from where the manifest lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.stages.paths import resolve_paths

BASE = Path("/home-of/manifests")


def resolved(**spec: Any) -> Any:
    return resolve_paths({"kind": "TrainingJob", "spec": spec}, BASE)["spec"]


def test_code_data_and_checkpoints_become_absolute() -> None:
    spec = resolved(
        training={"code": "digits", "framework": "jax"}, checkpoint={"path": "../ckpt"},
        dataStores=({"name": "d", "path": "./data"}, {"name": "e", "path": "/e"}, {"name": "f"}),
    )  # fmt: skip
    assert spec["training"] == {"code": "/home-of/manifests/digits", "framework": "jax"}
    assert spec["checkpoint"]["path"] == "/home-of/ckpt"
    assert spec["dataStores"] == [
        {"name": "d", "path": "/home-of/manifests/data"}, {"name": "e", "path": "/e"},
        {"name": "f"},
    ]  # fmt: skip


def test_one_file_has_one_name() -> None:
    one, other = (
        resolved(training={"code": "./a/../digits/"}),
        resolved(training={"code": "digits"}),
    )
    assert one == other


def test_a_home_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home-of/ada")
    assert resolved(training={"code": "~/digits"})["training"]["code"] == "/home-of/ada/digits"


def test_addresses_of_stores_stay_as_they_are() -> None:
    assert resolved(training={"code": "s3://code/x.zip"})["training"]["code"] == "s3://code/x.zip"


@pytest.mark.parametrize(
    "spec",
    [{"training": 5}, {"training": {"code": 5}}, {"training": {"code": ""}}, {"dataStores": "x"},
     {"dataStores": [5]}, {"checkpoint": None}, {}],
)  # fmt: skip
def test_wrong_forms_are_the_readers_business(spec: dict[str, Any]) -> None:
    assert resolved(**spec) == spec


def test_a_spec_that_is_none_stays() -> None:
    assert resolve_paths({"spec": 5}, BASE) == {"spec": 5}


def test_what_is_given_is_not_changed() -> None:
    manifest = {"spec": {"training": {"code": "x"}, "dataStores": [{"path": "d"}]}}
    resolve_paths(manifest, BASE)
    assert manifest == {"spec": {"training": {"code": "x"}, "dataStores": [{"path": "d"}]}}
