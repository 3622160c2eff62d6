"""Settings → ready adapters. The only place that names concrete ones."""

import os
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from functools import lru_cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffdl_airflow.core.errors import (
    FfdlError,
    FieldProblem,
    InfrastructureError,
    SpecError,
    UserError,
)
from ffdl_airflow.engines.base import (
    Engine,
    SupportsDoctor,
    SupportsHosts,
    SupportsMover,
    SupportsRender,
)
from ffdl_airflow.engines.local.engine import LocalEngine, LocalSettings
from ffdl_airflow.ledger.sql import SqlLedger, host_name
from ffdl_airflow.ledger.url import ledger_url, require_folder
from ffdl_airflow.registries.publisher import Publishing
from ffdl_airflow.registries.store import DirectoryRegistry
from ffdl_airflow.settings import Settings
from ffdl_airflow.stages.deps import Deps, Roots
from ffdl_airflow.stores.cache import GenerationCache

if TYPE_CHECKING:
    from ffdl_airflow.engines.kubernetes.settings import KubernetesSettings

ENGINES = ("local", "kubernetes")
_WRITTEN = ("cache_dir", "checkpoint_root", "model_root")
"""Settings of folders that a job writes to, which it makes where they are missing."""
_METHODS = ("capacity", "reserve", "connect", "observe", "end")
"""What an engine can do, see ``engines/base.py``."""
_KEY_FILE, _KEY_LENGTH = "installation_key", 32


def deps(settings: Settings, *, source: Mapping[str, Any] | None = None) -> Deps:
    """Everything that a driver needs. ``source`` is added to what says who drives."""
    require(settings)
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_place("state_dir", settings.state_dir, f"cannot be made: {error}") from error
    made = engine(settings)
    beside = made.mover if isinstance(made, SupportsMover) else None
    return Deps(
        ledger=ledger(settings.ledger_url),
        engine=made,
        engine_name=settings.engine,
        cache=GenerationCache(settings.cache_dir, beside),
        publishing=Publishing(settings.model_root, beside),
        roots=roots_of(settings, made),
        timing=settings.timing,
        one_host=not isinstance(made, SupportsHosts),
        clock=lambda: datetime.now(timezone.utc),
        source={"host": host_name(), "pid": os.getpid(), **(source or {})},
    )  # fmt: skip


def is_installed(settings: Settings) -> bool:
    """Whether there is a ledger to read; looks only. One on a server is asked in any case.

    Raises SpecError for wrong settings, InfrastructureError where no state directory can be.
    """
    require(settings)
    _require_place("state_dir", settings.state_dir)
    url = ledger_url(settings.ledger_url)
    if url.get_backend_name() != "sqlite":
        return True
    file = Path(url.database or "")
    if file.parent != settings.state_dir:
        require_folder(url)
    return file.exists()


def _require_place(key: str, folder: Path) -> None:
    """A folder that is not there yet is none that cannot be."""
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise _no_place(key, folder, f"cannot be there: {there} is not a directory")
    if not os.access(there, os.X_OK, effective_ids=True):
        raise _no_place(key, folder, f"cannot be entered: {there} is closed to this user")


def _no_place(key: str, folder: Path, why: str) -> InfrastructureError:
    what = {"state_dir": "the state directory", "model_root": "the registry"}[key]
    return InfrastructureError(
        f"{what} {why}", evidence=f"{key} {folder}",
        next_step=f"set [ffdl] {key} to a folder that is writable",
    )  # fmt: skip


def engine(settings: Settings) -> Engine:
    """The engine by its name, or by ``package.module:function`` for one from outside.

    The function gets the settings and returns what keeps ``testing/contracts/engine.py``; see
    ``docs/engines.md``.
    """
    require_engine(settings)
    if settings.engine == "local":
        return _local(settings, key=installation_key(settings))
    if settings.engine == "kubernetes":
        return _kubernetes(settings, key=installation_key(settings))
    return _from_outside(settings)


