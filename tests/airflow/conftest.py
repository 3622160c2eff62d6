"""A DAG folder of the session in Airflow's own home, its database, and `dag.test` in this process.

The home is the session's temporary one (tests/conftest.py); the DAG folder is set before Airflow is
imported, because `dag.test` takes only DAGs of a configured bundle (tried).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def dags_folder() -> Path:
    folder = Path(os.environ["AIRFLOW_HOME"]) / "dags"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(folder)
    os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "ERROR"
    return folder


@pytest.fixture(scope="session")
def airflow_db(dags_folder: Path) -> None:
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture
def run_dag(
    airflow_db: None, dags_folder: Path, ffdl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], Any]:
    """``run_dag(dag_id, source)``: write the file, run the DAG, return its DagRun."""
    from airflow.dag_processing.dagbag import DagBag

    for key in ("STATE_DIR", "CACHE_DIR", "CHECKPOINT_ROOT", "MODEL_ROOT", "SLOTS"):
        monkeypatch.setenv(f"AIRFLOW__FFDL__{key}", os.environ[f"FFDL_{key}"])

    def run(dag_id: str, source: str) -> Any:
        path = dags_folder / f"{dag_id}_file.py"
        path.write_text(source)
        code = dags_folder / "trainer"
        if not code.exists():
            shutil.copytree(ROOT / "tests" / "trainers", code,
                            ignore=shutil.ignore_patterns("__pycache__", "test_*"))  # fmt: skip
        bag = DagBag(dag_folder=str(path), bundle_path=dags_folder, bundle_name="dags-folder")
        assert not bag.import_errors, bag.import_errors
        return bag.dags[dag_id].test()

    return run
