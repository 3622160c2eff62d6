"""Imports point one way, and the decisions can be had without Airflow or any client library."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest

from tests.architecture import source

CLIENTS = {"airflow", "kubernetes", "kubernetes_asyncio", "boto3", "botocore", "pynvml"}
DATABASE = {"sqlalchemy", "alembic"}

LOADED = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_import_contracts() -> None:
    """The contracts stand in pyproject.toml, each with its sentence."""
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as run; run()",
    ]
    done = subprocess.run(
        [*command, "--no-cache"], cwd=source.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("folder", "banned"), [("core", CLIENTS | DATABASE), ("stages", CLIENTS), ("agent", CLIENTS)]
)
def test_fresh_process_loads_no_client(folder: str, banned: set[str]) -> None:
    loaded = tops_loaded_by(source.modules_of(folder))
    assert loaded & {"ffdl_airflow"}, "nothing was imported"
    assert not loaded & banned


def tops_loaded_by(modules: list[str]) -> set[str]:
    """Import the modules in a new process and return the top-level names that are loaded then."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps(modules)],
        cwd=source.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def in_the_image() -> list:
    """Return the files that travel into the user's image."""
    files = sorted((source.PACKAGE / "agent").glob("*.py"))
    return [*files, *([source.TRAINER_MODULE] if source.TRAINER_MODULE.exists() else [])]


@pytest.mark.parametrize("path", in_the_image(), ids=lambda path: path.name)
def test_agent_needs_only_the_standard_library(path) -> None:
    allowed = {*sys.stdlib_module_names, *({"pynvml"} if path.name == "sampler.py" else ())}
    absolute = set()
    for node in ast.walk(source.tree(path)):
        if isinstance(node, ast.Import):
            absolute |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            absolute.add(node.module.partition(".")[0])
    assert absolute <= allowed


@pytest.mark.parametrize("path", in_the_image(), ids=lambda path: path.name)
def test_agent_is_python_3_8(path) -> None:
    """The grammar only; tests/agent runs it on a real 3.8 where one is found."""
    ast.parse(path.read_text(), feature_version=(3, 8))
