"""``ffdl …`` in this process, with an installation of its own; and in a process of its own."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ffdl_airflow.cli import main

ROOT = Path(__file__).parents[2]
TRAINER = ROOT / "tests" / "trainers" / "counting.py"


@dataclass
class Result:
    """What a person sees of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What stands on standard output, which must be JSON and nothing else."""
        return json.loads(self.out)


class Ffdl:
    """An installation with 4 slots, and the command."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {
            "FFDL_STATE_DIR": str(home / "state"), "FFDL_CACHE_DIR": str(home / "cache"),
            "FFDL_CHECKPOINT_ROOT": str(home / "checkpoints"),
            "FFDL_MODEL_ROOT": str(home / "models"), "FFDL_SLOTS": "4",
        }  # fmt: skip
        self.started: list[subprocess.Popen[str]] = []
        (home / "code").mkdir()
        shutil.copy(TRAINER, home / "code" / "counting.py")

    def __call__(self, *words: object, stdin: str = "", **env: str) -> Result:
        """Run a command in this process."""
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        err = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith(("FFDL_", "AIRFLOW_"))]:
                patch.delenv(name)
            for name, value in (self.env | env).items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            with redirect_stdout(out), redirect_stderr(err):
                try:
                    code = main([str(word) for word in words])
                except SystemExit as wrong_use:  # argparse
                    code = int(wrong_use.code or 0)
        return Result(code, out.buffer.getvalue().decode(), err.getvalue())

    def start(self, *words: object, **options: Any) -> subprocess.Popen[str]:
        """Run a command in a process of its own."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FFDL_", "AIRFLOW_"))}
        process = subprocess.Popen(
            [sys.executable, "-m", "ffdl_airflow.cli", *map(str, words)],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
            env=kept | self.env | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self.started.append(process)
        return process

    def close(self) -> None:
        """End what a failed test has left."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for row in self("get", "-o", "json").json if (self.home / "state").exists() else []:
            if row["phase"] not in ("Succeeded", "Failed", "Stopped"):
                self("stop", row["job"], "--now")

    def manifest(self, name: str = "count", *, args: str = "--steps 10 --every 5",
                 **spec: Any) -> Path:  # fmt: skip
        """A job of the counting trainer."""
        document = {
            "apiVersion": "ffdl.cloud.ibm.com/v1", "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": {
                "training": {"framework": "custom", "code": "code", "entryPoint": "counting.py",
                             "args": args.split()},
                "replicas": 2, "model": {"name": name}, **spec,
            },
        }  # fmt: skip
        path = self.home / f"{name}.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    def write(self, text: str | bytes) -> Path:
        """A manifest of exactly this text."""
        path = self.home / "manifest.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def job(self, job_id: str) -> Any:
        """The row of a job."""
        return self("get", job_id, "-o", "json").json[0]

    def created(self) -> list[str]:
        """What there is of jobs: rows, folders, checkpoints, models."""
        jobs = [row["job"] for row in self("get", "-o", "json").json]
        folders = ("state/jobs", "state/slots", "checkpoints", "models", "cache")
        found = [path for name in folders for path in (self.home / name).glob("*/*")]
        return [*jobs, *(str(path.relative_to(self.home)) for path in found)]


@pytest.fixture
def ffdl(tmp_path: Path) -> Iterator[Ffdl]:
    made = Ffdl(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ffdl, str, str]]:
    """An installation in which one job has succeeded and one has failed: (ffdl, good, bad)."""
    ffdl = Ffdl(tmp_path_factory.mktemp("done"))
    data = ffdl.home / "numbers"
    data.mkdir()
    (data / "one.txt").write_text("1\n")
    stores = [{"name": "numbers", "path": "numbers"}]
    good = ffdl("run", "-f", ffdl.manifest("count", dataStores=stores), "-o", "json")
    assert good.code == 0, good
    args = "--steps 10 --every 5 --fail-at 7:3 --only-rank 1"
    bad = ffdl("run", "-f", ffdl.manifest("broken", args=args, backoffLimit=0), "-o", "json")
    assert bad.code == 1, bad
    yield ffdl, good.json["job"], bad.json["job"]
    ffdl.close()
