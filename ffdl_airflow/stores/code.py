"""The user's code (folder or zip) as a source, with the commit that it was at."""

import fnmatch
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ffdl_airflow.core.data import Entry
from ffdl_airflow.stores import base
from ffdl_airflow.stores.archive import is_tar_name, is_zip_name
from ffdl_airflow.stores.local import open_path

CODE_STORE = "code"
"""Name of the store in the cache that holds generations of code."""

IGNORED_FOLDERS = frozenset({".git", "__pycache__", ".venv", "node_modules"})
IGNORED_FILES = ("*.pyc",)

GIT_TIMEOUT_S = 5.0
"""Longest that one question to git may take; without an answer the commit is recorded as none."""


def code_source(path: str | Path) -> dict[str, Any]:
    """The source for ``GenerationCache.ensure(CODE_STORE, …)``: a folder or zip, absolute path."""
    return {"kind": "code", "path": str(path)}


def is_ignored(name: str, folder: bool) -> bool:  # noqa: FBT001 - the form of `Ignored`
    """Whether a file or folder of this name is no part of the code."""
    if name in IGNORED_FOLDERS:  # also as a file: `.git` is one in a worktree
        return folder or name == ".git"
    return not folder and any(fnmatch.fnmatchcase(name, pattern) for pattern in IGNORED_FILES)


def open_code(source: Mapping[str, Any]) -> base.Store:
    """The store for ``{"kind": "code", "path": …}``."""
    path = str(source.get("path", ""))
    files = open_path(path, ignored=is_ignored)  # refuses what cannot be reached
    if Path(path).is_file() and not (is_zip_name(path) or is_tar_name(path)):
        raise base.SourceError(
            f"{path} is a single file", code=base.NOT_A_FOLDER, found="a single file",
            allowed="a folder or zip that the program lies in",
        )  # fmt: skip
    return CodeStore(files, Path(path))


class CodeStore:
    """Code is data, and in addition it may be at a commit."""

    def __init__(self, files: base.Store, path: Path) -> None:
        self._files = files
        self._path = path
        self.parallel = files.parallel

    def list(self) -> Iterator[Entry]:
        """The files that are code."""
        return self._files.list()

    def read(self, entry: Entry) -> Iterator[bytes]:
        """The blocks of a file."""
        return self._files.read(entry)

    def describe(self) -> str:
        """``code, folder /data/project``."""
        return f"code, {self._files.describe()}"

    def facts(self) -> Mapping[str, Any]:
        """``gitCommit`` and ``gitDirty`` (changes or new files below the path), None without."""
        folder = self._path if self._path.is_dir() else self._path.parent
        commit = _git(folder, "rev-parse", "HEAD")
        if commit is None or not self._path.is_dir():
            return {"gitCommit": None, "gitDirty": None}
        changes = _git(folder, "status", "--porcelain", "--", ".")
        return {"gitCommit": commit, "gitDirty": None if changes is None else bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    """What git answers, or None where there is no git, no checkout or no answer in time."""
    # fsmonitor could be a program of the checkout; optional locks would write to it.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder)]
    try:
        done = subprocess.run(
            [*command, *arguments], check=False, capture_output=True, stdin=subprocess.DEVNULL,
            text=True, timeout=GIT_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
