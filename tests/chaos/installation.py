"""A whole installation under a folder, driven as a person would, and looked into from outside."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from ffdl_airflow import services
from ffdl_airflow.core.events import Event, Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import JobState, fold
from ffdl_airflow.core.observation import Inventory
from ffdl_airflow.settings import Settings, from_values
from ffdl_airflow.stages.advance import Driver
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.drive import drive
from tests.conftest import environ_of

TRAINERS = Path(__file__).parents[1] / "trainers"
ROOT = Path(__file__).parents[2]
STEP = re.compile(r"^step=(\d+) .*attempt=(\d+)")


class Installation:
    """State, ledger, checkpoints and models in one folder, with 4 slots."""

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        self.values = {"slots": "4", "state_dir": str(home / "state"), **settings}
        self.started: list[int] = []

    @property
    def settings(self) -> Settings:
        return from_values(self.values, state_dir=self.home / "state")

    def deps(self) -> Deps:
        return services.deps(self.settings)

    def env(self) -> dict[str, str]:
        own = {f"FFDL_{key.upper()}": value for key, value in self.values.items()}
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FFDL_", "AIRFLOW_"))}
        # What comes with packages (torchrun, mpirun) is found as in an activated environment.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return kept | own | {"PYTHONPATH": str(ROOT), "PATH": path}

    def manifest(self, name: str, *, replicas: int, options: Mapping[str, Any],
                 flags: tuple[str, ...] = (), **spec: Any) -> Path:  # fmt: skip
        """A job of the counting trainer; ``options`` are its arguments, ``spec`` overrides."""
        code = self.home / "code"
        if not code.exists():
            shutil.copytree(TRAINERS, code, ignore=shutil.ignore_patterns("__pycache__", "test_*"))
        args = [str(word) for key, value in options.items() for word in (f"--{key}", value)]
        document = {
            "apiVersion": "ffdl.cloud.ibm.com/v1", "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": {
                "training": {"framework": "custom", "code": str(code), "entryPoint": "counting.py",
                             "args": [*args, *[f"--{flag}" for flag in flags]]},
                "replicas": replicas,
                "checkpoint": {"every": int(options.get("every", 5)), "keep": 3},
                "model": {"name": name},
                **spec,
            },
        }  # fmt: skip
        return self._written(name, document)

    def digits(self, name: str, *, steps: int, every: int, step_delay: float = 0.0,
               example: str = "digits", **training: Any) -> Path:  # fmt: skip
        """An example's job on real data, two ranks. ``training`` replaces parts of that section.

        With JAX its compiled steps are kept for the next job.
        """
        examples = ROOT / "example_dags"
        data = self.home / "digits-data"
        if not data.exists():
            export = examples / "digits" / "export_data.py"
            subprocess.run([sys.executable, str(export), str(data)], check=True)
        document: dict[str, Any] = yaml.safe_load((examples / f"{example}.yaml").read_text())
        spec = document["spec"]
        document["metadata"]["name"] = spec["model"]["name"] = name
        spec["training"] |= {
            "code": str(examples / example),
            "args": ["--steps", str(steps), "--every", str(every), "--step-delay", str(step_delay)],
            "env": {"JAX_COMPILATION_CACHE_DIR": str(self.home / "jax")},
            **training,
        }
        spec["training"] = {key: value for key, value in spec["training"].items() if value}
        spec["dataStores"][0]["path"] = str(data)
        spec["checkpoint"]["every"] = every
        return self._written(name, document)

    def _written(self, name: str, document: Mapping[str, Any]) -> Path:
        path = self.home / f"{name}.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """``ffdl …`` in a process group of its own."""
        return self._start(["-m", "ffdl_airflow.cli", *map(str, arguments)], self.env())

    def start_airflow(self, home: Path, dag_file: Path, dag_id: str) -> subprocess.Popen[str]:
        """A process in which Airflow runs one DAG; ``home`` is Airflow's own folder."""
        airflow = {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dag_file.parent),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
            **{f"AIRFLOW__FFDL__{key.upper()}": value for key, value in self.values.items()},
        }
        script = Path(__file__).with_name("airflow_process.py")
        return self._start([str(script), str(dag_file), dag_id], self.env() | airflow)

    def _start(self, words: list[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=env, start_new_session=True,
        )  # fmt: skip
        self.started.append(process.pid)
        return process

    def run(self, *arguments: str | Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """The same, to its end."""
        process = self.start(*arguments)
        out, _ = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(process.args, process.returncode, out, "")

    def jobs(self) -> list[str]:
        return [row.job_id for row in self.deps().ledger.jobs()]

    def events(self, job_id: str, *kinds: Kind) -> list[Event]:
        found = self.deps().ledger.read(job_id)
        return [event for event in found if not kinds or event.kind in kinds]

    def state(self, job_id: str) -> JobState:
        return fold(job_id, self.events(job_id))

    def drive(self, job_id: str, goal: Goal = Goal.REGISTER) -> JobState:
        """Drive a job in this process."""
        deps = self.deps()
        return drive(deps, Driver(deps, job_id), goal).state

    def fork_driver(self, job_id: str, goal: Goal = Goal.REGISTER,
                    wrap: Callable[[Any], Any] = lambda engine: engine) -> int:  # fmt: skip
        """A driver in a process of its own, quickly: fork, drive, exit. Returns its pid."""
        pid = os.fork()
        if pid:
            self.started.append(pid)
            return pid
        try:
            os.setsid()
            deps = self.deps()
            object.__setattr__(deps, "engine", wrap(deps.engine))
            drive(deps, Driver(deps, job_id), goal)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - it must not go on as a second test run
            import traceback

            traceback.print_exc()
            os._exit(70)

    def processes(self) -> list[psutil.Process]:
        """Every living process of a placement of this installation."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                env, words = process.environ(), process.cmdline()
            except (psutil.Error, OSError):
                continue
            if "FFDL_PLACEMENT" in env and any(
                str(self.home) in word for word in (*words, *env.values())
            ):
                found.append(process)
        return found

    def ranks(self, job_id: str) -> dict[int, psutil.Process]:
        """Rank → the process of the user's command."""
        found = {}
        for process in self.processes():
            env = environ_of(process)
            if env.get("FFDL_JOB_ID") == job_id and "RANK" in env:
                found[int(env["RANK"])] = process
        return found

    def agents(self, job_id: str) -> dict[str, psutil.Process]:
        """Replica → its agent."""
        found = {}
        for process in self.processes():
            env = environ_of(process)
            if env.get("FFDL_PLACEMENT", "").startswith(f"{job_id}/") and "FFDL_REPLICA" not in env:
                found[process.cmdline()[-1]] = process
        return found

    def steps(self, job_id: str, rank: int = 0) -> list[tuple[int, int]]:
        """(attempt, step) as the trainer itself has logged them, in order of attempts."""
        found = []
        for log in self.deps().engine.logs(job_id):  # type: ignore[attr-defined]
            if log.rank == rank:
                for line in Path(log.path).read_text().splitlines():
                    match = STEP.match(line)
                    if match:
                        found.append((int(match.group(2)), int(match.group(1))))
        return found

    def weights(self, job_id: str) -> str:
        """What the registered model holds."""
        model = self.state(job_id).model
        assert model is not None
        return (Path(model["path"]) / "weights.txt").read_text().strip()

    def inventory(self) -> Inventory:
        return self.deps().engine.capacity()

    def close(self) -> None:
        """End what this test has started, by pid."""
        for pid in self.started:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.processes():
            try:
                process.kill()
            except psutil.Error:
                continue


def job_id_of(process: subprocess.Popen[str]) -> str:
    """From the first line of ``ffdl run``."""
    assert process.stdout is not None
    first = process.stdout.readline().strip()
    assert first.startswith("job "), first + process.stdout.read()
    return first.removeprefix("job ")


def show(events: list[Event]) -> str:
    """A log for the message of a failed test."""
    return "\n".join(f"{e.at:%H:%M:%S.%f} {e.kind} {json.dumps(dict(e.body), default=str)[:200]}"
                     for e in events)  # fmt: skip
