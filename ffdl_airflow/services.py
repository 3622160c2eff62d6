"""Settings → ready adapters. The only place that names concrete ones."""

import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ffdl_airflow.core.errors import FieldProblem, InfrastructureError, SpecError
from ffdl_airflow.engines.base import Engine
from ffdl_airflow.engines.local.engine import LocalEngine, LocalSettings
from ffdl_airflow.ledger.sql import SqlLedger, host_name
from ffdl_airflow.registries.publisher import Publishing
from ffdl_airflow.registries.store import DirectoryRegistry
from ffdl_airflow.settings import Settings
from ffdl_airflow.stages.deps import Deps, Roots
from ffdl_airflow.stores.cache import GenerationCache

ENGINES = ("local",)


def deps(settings: Settings, *, source: Mapping[str, Any] | None = None) -> Deps:
    """Everything that a driver needs. ``source`` is added to what says who drives."""
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InfrastructureError(
            f"the state directory cannot be made: {error}", evidence=f"state_dir "
            f"{settings.state_dir}", next_step="set [ffdl] state_dir to a folder that is writable",
        ) from error  # fmt: skip
    return Deps(
        ledger=SqlLedger(settings.ledger_url),
        engine=engine(settings),
        engine_name=settings.engine,
        cache=GenerationCache(settings.cache_dir),
        publishing=Publishing(settings.model_root),
        roots=Roots(
            state_dir=str(settings.state_dir), checkpoint_root=str(settings.checkpoint_root),
            python=sys.executable,
        ),
        timing=settings.timing,
        clock=lambda: datetime.now(timezone.utc),
        source={"host": host_name(), "pid": os.getpid(), **(source or {})},
    )  # fmt: skip


def engine(settings: Settings) -> Engine:
    """The engine by its name."""
    require_engine(settings)
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return LocalEngine(
        LocalSettings(
            state_dir=settings.state_dir,
            slots=settings.slots or gpus or len(os.sched_getaffinity(0)),
            gpus=bool(gpus),
            installation_key=installation_key(settings.state_dir),
        )
    )


def require_engine(settings: Settings) -> None:
    """Refuse a name that no engine has."""
    if settings.engine not in ENGINES:
        problem = FieldProblem("engine", repr(settings.engine), ", ".join(ENGINES))
        raise SpecError([problem], source="[ffdl]")


def registry(settings: Settings) -> DirectoryRegistry:
    """Where models are published."""
    return DirectoryRegistry(settings.model_root)


def installation_key(state_dir: Path) -> bytes:
    """The key from which placements get their tokens: made once, readable by its owner only."""
    path = state_dir / "installation_key"
    try:
        if not path.exists():
            _make_key(path)
        return path.read_bytes()
    except OSError as error:
        raise InfrastructureError(
            f"the installation key cannot be made or read: {error}", evidence=str(path),
            next_step="make [ffdl] state_dir writable",
        ) from error  # fmt: skip


def _make_key(path: Path) -> None:
    """Of several processes that come at once one wins, and nobody sees half a key."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_hex(32).encode())
    with suppress(FileExistsError):
        os.link(temporary, path)
    temporary.unlink()
