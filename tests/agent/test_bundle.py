"""The zipapp: the same bytes each time, and it runs on the Python of the user's image."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ffdl_airflow.agent.bundle import build_zipapp
from tests.agent.test_checkpoints import SAVES, steps_of

ROOT = Path(__file__).parent.parent.parent


def python38() -> str | None:
    """A Python 3.8 that can be run, on PATH or where pyenv puts them."""
    pyenv = sorted(Path.home().glob(".pyenv/versions/3.8*/bin/python"))
    for candidate in [shutil.which("python3.8"), *map(str, pyenv)]:
        if candidate:
            check = [candidate, "-c", "import sys; print(sys.version_info[:2] == (3, 8))"]
            done = subprocess.run(check, capture_output=True, text=True, check=False)
            if done.stdout.strip() == "True":
                return candidate
    return None


@pytest.mark.parametrize("python", [sys.executable, "3.8"], ids=["this Python", "Python 3.8"])
def test_the_agent_runs_a_job_from_end_to_end(make_placement, python):
    if python == "3.8":
        python = python38()
        if python is None:
            pytest.skip("no Python 3.8: neither python3.8 on PATH nor ~/.pyenv/versions/3.8*")
    trainer = "import os\nif os.environ['RANK'] == '1': raise SystemExit(0)\n" + SAVES
    trainer += "\nif os.environ['FFDL_ATTEMPT'] == '1': sys.exit(3)\n"
    placement = make_placement(trainer, replicas=2, args=("10",), python=python).up()
    placement.go()
    assert placement.ended()["cause"]["exit"] == 3
    path = placement.checkpoints / "step-000000000005"
    placement.go(attempt=2, resume_from=str(path), resume_step=5)
    assert placement.ended(attempt=2)["ok"], placement.story()
    assert placement.rank_log(0, attempt=2).splitlines() == ["sealed 10 True"]
    assert steps_of(placement) == [10, 5]
    placement.wait_gone()


def test_the_same_sources_give_the_same_bytes(tmp_path):
    """From another process, with another hash seed."""
    first, second = tmp_path / "a.pyz", tmp_path / "b.pyz"
    build_zipapp(str(first))
    code = f"from ffdl_airflow.agent.bundle import build_zipapp; build_zipapp({str(second)!r})"
    env = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-X", "utf8", "-c", code], env=env, check=True)
    assert first.read_bytes() == second.read_bytes()


def test_everything_that_the_trainer_needs_is_in_it(bundle):
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
    assert {"__main__.py", "ffdl.py", "ffdl_agent/main.py", "ffdl_agent/protocol.py"} <= names
    assert not [name for name in names if name.startswith("ffdl_airflow")]


def test_a_wrong_call_is_told(bundle, tmp_path):
    for words in ([], [str(tmp_path), "worker-0"]):
        done = subprocess.run(
            [sys.executable, str(bundle), *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "usage" in done.stderr or "plan.json is missing" in done.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"v": 2}, "this agent reads 1"),
        ({"replicas": []}, "replicas is empty"),
        ({"heartbeat_s": "soon"}, "soon"),
        ({"journal": None, "job": None}, ""),
    ],
)
def test_a_plan_that_cannot_be_used_is_told(make_placement, change, said):
    placement = make_placement("pass")
    placement.plan.update(change)
    if "journal" in change:
        del placement.plan["checkpoint_dir"]
        said = "field 'checkpoint_dir' is missing"
    placement.write_plan()
    agent = placement.start_agent("worker-0")
    assert agent.wait(10) == 2
    assert said in placement.agent_log("worker-0")
