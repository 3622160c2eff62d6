"""Small valid things to start a test from; every part can be said otherwise."""

import sys
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ffdl_airflow.core.events import Event, Kind, NewEvent, recorded
from ffdl_airflow.core.job import TrainingJob
from ffdl_airflow.core.manifests.ffdl import read_job
from ffdl_airflow.core.plan import GangPlan, Places, Timing, build

T0 = datetime(2026, 3, 1, 22, 0, 0, tzinfo=timezone.utc)
STEADY = "import time; time.sleep(600)"
"""A program that goes on until it is ended."""
DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(2):
    if os.fork():
        time.sleep(600)
    os.setsid()
for file in sys.argv[1:]:
    open(file, "w").write(str(os.getpid()))
time.sleep(600)
"""
"""One that ignores SIGTERM, as do its child and its grandchild in sessions of their own. With a
file as its argument it leaves the grandchild's pid there."""


def job_document(**spec: Any) -> dict[str, Any]:
    """A TrainingJob manifest; keyword arguments replace fields of ``spec``."""
    return {
        "apiVersion": "ffdl.cloud.ibm.com/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "bert-base", "labels": {"team": "nlp", "project": "search"}},
        "spec": {
            "training": {"framework": "pytorch", "command": ["python", "train.py"]},
            "replicas": 2,
            "checkpoint": {"every": 100},
            "model": {"name": "bert-base"},
            **spec,
        },
    }


def job(**spec: Any) -> TrainingJob:
    """The same, read."""
    return read_job(job_document(**spec))


def gang_plan(root: Path, name: str, *, replicas: int = 1, placement: int = 1,
              hold_s: float = 60.0, training: Mapping[str, Any] = MappingProxyType({}),
              ) -> GangPlan:  # fmt: skip
    """A plan of a gang on this host that runs STEADY, with folders under ``root``.

    ``training`` replaces fields of ``spec.training``.
    """
    steady = {"framework": "custom", "command": python(STEADY)}
    folder = root / "jobs" / name
    places = Places(
        checkpoint_dir=str(folder / "checkpoints"), output_dir=str(folder / "output"),
        log_dir=str(folder / "output"), python=sys.executable,
    )  # fmt: skip
    timing = Timing(heartbeat_s=0.1, silent_s=3.0, hold_s=hold_s, placement_s=20.0, grace_s=1.0)
    return build(
        job(training={**steady, **training}, replicas=replicas),
        job_id=f"{name}-0123456789", placement=placement, places=places, timing=timing,
        generations={},
    )  # fmt: skip


def python(program: str, *arguments: str) -> list[str]:
    """The command of a program that starts quickly."""
    return [sys.executable, "-S", "-c", program, *arguments]


class LogBuilder:
    """A log that grows by one event a call; ``at`` is seconds after T0."""

    def __init__(self, job_id: str = "bert-base-0123456789", **spec: Any) -> None:
        self.job_id = job_id
        self.events: list[Event] = []
        self.add(Kind.SUBMITTED, 0, spec=job_document(**spec), owner={"key": "command line"})

    def add(self, kind: Kind, at: float, attempt: int | None = None, /, **body: Any) -> Event:
        """Append an event and return it."""
        moment = T0 + timedelta(seconds=at)
        new = NewEvent(kind=kind, at=moment, body=body, attempt=attempt)
        event = recorded(self.job_id, len(self.events) + 1, new, recorded_at=moment)
        self.events.append(event)
        return event
