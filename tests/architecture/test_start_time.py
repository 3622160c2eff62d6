"""A DAG file that names our operators must parse as quickly as one that does not (STYLE rule 8)."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.architecture import source

BUDGET_S = 0.100  # SPEC's figure for the package, beyond Airflow's own import
TRIES = 5  # the best counts: noise only ever adds; CPU time, so that a busy machine does not count

MEASURE = """
import importlib, json, sys, time
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, TaskGroup, XComArg
import airflow.triggers.base
start = time.process_time()
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps({"seconds": time.process_time() - start}))
"""

ALONE = """
import json, sys, time
start = time.process_time()
import ffdl_airflow, ffdl_airflow.provider_info
ffdl_airflow.provider_info.get_provider_info()
print(json.dumps({"seconds": time.process_time() - start, "modules": sorted(sys.modules)}))
"""


def run(code: str, *words: str) -> dict:
    """Run code in a new process and return the JSON of its last line."""
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=source.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def best(code: str, *words: str) -> float:
    """Return the best time of a few fresh processes; the first one within the budget is enough."""
    seconds = float("inf")
    for _ in range(TRIES):
        seconds = min(seconds, run(code, *words)["seconds"])
        if seconds < BUDGET_S:
            break
    return seconds


def test_the_package_itself_imports_nothing() -> None:
    loaded = set(run(ALONE)["modules"])
    heavy = {"airflow", "pydantic", "sqlalchemy", "yaml", "httpx", "rich", "asyncio"}
    assert not loaded & heavy
    assert best(ALONE) < BUDGET_S


def test_dag_facing_modules_together_stay_within_the_budget() -> None:
    modules = ["ffdl_airflow", *source.modules_of("operators", "sensors", "triggers", "links")]
    assert best(MEASURE, json.dumps(modules)) < BUDGET_S
