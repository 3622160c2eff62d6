"""A local engine in a folder of its own, and plans of gangs that run a short real program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.core.plan import GangPlan, Places, Timing, build
from ffdl_airflow.engines.base import Ending, EndRequest
from ffdl_airflow.engines.local.engine import LocalEngine, LocalSettings
from ffdl_airflow.testing import builders
from ffdl_airflow.testing.contracts.engine import SLOTS, until

STEADY = "import time; time.sleep(600)"
"""A program that goes on until it is ended."""
HIDDEN = """
import os, signal, sys, time
for _ in range(2):
    if os.fork():
        time.sleep(600)
    os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""
"""A program whose grandchild, two sessions away, ignores SIGTERM; it writes its pid to argv[1]."""

Plan = Callable[..., GangPlan]
MakeEngine = Callable[..., LocalEngine]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """``plan(name, replicas=1, placement=1, hold_s=60, program=(STEADY,), env={})``."""

    def make(
        name: str,
        *,
        replicas: int = 1,
        placement: int = 1,
        hold_s: float = 60.0,
        program: tuple[str, ...] = (STEADY,),
        env: dict[str, str] | None = None,
    ) -> GangPlan:
        command = [sys.executable, "-S", "-c", *program]
        training = {"framework": "custom", "command": command, "env": env or {}}
        root = tmp_path / "jobs" / name
        places = Places(
            checkpoint_dir=str(root / "checkpoints"), output_dir=str(root / "output"),
            log_dir=str(root / "output"), python=sys.executable,
        )  # fmt: skip
        timing = Timing(heartbeat_s=0.1, silent_s=3.0, hold_s=hold_s, placement_s=20.0, grace_s=1.0)
        return build(
            builders.job(training=training, replicas=replicas), job_id=f"{name}-0123456789",
            placement=placement, places=places, timing=timing, generations={},
        )  # fmt: skip

    return make


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[MakeEngine]:
    """``make_engine(state_dir=…, …)``; what is left of its placements is ended after the test."""
    made: list[LocalEngine] = []

    def make(state_dir: Path = tmp_path / "state", **changes: Any) -> LocalEngine:
        usual = {"slots": SLOTS, "gpus": False, "installation_key": b"a key of this test"}
        made.append(LocalEngine(LocalSettings(state_dir=state_dir, **{**usual, **changes})))
        return made[-1]

    yield make
    for engine in made:
        for placement_id in engine.placements():
            request = EndRequest(why="the test is over")
            until(
                lambda e=engine, p=placement_id, r=request: not isinstance(e.end(p, r), Ending),
                f"{placement_id} is ended",
            )


@pytest.fixture
def local(make_engine: MakeEngine) -> LocalEngine:
    return make_engine()
