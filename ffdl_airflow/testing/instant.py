"""Data and models that are ready at once, and the dependencies of a driver made of fakes."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ffdl_airflow.core.model import ModelVersion, PublishRequest
from ffdl_airflow.core.plan import Timing
from ffdl_airflow.engines.base import Engine
from ffdl_airflow.ledger.base import Ledger
from ffdl_airflow.registries.publisher import PublishState
from ffdl_airflow.stages.deps import Deps, Roots
from ffdl_airflow.stores.cache import MoveState
from ffdl_airflow.testing.builders import T0


class InstantGenerations:
    """Every source is a generation already."""

    def ensure(self, store: str, source: Mapping[str, Any], *, job: str) -> MoveState:
        """Ready."""
        return MoveState(state="ready", generation=f"{store}-g1", path=Path("/cache") / store,
                         facts={})  # fmt: skip

    def drop(self, store: str, source: Mapping[str, Any], *, job: str) -> None:
        """Nothing is kept."""

    def release_all(self, *, job: str) -> None:
        """Nothing is kept."""


class InstantPublisher:
    """Every request is published at once, and once: the same identity is the same version."""

    def __init__(self) -> None:
        self.published: dict[tuple[str, str], ModelVersion] = {}

    def ensure(self, request: PublishRequest) -> PublishState:
        """Ready."""
        key = (request.job, request.checkpoint.sha256)
        if key not in self.published:
            number = len(self.published) + 1
            self.published[key] = ModelVersion(
                **request.lineage(), version=number, sha256=request.checkpoint.sha256, files=()
            )
        path = Path("/models") / request.name
        return PublishState(state="ready", version=self.published[key], path=path)

    def drop(self, request: PublishRequest) -> None:
        """Nothing is kept."""


class ManualClock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> datetime:
        """The time now."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Later."""
        self.now += timedelta(seconds=seconds)


def instant_deps(tmp: Path, *, ledger: Ledger, engine: Engine, clock: Callable[[], datetime],
                 publisher: InstantPublisher | None = None, driver: str = "a") -> Deps:  # fmt: skip
    """Dependencies of one driver; several share ledger, engine, publisher and clock."""
    return Deps(
        ledger=ledger, engine=engine, engine_name="fake", cache=InstantGenerations(),
        publishing=publisher or InstantPublisher(), timing=Timing(), clock=clock,
        roots=Roots(state_dir=str(tmp / "state"), checkpoint_root=str(tmp / "checkpoints"),
                    output_root=str(tmp / "state" / "jobs"), python="python3"),
        source={"driver": driver},
    )  # fmt: skip
