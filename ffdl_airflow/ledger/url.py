"""The setting ``ledger_url``: whether it names a database that a ledger can be in.

For: one clear refusal, without a password in it, before anything is opened. Not for: whether the
database is there.
"""

import re
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from ffdl_airflow.core.errors import FieldProblem, SpecError

ALLOWED = "sqlite:////path/of/ledger.db for one host, or postgresql://user:password@host/database"
_BACKENDS = ("sqlite", "postgresql")
_PASSWORD = re.compile(r"(://[^:/@]*):.*@")


def ledger_url(text: str) -> sa.URL:
    """The URL, read. Raises SpecError where it is none, or of a database that is not supported."""
    try:
        url = sa.make_url(text)
        dialect = url.get_dialect()
    except (ArgumentError, ValueError) as error:  # NoSuchModuleError is an ArgumentError
        raise _refused(text, "which is no URL of a database that is known") from error
    if url.get_backend_name() not in _BACKENDS or dialect.is_async:
        raise _refused(text, "which is no database for it")
    try:
        dialect.import_dbapi()
    except ImportError as error:
        raise _refused(
            text, f"whose driver is not installed ({error}; ffdl_airflow[postgres] has it)"
        ) from None
    file = url.database or ""
    if url.get_backend_name() == "sqlite" and (file in ("", ":memory:") or file[:5] == "file:"):
        raise _refused(text, "which names no file")
    return url


def require_folder(url: sa.URL) -> None:
    """Refuse a file of SQLite's in a folder that is not there: a slip is not to make folders."""
    folder = Path(url.database or "").parent
    if not folder.is_dir():
        found = f"{url.render_as_string()}, and {folder} is no folder"
        problem = FieldProblem("ledger_url", found, "a file in a folder that is there")
        raise SpecError([problem], source="[ffdl]")


def _refused(text: str, why: str) -> SpecError:
    shown = _PASSWORD.sub(r"\1:***@", text)
    return SpecError([FieldProblem("ledger_url", f"{shown}, {why}", ALLOWED)], source="[ffdl]")
