"""``make demo``: the digits job as a DAG, stage by stage, in one process and on this machine.

Airflow's own home and state lie in ``$XDG_STATE_HOME/ffdl/demo`` and stay, so that the second run
shows what a warm start is worth.
"""

import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ffdl_airflow import console, report, services
from ffdl_airflow.core.errors import FfdlError, FieldProblem, SpecError
from ffdl_airflow.core.lifecycle import fold
from ffdl_airflow.core.quantities import format_duration
from ffdl_airflow.examples import fernet_key, kept_slots, make_home, own_home, prepare_examples
from ffdl_airflow.settings import from_environment

DAG_FILE = "training_group.py"
WATCHDOG = "watchdog"
"""Task that is left out: one task runs at a time, and it would wait for launch."""
_RANKS = 2
_LOOK_S = 0.5
"""Time between two looks at the log. Chosen."""


def main() -> int:
    """Run the demo; returns the exit code."""
    home = own_home("demo")
    try:
        make_home(home, said="XDG_STATE_HOME")
        prepare_examples(home / "dags")
        os.environ.update(_airflow_settings(home))
        services.require(from_environment())
    except FfdlError as error:
        sys.stderr.write(f"demo: {error.message}\n")
        return error.exit_code
    console.line(f"Airflow starts; its home is {home}")
    dag = _load_dag(home)
    with _phases_shown():
        run = dag.test(mark_success_pattern=rf".*\.{WATCHDOG}")
    _print_report(_newest_job())
    command = Path(sys.prefix) / "bin" / "ffdl"
    console.line(f"\nlook around: FFDL_STATE_DIR={home / 'ffdl'} {command} get -o wide")
    return 0 if str(run.state) == "success" else 1


def _airflow_settings(home: Path) -> Mapping[str, str]:
    slots = kept_slots()
    if slots < _RANKS:
        allowed = f"{_RANKS} at least: the demo's job has {_RANKS} ranks, of a slot each"
        raise SpecError([FieldProblem("FFDL_SLOTS", str(slots), allowed)], source="the environment")
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__FERNET_KEY": fernet_key(home / "fernet_key"),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": os.environ.get("FFDL_LOG_LEVEL", "ERROR").upper(),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__FFDL__STATE_DIR": str(home / "ffdl"),
        "AIRFLOW__FFDL__SLOTS": str(slots),
        "FFDL_STATE_DIR": str(home / "ffdl"),
        "FFDL_SLOTS": str(slots),
    }


def _load_dag(home: Path) -> Any:
    """Airflow is imported here and not before: it reads its settings at import."""
    warnings.simplefilter("ignore")  # of Airflow's own parts, about one another
    from airflow.dag_processing.dagbag import DagBag
    from airflow.utils.db import initdb

    if not (home / "airflow.db").exists():
        initdb()
    file = str(home / "dags" / DAG_FILE)
    bag = DagBag(dag_folder=file, bundle_path=home / "dags", bundle_name="dags-folder")
    return bag.dags["training_group"]


@contextmanager
def _phases_shown() -> Iterator[None]:
    """Show the phases of the newest job while the DAG runs in this thread."""
    over = threading.Event()
    thread = threading.Thread(target=_show_phases, args=(over, datetime.now(timezone.utc)))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show_phases(over: threading.Event, since: datetime) -> None:
    ledger = services.deps(from_environment()).ledger
    display = console.ProgressDisplay()
    last = False
    while not last:
        last = over.wait(_LOOK_S)
        for row in ledger.jobs()[:1]:
            if row.created_at >= since:
                display.phases(fold(row.job_id, ledger.read(row.job_id)))


def _newest_job() -> str:
    return services.deps(from_environment()).ledger.jobs()[0].job_id


def _print_report(job_id: str) -> None:
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
    parts = report.slot_seconds(told["slot_seconds"], digits=1)
    total = parts.pop("total")
    text = " + ".join(f"{use} {value:.1f}" for use, value in parts.items())
    console.line(f"slot-seconds {text} = {total:.1f}")


if __name__ == "__main__":
    sys.exit(main())
