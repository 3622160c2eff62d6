"""A local engine in a folder of its own, and plans of gangs that run a short real program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.core.plan import GangPlan
from ffdl_airflow.engines.base import Ending, EndRequest
from ffdl_airflow.engines.local.engine import LocalEngine, LocalSettings
from ffdl_airflow.testing import builders
from ffdl_airflow.testing.contracts.engine import SLOTS, until

Plan = Callable[..., GangPlan]
MakeEngine = Callable[..., LocalEngine]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """``plan(name, deaf=False, …)``; the rest as :func:`builders.gang_plan` has it."""

    def make(name: str, *, deaf: bool = False, **how: Any) -> GangPlan:
        training = {"command": builders.python(builders.DEAF)} if deaf else {}
        return builders.gang_plan(tmp_path, name, **{"training": training, **how})

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
