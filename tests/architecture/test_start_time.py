"""A DAG file that names our operators must parse as quickly as one that does not (STYLE rule 8)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture import source

BUDGET_S = 0.100  # for the package, beyond Airflow's own import
BUDGET_SHARE = 0.03  # the same on a slower machine: Airflow itself takes 3.4 s where 0.1 s is meant
TRIES = 5  # the best counts: noise only ever adds; CPU time, so that a busy machine does not count

MEASURE = """
import importlib, json, sys, time
begin = time.process_time()
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, TaskGroup, XComArg
import airflow.triggers.base
start = time.process_time()
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
seconds = time.process_time() - start
loaded = sorted(name for name in sys.modules if name.startswith("ffdl_airflow"))
print(json.dumps({"seconds": seconds, "airflow": start - begin, "loaded": loaded}))
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


def best(code: str, *words: str) -> tuple[float, float]:
    """Return seconds and budget of the best of a few fresh processes; a good one ends the tries."""
    tries = []
    for _ in range(TRIES):
        result = run(code, *words)
        tries.append((result["seconds"], max(BUDGET_S, BUDGET_SHARE * result.get("airflow", 0))))
        if tries[-1][0] < tries[-1][1]:
            break
    return min(tries)


def test_the_package_itself_imports_nothing() -> None:
    loaded = set(run(ALONE)["modules"])
    heavy = {"airflow", "pydantic", "sqlalchemy", "yaml", "httpx", "rich", "asyncio"}
    assert not loaded & heavy
    seconds, budget = best(ALONE)
    assert seconds < budget


def test_dag_facing_modules_together_stay_within_the_budget() -> None:
    """What runs (`execution`, triggers) is imported when it runs, so it does not count."""
    found = source.modules_of("operators", "sensors", "hooks", "links")
    modules = ["ffdl_airflow", *(name for name in found if not name.endswith(".execution"))]
    seconds, budget = best(MEASURE, json.dumps(modules))
    assert seconds < budget
    names = run(MEASURE, json.dumps(modules))["loaded"]
    assert not [name for name in names if name.startswith("ffdl_airflow.stages")]


PARSE = """
import json, runpy, sys, time
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, TaskGroup, XComArg
import airflow.triggers.base, yaml
start = time.process_time()
runpy.run_path(sys.argv[1])
print(json.dumps({"seconds": time.process_time() - start, "airflow": 0}))
"""
PARSE_BUDGET_S = 1.0  # the requirement's, beyond Airflow's own import


@pytest.mark.parametrize(
    "path",
    sorted([*source.ROOT.glob("dags/*.py"), *source.ROOT.glob("example_dags/*.py")]),
    ids=lambda path: path.name,
)
def test_a_shipped_dag_parses_quickly(path: Path) -> None:
    tries = []
    for _ in range(TRIES):
        tries.append(run(PARSE, str(path))["seconds"])
        if tries[-1] < PARSE_BUDGET_S:
            break
    assert min(tries) < PARSE_BUDGET_S