def _from_outside(settings: Settings) -> Engine:
    """What the user's function makes; a fault of it is told as one of the setting."""
    try:
        made = _maker(settings.engine)(settings)
    except FfdlError:
        raise
    except Exception as error:
        why = f"which fails: {type(error).__name__}: {error}"
        raise _no_engine(settings.engine, why) from error
    missing = [name for name in _METHODS if not callable(getattr(made, name, None))]
    if missing:
        why = f"which returns {type(made).__name__} without {', '.join(missing)}"
        raise _no_engine(settings.engine, why)
    engine_made: Engine = made
    return engine_made


def renderer(settings: Settings) -> SupportsRender:
    """What can show what the engine would create; for Kubernetes no cluster is needed."""
    require_engine(settings)
    if settings.engine == "kubernetes":
        from ffdl_airflow.engines.kubernetes.preview import Preview

        return Preview(_of_cluster(settings, key=known_key(settings)))
    if settings.engine == "local":
        return _local(settings, key=known_key(settings))
    made = engine(settings)
    if not isinstance(made, SupportsRender):
        raise UserError(f"engine {settings.engine} cannot show what it would create")
    return made


def examiner(settings: Settings) -> SupportsDoctor:
    """The engine, for a look at what it runs on. Raises UserError where that is this host."""
    require_engine(settings)
    made: object = None
    if settings.engine == "kubernetes":
        made = _kubernetes(settings, key=known_key(settings))
    elif settings.engine != "local":
        made = engine(settings)
    if not isinstance(made, SupportsDoctor):
        raise UserError(
            f"--cluster: found engine {settings.engine}, allowed: an engine that has a cluster",
            next_step="set [ffdl] engine or FFDL_ENGINE to kubernetes",
        )
    return made


def roots_of(settings: Settings, made: object) -> Roots:
    """Where things lie. ``made``: the engine, or what shows what it would create.

    Replicas on other hosts see the volumes only, so there a job's output lies beside its
    checkpoints, and their Python is that of their image.
    """
    elsewhere = isinstance(made, SupportsHosts)
    return Roots(
        state_dir=str(settings.state_dir), checkpoint_root=str(settings.checkpoint_root),
        output_root=str(settings.checkpoint_root if elsewhere else settings.state_dir / "jobs"),
        written={key: str(getattr(settings, key)) for key in _WRITTEN},
        python=settings.kubernetes.get("pod_python") or "python3" if elsewhere else sys.executable,
    )  # fmt: skip


def _kubernetes(settings: Settings, *, key: bytes) -> Engine:
    return _shared_kubernetes(_of_cluster(settings, key=key), os.getpid())


def _of_cluster(settings: Settings, *, key: bytes) -> "KubernetesSettings":
    from ffdl_airflow.engines.kubernetes.settings import from_values

    folders = {name: str(getattr(settings, name)) for name in ("cache_dir", "checkpoint_root")}
    return from_values(settings.kubernetes, installation_key=key, folders=folders)


@lru_cache(maxsize=8)
def _shared_kubernetes(settings: "KubernetesSettings", pid: int) -> Engine:
    """One for a process: what it watches is watched once for all of its jobs."""
    try:
        from ffdl_airflow.engines.kubernetes.engine import KubernetesEngine
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ffdl_airflow"):
            raise
        raise InfrastructureError(
            f"engine kubernetes needs the package {error.name}, which is not installed",
            evidence=sys.executable, next_step="pip install 'ffdl_airflow[kubernetes]'",
        ) from error  # fmt: skip
    return KubernetesEngine(settings)


def _local(settings: Settings, *, key: bytes) -> LocalEngine:
    gpus = gpus_of(settings)
    return LocalEngine(
        LocalSettings(
            state_dir=settings.state_dir,
            slots=settings.slots or gpus or len(os.sched_getaffinity(0)),
            gpus=bool(gpus),
            installation_key=key,
        )
    )


def gpus_of(settings: Settings) -> int:
    """GPUs that the local engine gives away: as the setting says, else the devices of this host.

    Where there are some a slot is one of them, so there cannot be more slots.
    """
    found = len(list(Path("/dev").glob("nvidia[0-9]*")))
    gpus = found if settings.gpus is None else settings.gpus
    if gpus and settings.slots is not None and settings.slots > gpus:
        allowed = f"at most {gpus}: where there are GPUs ([ffdl] gpus) each slot is one of them"
        raise SpecError([FieldProblem("slots", str(settings.slots), allowed)], source="[ffdl]")
    return gpus


