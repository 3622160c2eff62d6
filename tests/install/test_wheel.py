"""Installed the way a user does it: the built wheel, into an Airflow that has other providers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AIRFLOW = f"apache-airflow=={version('apache-airflow')}"
OTHERS = ("apache-airflow-providers-cncf-kubernetes", "apache-airflow-providers-http",
          "apache-airflow-providers-postgres", "apache-airflow-providers-amazon")  # fmt: skip
LOOK = """
import json, sys
from importlib.metadata import entry_points
from airflow.providers_manager import ProvidersManager
from airflow.plugins_manager import get_plugin_info
import ffdl_airflow, ffdl
manager = ProvidersManager()
print(json.dumps({
    "where": ffdl_airflow.__file__, "trainer": ffdl.__file__,
    "provider": "ffdl-airflow" in manager.providers,
    "connection": "ffdl" in manager.hooks,
    "operator": ffdl_airflow.TrainingJobOperator(task_id="t", command=["true"]).job["metadata"],
    "plugin": [p["name"] for p in get_plugin_info()],
}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of a fresh environment with Airflow, other providers and our wheel."""
    folder = tmp_path_factory.mktemp("install")
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert uv is not None, "uv is what `make install` installs first"
    _run(uv, "build", "--wheel", "--quiet", "--out-dir", str(folder / "dist"), str(ROOT))
    (wheel,) = (folder / "dist").glob("*.whl")
    _run(uv, "venv", "--quiet", "--python", sys.executable, str(folder / "venv"))
    python = folder / "venv" / "bin" / "python"
    _run(uv, "pip", "install", "--quiet", "--python", str(python), str(wheel), AIRFLOW, *OTHERS)
    _run(uv, "pip", "check", "--python", str(python))
    return python


def test_airflow_finds_all_of_it(python: Path, tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AIRFLOW_HOME": str(tmp_path)}
    told = _run(str(python), "-c", LOOK, env=env, cwd=tmp_path)
    found = json.loads(told.splitlines()[-1])
    site = str(python.parents[1] / "lib")
    assert found["where"].startswith(site)
    assert found["trainer"].startswith(site)
    assert found["provider"]
    assert found["connection"]
    assert found["operator"] == {"name": "t"}
    assert "ffdl" in found["plugin"]


def test_the_command_line_is_there(python: Path, tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    told = _run(str(python.with_name("ffdl")), "--help", env=env, cwd=tmp_path)
    assert "validate" in told


def test_the_web_app_brings_its_files(python: Path) -> None:
    package = next((python.parents[1] / "lib").glob("python*/site-packages/ffdl_airflow"))
    assert list((package / "web").rglob("*.html"))
    assert list((package / "web").rglob("*.css"))


def _run(*words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=env, cwd=cwd)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout
