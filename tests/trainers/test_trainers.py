"""The trainers themselves, started by hand. What jobs make of them is tested elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.trainers import counting

DIGITS = ROOT / "example_dags" / "digits"
COUNTING = ROOT / "tests" / "trainers" / "counting.py"


def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def digits_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    done = run(DIGITS / "export_data.py", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_second_export_touches_nothing(digits_data: Path) -> None:
    before = versions(digits_data)
    assert len(before) == 7
    assert run(DIGITS / "export_data.py", digits_data).stdout.endswith("right already\n")
    assert versions(digits_data) == before


def versions(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.rglob("*.npz")}


def test_export_repairs_a_damaged_file(digits_data: Path) -> None:
    victim = digits_data / "train" / "part-03.npz"
    right = victim.read_bytes()
    victim.write_bytes(right[:-1])
    run(DIGITS / "export_data.py", digits_data)
    assert victim.read_bytes() == right


def test_digits_learns_outside_a_job(digits_data: Path, tmp_path: Path) -> None:
    trainer = DIGITS / "train.py"
    done = run(trainer, "--data", digits_data, FFDL_OUTPUT_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^step=(\d+) ", done.stdout, re.MULTILINE) == [str(i) for i in range(1, 401)]
    assert float(re.search(r"^heldout_accuracy=(.*)$", done.stdout, re.MULTILINE)[1]) >= 0.95
    assert (tmp_path / "metrics.json").exists()


def test_digits_says_what_is_missing(tmp_path: Path) -> None:
    done = run(DIGITS / "train.py", "--data", tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"no *.npz file in {tmp_path / 'train'}\n"


def test_counting_ends_where_it_says(tmp_path: Path) -> None:
    done = run(COUNTING, "--steps", 7, "--seed", 3, FFDL_OUTPUT_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"end weights={counting.weights_after(7, seed=3)}\n")


def test_counting_fails_where_it_is_told() -> None:
    done = run(COUNTING, "--steps", 7, "--fail-at", "3:9")
    assert done.returncode == 9
    assert done.stdout.count("step=") == 3
    assert run(COUNTING, "--fail-at", "3:9", "--only-rank", 1).returncode == 0
    assert run(COUNTING, "--fail-at", "3:-9").returncode == -9