def require(settings: Settings) -> None:
    """Refuse settings that no installation can have, before anything of one is made or looked for.

    Raises SpecError: what :func:`require_engine` refuses, a ledger's URL that names no database.
    """
    require_engine(settings)
    ledger_url(settings.ledger_url)


def require_engine(settings: Settings) -> None:
    """Refuse a name that no engine has, and slots that it cannot have."""
    if settings.engine not in ENGINES:
        _maker(settings.engine)
    gpus_of(settings)


def _maker(engine: str) -> Callable[[Settings], Any]:
    """The function ``package.module:function`` that makes an engine from outside."""
    module, _, name = engine.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise _no_engine(engine)
    try:
        maker = getattr(import_module(module), name, None)
    except Exception as error:
        why = f"which cannot be imported: {type(error).__name__}: {error}"
        raise _no_engine(engine, why) from error
    if not callable(maker):
        raise _no_engine(engine, f"and {module} has no function {name}")
    with suppress(ValueError):  # of what is written in C, it may not be known
        try:
            signature(maker).bind(None)
        except TypeError:
            raise _no_engine(engine, "which does not take the settings alone") from None
    found: Callable[[Settings], Any] = maker
    return found


def _no_engine(engine: str, why: str = "") -> SpecError:
    allowed = f"{', '.join(ENGINES)}, or package.module:function of an engine from outside"
    found = f"{engine!r}, {why}" if why else repr(engine)
    return SpecError([FieldProblem("engine", found, allowed)], source="[ffdl]")


def registry(settings: Settings) -> DirectoryRegistry:
    """Where models are published; what reads there need not find it."""
    _require_place("model_root", settings.model_root)
    return DirectoryRegistry(settings.model_root)


@lru_cache(maxsize=4)
def ledger(url: str) -> SqlLedger:
    """One for a process: connections are kept, and 100 drivers do not hold 100 of them."""
    return SqlLedger(url)


def installation_key(settings: Settings) -> bytes:
    """The key from which placements get their tokens.

    As the setting or the connection's password says; else made once in the state directory,
    readable by its owner only. With a ledger on a server other hosts need the same key, so there
    it has to be said. Raises SpecError or InfrastructureError.
    """
    said = _said_key(settings)
    if said is not None:
        return said
    path = settings.state_dir / _KEY_FILE
    try:
        if not path.exists():
            _make_key(path)
        found = path.read_bytes()
    except OSError as error:
        raise InfrastructureError(
            f"the installation key cannot be made or read: {error}", evidence=str(path),
            next_step="make [ffdl] state_dir writable",
        ) from error  # fmt: skip
    if len(found) < _KEY_LENGTH:
        raise InfrastructureError(
            f"the installation key is damaged: {len(found)} bytes are left of it",
            evidence=str(path), next_step="bring it back from a backup, or remove it while no job "
            "of this installation runs; a new one is made then",
        )  # fmt: skip
    return found


def known_key(settings: Settings) -> bytes:
    """The same for a look ahead: nothing is made, and b"" stands for a key that is not there."""
    said = _said_key(settings)
    if said is not None:
        return said
    try:
        return (settings.state_dir / _KEY_FILE).read_bytes()
    except OSError:
        return b""


def _said_key(settings: Settings) -> bytes | None:
    if settings.installation_key is not None:
        return settings.installation_key.encode()
    if settings.ledger_url.startswith("sqlite"):
        return None
    problem = FieldProblem(
        "installation_key", "nothing", "a secret that all hosts of this installation share; "
        "it may be the password of the connection",
    )  # fmt: skip
    raise SpecError([problem], source="[ffdl]")


def _make_key(path: Path) -> None:
    """Of several processes that come at once one wins, and nobody sees half a key."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_hex(32).encode())
    with suppress(FileExistsError):
        os.link(temporary, path)
    temporary.unlink()
