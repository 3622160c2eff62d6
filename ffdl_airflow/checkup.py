"""What ``ffdl doctor`` looks at on this host; of a cluster, its engine looks itself.

Nothing is created: what is not there yet is judged by what it would be made in.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ffdl_airflow import report, services
from ffdl_airflow.core.errors import FfdlError
from ffdl_airflow.core.findings import Finding, of_error, ok, problem, warning
from ffdl_airflow.core.quantities import format_bytes
from ffdl_airflow.settings import Settings, default_ledger_url

_LITTLE_BYTES = 1 << 30
"""Less room than that is warned of. Chosen: a small model's checkpoints fill it in one run."""


def here(settings: Settings) -> list[Finding]:
    """This host: folders, ledger, key, engine."""
    looks: list[tuple[str, Callable[[Settings], Finding]]] = [
        ("state_dir", lambda s: _folder("state_dir", s.state_dir)),
        ("cache_dir", lambda s: _folder("cache_dir", s.cache_dir)),
        ("checkpoint_root", lambda s: _folder("checkpoint_root", s.checkpoint_root)),
        ("model_root", lambda s: _folder("model_root", s.model_root)),
        ("ledger", _ledger),
        ("installation key", _key),
        ("engine", _engine),
    ]
    return [_said(check, look, settings) for check, look in looks]


def cluster(settings: Settings, *, image: str | None) -> Sequence[Finding]:
    """The cluster that the engine runs on. Raises UserError where it has none."""
    try:
        examiner = services.examiner(settings)
    except FfdlError as error:
        if settings.engine == "local":
            raise
        return [of_error("cluster", error)]
    folders = {"checkpoint_root": settings.checkpoint_root, "cache_dir": settings.cache_dir}
    return examiner.examine({name: str(path) for name, path in folders.items()}, image=image)


def _said(check: str, look: Callable[[Settings], Finding], settings: Settings) -> Finding:
    try:
        return look(settings)
    except FfdlError as error:
        return of_error(check, error)


def _folder(setting: str, path: Path) -> Finding:
    nearest = path
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    advice = f"set [ffdl] {setting} to a folder that user {os.geteuid()} can make and write"
    if not nearest.is_dir():
        return problem(setting, f"{nearest} is not a folder", advice)
    if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
        return problem(setting, f"{nearest} is not writable", advice)
    free = shutil.disk_usage(nearest).free
    text = f"{path}, {format_bytes(free)} free" + ("" if nearest == path else ", not made yet")
    return ok(setting, text) if free > _LITTLE_BYTES else warning(setting, text, "make room")


def _ledger(settings: Settings) -> Finding:
    own = settings.ledger_url == default_ledger_url(settings.state_dir)
    if own and not (settings.state_dir / "ledger.db").exists():
        return ok("ledger", "SQLite in state_dir, made with the first job")
    rows = services.ledger(settings.ledger_url).jobs()
    kind = settings.ledger_url.partition(":")[0].partition("+")[0]
    return ok("ledger", f"{kind}, {report.count(len(rows), 'job')}")


def _key(settings: Settings) -> Finding:
    if services.known_key(settings):
        return ok("installation key", "there")
    return ok("installation key", "made in state_dir with the first job")


def _engine(settings: Settings) -> Finding:
    services.require_engine(settings)
    if settings.engine not in services.ENGINES:
        return ok("engine", f"{settings.engine}, from outside")
    if settings.engine != "local":
        return ok("engine", f"{settings.engine}; --cluster looks at what it runs on")
    gpus = services.gpus_of(settings)
    slots = settings.slots or gpus or len(os.sched_getaffinity(0))
    what = "GPUs" if gpus else "CPU shares: no GPU was found, or none may be used"
    return ok("engine", f"local, {slots} slots, {what}")
