"""One fake engine for a whole process, for a triggerer with many jobs: ``…stub_engine:make``."""

from __future__ import annotations

import sys

from ffdl_airflow.core.errors import InfrastructureError
from ffdl_airflow.settings import Settings
from ffdl_airflow.testing.fake_engine import FakeEngine

_ENGINE = FakeEngine(slots=1000)


def make(settings: Settings) -> FakeEngine:
    """Not in the API server: its listener would end a job before the trigger can."""
    if "api-server" in sys.argv:
        raise InfrastructureError("the gangs of this engine live in the triggerer")
    return _ENGINE
