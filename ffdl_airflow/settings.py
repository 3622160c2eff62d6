"""All settings of an installation, frozen. Reads nothing by itself: values come as text.

Names and defaults: CONTRACT, section 2. In Airflow the values come from section ``[ffdl]``, on the
command line from ``FFDL_<KEY>``.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ffdl_airflow.core.errors import FieldProblem, SpecError
from ffdl_airflow.core.plan import Timing

_SECONDS = ("heartbeat_s", "silent_s", "hold_s", "placement_s", "grace_s")
KEYS = (
    "ledger_url", "state_dir", "cache_dir", "checkpoint_root", "model_root", "engine", "slots",
    *_SECONDS, "log_level", "failure_rules", "installation_key", "images",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One installation. ``slots`` None: GPUs found, else cores."""

    state_dir: Path
    ledger_url: str
    cache_dir: Path
    checkpoint_root: Path
    model_root: Path
    engine: str = "local"
    slots: int | None = None
    timing: Timing = field(default_factory=Timing)
    log_level: str = "info"


def default_state_dir(environ: Mapping[str, str]) -> Path:
    """``$AIRFLOW_HOME/ffdl`` inside Airflow, ``$XDG_STATE_HOME/ffdl`` on the command line."""
    if environ.get("AIRFLOW_HOME"):
        return Path(environ["AIRFLOW_HOME"]) / "ffdl"
    base = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME", "/")) / ".local" / "state"
    return Path(base) / "ffdl"


def default_ledger_url(state_dir: Path) -> str:
    """A SQLite file in the state directory."""
    return f"sqlite:///{state_dir / 'ledger.db'}"


def from_environment(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings of the command line: ``FFDL_<KEY>`` in the environment, else the defaults."""
    environ = os.environ if environ is None else environ
    values = {key: environ[f"FFDL_{key.upper()}"] for key in KEYS if environ.get(
        f"FFDL_{key.upper()}")}  # fmt: skip
    airflow = {key: environ[f"AIRFLOW__FFDL__{key.upper()}"] for key in KEYS if environ.get(
        f"AIRFLOW__FFDL__{key.upper()}")}  # fmt: skip
    return from_values({**airflow, **values}, state_dir=default_state_dir(environ))


def from_values(values: Mapping[str, str], *, state_dir: Path) -> Settings:
    """Settings from text values; ``state_dir`` is the default for that key."""
    state = Path(values.get("state_dir") or state_dir).expanduser().absolute()
    timing = {key: _number(values, key) for key in _SECONDS if values.get(key)}
    slots = int(_number(values, "slots")) if values.get("slots") else None
    if slots is not None and slots < 1:
        raise SpecError([FieldProblem("slots", str(slots), "at least 1")], source="[ffdl]")
    return Settings(
        state_dir=state,
        ledger_url=values.get("ledger_url") or default_ledger_url(state),
        cache_dir=Path(values.get("cache_dir") or state / "cache").expanduser().absolute(),
        checkpoint_root=_path(values, "checkpoint_root", state / "checkpoints"),
        model_root=_path(values, "model_root", state / "models"),
        engine=values.get("engine") or "local",
        slots=slots,
        timing=Timing(**timing),
        log_level=values.get("log_level") or "info",
    )


def _path(values: Mapping[str, str], key: str, default: Path) -> Path:
    return Path(values.get(key) or default).expanduser().absolute()


def _number(values: Mapping[str, str], key: str) -> float:
    try:
        number = float(values[key])
    except ValueError:
        number = -1.0
    if number <= 0:
        problem = FieldProblem(key, repr(values[key]), "a number above 0")
        raise SpecError([problem], source="[ffdl]") from None
    return number
