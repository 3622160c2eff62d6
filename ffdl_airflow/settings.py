"""All settings of an installation, frozen. Reads nothing by itself: values come as text.

In Airflow the values come from section ``[ffdl]``, on the
command line from ``FFDL_<KEY>``.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ffdl_airflow.core.errors import FieldProblem, SpecError
from ffdl_airflow.core.plan import Timing

_SECONDS = ("heartbeat_s", "silent_s", "hold_s", "placement_s", "grace_s")
_KUBERNETES = (
    "kubeconfig", "kube_context", "namespace", "agent_image", "mover_image", "pod_python",
    "volumes", "service_account", "run_as_user", "fs_group", "tolerations",
    "turnstile_namespace", "kubernetes_conn_id",
)  # fmt: skip
_DIGITS = 9
"""Of a count, at most. Chosen: more than any machine has of anything."""
KEYS = (
    "ledger_url", "state_dir", "cache_dir", "checkpoint_root", "model_root", "engine", "slots",
    "gpus", *_SECONDS, "installation_key", *_KUBERNETES,
)  # fmt: skip
"""Every setting that something reads."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One installation. ``slots`` None: the GPUs, else cores. ``gpus`` None: those found.

    ``kubernetes`` has the values that only that engine reads, see its ``settings.py``.
    """

    state_dir: Path
    ledger_url: str = field(repr=False)
    cache_dir: Path
    checkpoint_root: Path
    model_root: Path
    engine: str = "local"
    slots: int | None = None
    gpus: int | None = None
    timing: Timing = field(default_factory=Timing)
    installation_key: str | None = field(default=None, repr=False)
    kubernetes: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)


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
    """Settings from text values; ``state_dir`` is the default for that key.

    Raises SpecError with every key that is wrong by itself; what has to be tried is tried where it
    is used.
    """
    read = _Reader(values)
    state = read.path("state_dir", state_dir)
    timing = read.timing()
    found = Settings(
        state_dir=state,
        ledger_url=values.get("ledger_url") or default_ledger_url(state),
        cache_dir=read.path("cache_dir", state / "cache"),
        checkpoint_root=read.path("checkpoint_root", state / "checkpoints"),
        model_root=read.path("model_root", state / "models"),
        engine=values.get("engine") or "local",
        slots=read.count("slots", least=1, allowed="a whole number, at least 1"),
        gpus=read.count("gpus", least=0, allowed="a whole number, 0 for none"),
        timing=timing,
        installation_key=values.get("installation_key") or None,
        kubernetes={key: values[key] for key in _KUBERNETES if values.get(key)},
    )
    if read.problems:
        raise SpecError(read.problems, source="[ffdl]")
    return found


class _Reader:
    """Reads values one by one and keeps what is wrong with them."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self.problems: list[FieldProblem] = []

    def path(self, key: str, default: Path) -> Path:
        """An absolute path."""
        text = self._values.get(key) or str(default)
        try:
            found = Path(text).expanduser().absolute()
        except RuntimeError:  # ~ of a user that there is not
            found = Path("\0")
        if "\0" in str(found):
            self._wrong(key, repr(text), "the path of a folder")
        return found

    def seconds(self, key: str) -> float:
        """A time."""
        text = self._values[key]
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (number > 0 and math.isfinite(number)):
            self._wrong(key, repr(text), "a finite number above 0")
            return math.nan  # is neither more nor less than any other
        return number

    def timing(self) -> Timing:
        """The times of a gang; an agent may not be called silent before it had to say a word."""
        found = Timing(**{key: self.seconds(key) for key in _SECONDS if self._values.get(key)})
        if found.silent_s <= found.heartbeat_s:
            allowed = f"more than heartbeat_s, which is {found.heartbeat_s:g}"
            self._wrong("silent_s", f"{found.silent_s:g}", allowed)
        return found

    def count(self, key: str, *, least: int, allowed: str) -> int | None:
        """A whole number; None where nothing is said."""
        text = self._values.get(key)
        if not text:
            return None
        number = int(text) if text.isdecimal() and len(text) <= _DIGITS else -1
        if number < least:
            self._wrong(key, repr(text), allowed)
            return None
        return number

    def _wrong(self, key: str, found: str, allowed: str) -> None:
        self.problems.append(FieldProblem(key, found, allowed))
