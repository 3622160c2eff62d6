"""The engine contract, on the fake and on the local engine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ffdl_airflow.agent.processes import carrying
from ffdl_airflow.engines import processes
from ffdl_airflow.engines.base import Engine
from ffdl_airflow.engines.local.engine import LocalEngine
from ffdl_airflow.testing.contracts.engine import SLOTS, Count, EngineContract, Spoil
from ffdl_airflow.testing.fake_engine import FakeEngine

from .conftest import MakeEngine


class TestFake(EngineContract):
    """The fake."""

    @pytest.fixture
    def engine(self) -> FakeEngine:
        return FakeEngine(SLOTS)

    @pytest.fixture
    def reopened(self, engine: Engine) -> Engine:
        return engine

    @pytest.fixture
    def lose(self, engine: FakeEngine) -> Spoil:
        return engine.lose

    @pytest.fixture
    def expire(self, engine: FakeEngine) -> Spoil:
        return engine.expire

    @pytest.fixture
    def elsewhere(self) -> FakeEngine:
        return FakeEngine(SLOTS)

    @pytest.fixture
    def left(self, engine: FakeEngine) -> Count:
        return lambda placement_id: 4 * engine.gangs[placement_id].alive


class TestLocal(EngineContract):
    """Real agents and real programs."""

    @pytest.fixture
    def engine(self, make_engine: MakeEngine) -> LocalEngine:
        return make_engine()

    @pytest.fixture
    def reopened(self, make_engine: MakeEngine) -> LocalEngine:
        return make_engine()

    @pytest.fixture
    def lose(self, engine: LocalEngine) -> Spoil:
        def kill_agents(placement_id: str) -> None:
            for agent in carrying(engine.mark(placement_id), None):
                os.kill(agent.pid, signal.SIGKILL)

        return kill_agents

    @pytest.fixture
    def expire(self) -> Spoil:
        return lambda placement_id: None

    @pytest.fixture
    def elsewhere(self, make_engine: MakeEngine, tmp_path: Path) -> LocalEngine:
        return make_engine(state_dir=tmp_path / "elsewhere")

    @pytest.fixture
    def left(self, engine: LocalEngine) -> Count:
        return lambda placement_id: len(processes.find(engine.mark(placement_id)))
