"""``make demo``: the digits job as a DAG, stage by stage, in one process and on this machine.

Airflow's own home and state lie in ``$XDG_STATE_HOME/ffdl/demo`` and stay, so that the second run
shows what a warm start is worth.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ffdl_airflow import console, report
from ffdl_airflow.core.quantities import format_duration
from ffdl_airflow.settings import default_state_dir, from_environment

EXAMPLES = Path(__file__).resolve().parents[1] / "example_dags"
DAG_FILE = "training_group.py"


def main() -> int:
    """Run the demo; returns the exit code."""
    if not (EXAMPLES / DAG_FILE).is_file():
        sys.stderr.write("demo: run it in a checkout of the repository, where example_dags/ is\n")
        return 2
    home = default_state_dir({k: v for k, v in os.environ.items() if k != "AIRFLOW_HOME"}) / "demo"
    _prepare(home)
    state = _run_dag(home)
    job_id = _newest_job()
    _print_report(job_id)
    return 0 if state == "success" else 1


def _prepare(home: Path) -> None:
    """Airflow's home, the DAG's folder and the digits as files: something to fetch."""
    dags = home / "dags"
    shutil.copytree(EXAMPLES, dags, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    os.environ.update(_airflow_settings(home))
    export = [sys.executable, str(dags / "digits" / "export_data.py"), str(dags / "digits-data")]
    subprocess.run(export, check=True)  # noqa: S603 - our own program


def _airflow_settings(home: Path) -> Mapping[str, str]:
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": os.environ.get("FFDL_LOG_LEVEL", "WARNING").upper(),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "FFDL_STATE_DIR": str(home / "ffdl"),
        "AIRFLOW__FFDL__STATE_DIR": str(home / "ffdl"),
        # Two ranks need two slots, also on a machine with one core.
        "FFDL_SLOTS": str(max(2, len(os.sched_getaffinity(0)))),
        "AIRFLOW__FFDL__SLOTS": str(max(2, len(os.sched_getaffinity(0)))),
    }


def _run_dag(home: Path) -> str:
    """Airflow is imported here and not before: it reads its settings at import."""
    from airflow.dag_processing.dagbag import DagBag  # noqa: PLC0415
    from airflow.utils.db import initdb  # noqa: PLC0415

    if not (home / "airflow.db").exists():
        initdb()
    bag = DagBag(dag_folder=str(home / "dags" / DAG_FILE), bundle_path=home / "dags", bundle_name="dags-folder")
    run = bag.dags["training_group"].test(use_executor=False)
    return str(run.state)


def _newest_job() -> str:
    from ffdl_airflow import services  # noqa: PLC0415

    return services.deps(from_environment()).ledger.jobs()[0].job_id


def _print_report(job_id: str) -> None:
    from ffdl_airflow import services  # noqa: PLC0415

    deps = services.deps(from_environment())
    told = report.describe(job_id, deps.ledger.read(job_id), now=datetime.now(timezone.utc))
    console.line(f"\njob {job_id}: {told['phase']}")
    for phase in told["phases"]:
        console.line(f"  {phase['phase']:<12} {format_duration(phase['seconds']):>8}")
    console.line(f"gang of {told['gang']['replicas']} ranks on {told['gang']['slots']} slots")
    for name, store in told["data"].items():
        console.line(f"data {name}: generation {store['generation']}, {console.moved_text(store)}")
    _print_result(told)


def _print_result(told: Mapping[str, Any]) -> None:
    checkpoint, model = told["checkpoint"] or {}, told["model"] or {}
    for name, value in (model.get("metrics") or {}).items():
        console.line(f"held-out {name} {value:.4f}")
    console.line(f"checkpoint step {checkpoint.get('step')} {checkpoint.get('path')}")
    console.line(f"model {model.get('name')} version {model.get('version')} "
                 f"sha256 {model.get('sha256')}")  # fmt: skip
    parts = {use: value for use, value in told["slot_seconds"].items() if use != "total"}
    text = " + ".join(f"{use} {value:.1f}" for use, value in parts.items())
    console.line(f"slot-seconds {text} = {told['slot_seconds']['total']:.1f}")


if __name__ == "__main__":
    sys.exit(main())
