"""The example DAGs of a checkout, made ready in an Airflow home of their own."""

import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile

from ffdl_airflow.core.errors import InfrastructureError, UserError
from ffdl_airflow.settings import default_state_dir, from_environment

EXAMPLES = Path(__file__).resolve().parents[1] / "example_dags"


def own_home(name: str) -> Path:
    """A folder that is not the user's own Airflow: ``$XDG_STATE_HOME/ffdl/NAME``."""
    return default_state_dir({k: v for k, v in os.environ.items() if k != "AIRFLOW_HOME"}) / name


def make_home(home: Path, *, said: str) -> None:
    """Make the folder; raises UserError where it cannot be made or written. ``said``: by whom."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=home):
            pass
    except OSError as error:
        why = "it is no folder" if isinstance(error, FileExistsError) else error.strerror
        raise UserError(
            f"{said}: found {home} ({why}), allowed: a folder that can be made or written"
        ) from None


def prepare_examples(dags: Path) -> None:
    """Copy the examples and write the digits as files: something to fetch.

    An equal file stays as it is, so that nothing is fetched anew. Raises UserError where there is
    no checkout, InfrastructureError where the digits cannot be written.
    """
    if not EXAMPLES.is_dir():
        raise UserError(f"found no {EXAMPLES}, allowed: a checkout of the repository")
    for source in sorted(EXAMPLES.rglob("*")):
        target = dags / source.relative_to(EXAMPLES)
        if source.is_dir() or "__pycache__" in source.parts:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != source.read_bytes():
            shutil.copyfile(source, target)
    export = [sys.executable, str(dags / "digits" / "export_data.py"), str(dags / "digits-data")]
    if subprocess.run(export, check=False).returncode != 0:
        raise InfrastructureError("the digits cannot be written, see above",
                                  evidence=" ".join(export))  # fmt: skip


def kept_slots() -> int:
    """``FFDL_SLOTS``; else one for each core, but two at least: two ranks need two."""
    return from_environment().slots or max(2, len(os.sched_getaffinity(0)))


def fernet_key(path: Path) -> str:
    """Airflow encrypts what it keeps of triggers and connections with it; made once."""
    return kept_secret(path, base64.urlsafe_b64encode(os.urandom(32)).decode())


def kept_secret(path: Path, new: str) -> str:
    """The secret in a file that only its owner can read; ``new`` where there is none yet."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(new)
    return path.read_text(encoding="ascii")
