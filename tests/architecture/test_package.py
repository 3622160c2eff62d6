"""What is installed is what is promised: names, entry points, provider data, files of the wheel."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import jsonschema
import pytest

import ffdl_airflow
from ffdl_airflow.provider_info import get_provider_info
from ffdl_airflow.settings import KEYS, from_values
from tests.architecture import source

SETTINGS = {
    *("ledger_url", "state_dir", "cache_dir", "checkpoint_root", "model_root", "engine", "slots"),
    *("gpus", "heartbeat_s", "silent_s", "hold_s", "placement_s", "grace_s", "installation_key"),
    *("kubeconfig", "kube_context", "namespace", "agent_image", "mover_image"),
    *("pod_python", "volumes", "service_account", "run_as_user", "fs_group", "tolerations"),
    *("turnstile_namespace", "kubernetes_conn_id"),
}
ENTRY_POINT_GROUPS = {"airflow.plugins", "apache_airflow_provider", "console_scripts"}


@pytest.mark.parametrize("name", ffdl_airflow.__all__)
def test_public_names_exist(name: str) -> None:
    assert getattr(ffdl_airflow, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="it has"):
        _ = ffdl_airflow.TrainingJobOperatr


def test_provider_info_has_airflows_form() -> None:
    spec = importlib.util.find_spec("airflow")
    schema = Path(spec.submodule_search_locations[0]) / "provider_info.schema.json"
    jsonschema.validate(get_provider_info(), json.loads(schema.read_text()))


def test_airflow_finds_the_provider_and_its_settings() -> None:
    code = (
        "from airflow.configuration import conf; from airflow.providers_manager import *\n"
        "manager = ProvidersManager()\n"
        "print(conf.get('ffdl', 'engine'), 'ffdl' in manager.hooks)\n"
        "print(sorted(manager.providers))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "local True\n" in done.stdout, done.stdout + done.stderr
    assert "'ffdl-airflow'" in done.stdout


def test_provider_info_names_every_setting() -> None:
    assert set(get_provider_info()["config"]["ffdl"]["options"]) == SETTINGS


@pytest.mark.parametrize("key", sorted(SETTINGS | set(KEYS)))
def test_a_setting_that_is_offered_acts(key: str) -> None:
    """It is read into a field, and the page of settings has it."""
    none = from_values({}, state_dir=Path("/s"))
    assert from_values({key: "7"}, state_dir=Path("/s")) != none
    page = (source.ROOT / "docs" / "manifest.md").read_text(encoding="utf-8")
    assert f"`{key.upper()}`" in page


def test_connection_fields_are_settings() -> None:
    (connection,) = get_provider_info()["connection-types"]
    assert set(connection["conn-fields"]) <= SETTINGS


def test_hook_of_the_connection_type_exists() -> None:
    (connection,) = get_provider_info()["connection-types"]
    module, _, name = connection["hook-class-name"].rpartition(".")
    assert getattr(importlib.import_module(module), name).conn_type == "ffdl"


def test_entry_points_exist() -> None:
    points = importlib.metadata.distribution("ffdl_airflow").entry_points
    assert {point.group for point in points} == ENTRY_POINT_GROUPS
    for point in points:
        assert callable(point.load())


def test_wheel_holds_package_and_trainer_module(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=source.ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"ffdl.py", "ffdl_airflow"}
    assert "ffdl_airflow/py.typed" in names
    pages = {f"ffdl_airflow/web/{name}" for name in ("static/ffdl.css", "templates/job.html")}
    assert pages <= names
    assert not {name for name in names if "__pycache__" in name}
    sources = {str(path.relative_to(source.ROOT)) for path in source.PACKAGE.rglob("*.py")}
    assert sources <= names


def test_what_is_imported_is_declared() -> None:
    """A library that only happens to come with another one is not there for ever."""
    declared = {
        re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")
        for requirement in importlib.metadata.requires("ffdl_airflow")
    }
    homes = dict(importlib.metadata.packages_distributions())
    homes["airflow"] = ["apache-airflow"]  # whose code lies in distributions of other names
    homes["pynvml"] = ["pynvml"]  # brings its module by way of another distribution
    own = {"ffdl", "ffdl_airflow", "ffdl_agent", *sys.stdlib_module_names}
    missing = {
        f"{path.relative_to(source.ROOT)}: {top}"
        for path in source.product_files()
        for top in imported_tops(path) - own
        if not declared & {home.lower().replace("_", "-") for home in homes.get(top, [top])}
    }
    assert not missing


def imported_tops(path: Path) -> set[str]:
    tops = set()
    for node in ast.walk(source.tree(path)):
        if isinstance(node, ast.Import):
            tops |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            tops.add(node.module.partition(".")[0])
    return tops
