"""Sources on this machine's file system: a folder, one file, or an archive.

Links to files and folders are followed, because data sets are often farms of links; a link that
leads nowhere or round in a circle, and whatever is neither file nor folder, is left out with a
warning in the log. A trailing slash on a folder means nothing: ``train`` and ``train/`` are one.
"""

import difflib
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ffdl_airflow.core.data import Entry
from ffdl_airflow.stores import base
from ffdl_airflow.stores.archive import TarStore, ZipStore, is_tar_name, is_zip_name

BLOCK_BYTES = 1 << 20
READERS = 4
"""Files read at once. Chosen: hashing is the limit, and a data machine has more to do."""

CLOCK_TICK_NS = 20_000_000
"""Longer than the tick of a file's times: Linux takes them from its timer, 100 to 1000 Hz."""

SIBLINGS_LIMIT = 10_000
"""So many names of a folder are looked at for a "did you mean"."""

Ignored = Callable[[str, bool], bool]
"""(name, is it a folder) → whether it is passed over."""


def open_local(source: Mapping[str, Any]) -> base.Store:
    """The store for ``{"kind": "local", "path": …}``. Raises SourceError where it is none."""
    return open_path(str(source.get("path", "")), allow_empty=bool(source.get("allow_empty")))


def open_path(
    path: str, *, ignored: Ignored | None = None, allow_empty: bool = False
) -> base.Store:
    """The store for a path: folder, archive (by its name's end) or single file."""
    if not path.startswith("/"):
        raise base.SourceError(
            f"the path {path!r} is not absolute", code=base.NOT_ABSOLUTE, found=repr(path),
            allowed="a path that starts with /",
        )  # fmt: skip
    ignored = ignored or _nothing
    mode = _mode_of(path)
    if stat.S_ISDIR(mode):
        return FolderStore(Path(path), ignored=ignored, allow_empty=allow_empty)
    if not stat.S_ISREG(mode):
        raise base.SourceError(
            f"{path} is neither a file nor a folder", code=base.UNSUPPORTED_FILE,
            found="a device, pipe or socket", allowed="a folder, a file or an archive",
        )  # fmt: skip
    if path.endswith("/"):
        raise base.SourceError(
            f"{path} ends in / but is a file", code=base.NOT_A_FOLDER, found="a file",
            allowed="a folder, or the path without the last /",
            next_step=f"write {path.rstrip('/')} if this file is meant",
        )  # fmt: skip
    if is_zip_name(path):
        return ZipStore(Path(path), ignored=ignored)
    if is_tar_name(path):
        return TarStore(Path(path), ignored=ignored)
    return FileStore(Path(path))


def _nothing(name: str, folder: bool) -> bool:  # noqa: FBT001 - the form of `Ignored`
    return False


def _mode_of(path: str) -> int:
    for spelling in (path, path.rstrip("/") or "/"):
        try:
            return Path(spelling).stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue  # `stat("file/")` says "not a directory"
        except PermissionError as error:
            raise unreadable(path, error) from error
        except (OSError, ValueError) as error:
            message = f"the path {path[:200]!r} cannot be used: {error}"
            raise base.SourceError(message, code=base.MISSING,
                                   found=f"{path[:200]}, no such path",
                                   allowed=_A_PATH) from error  # fmt: skip
    raise missing(path)


def unreadable(path: str | Path, error: OSError) -> base.SourceError:
    """The error for something that is there and may not be read."""
    return base.SourceError(
        f"{path} cannot be read: {error.strerror}", code=base.UNREADABLE,
        found=error.strerror or str(error), allowed=f"readable by user {os.geteuid()}",
        next_step=f"give user {os.geteuid()} the right to read it",
    )  # fmt: skip


def missing(path: str) -> base.SourceError:
    """The error for a path that is not there, with the nearest name that is."""
    guess = did_you_mean(path)
    return base.SourceError(
        f"there is nothing at {path}" + (f"; did you mean {guess}?" if guess else ""),
        code=base.MISSING, found=f"{path}, no such path",
        allowed=_A_PATH + (f" (did you mean {guess}?)" if guess else ""),
    )  # fmt: skip


_A_PATH = "a path that exists on this machine"


def did_you_mean(path: str) -> str | None:
    """``path`` with its first missing part replaced by a sibling of nearly the same name."""
    parts = [part for part in path.split("/") if part]
    for depth, part in enumerate(parts):
        parent = "/" + "/".join(parts[:depth])
        if Path(parent, part).exists():
            continue
        match = difflib.get_close_matches(part, _siblings(parent), n=1)
        if not match:
            return None
        rest = "/".join([match[0], *parts[depth + 1 :]])
        guess = f"{parent.rstrip('/')}/{rest}"
        return guess if Path(guess).exists() else f"{parent.rstrip('/')}/{match[0]}"
    return None


def _siblings(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry, _ in zip(entries, range(SIBLINGS_LIMIT), strict=False)]
    except OSError:
        return []


def version_of(status: os.stat_result) -> str:
    """Changes when a file may have been written, replaced, or given other rights.

    The change time is in it because a copy tool can set the modification time back.
    """
    return f"{status.st_mtime_ns}-{status.st_ctime_ns}-{status.st_ino}"


def settled(path: Path) -> os.stat_result:
    """The status of a path, once a later write would give it another time.

    A file system's clock is coarse: a second write in the same tick leaves size and times as they
    are. So a file that was written just now is looked at again a tick later.
    """
    status = path.stat()
    while 0 <= time.time_ns() - status.st_mtime_ns < CLOCK_TICK_NS:
        time.sleep(CLOCK_TICK_NS / 1e9)
        status = path.stat()
    return status


def entry_of(key: str, status: os.stat_result) -> Entry:
    """The entry of a regular file."""
    return Entry(
        key=key,
        size=status.st_size,
        version=version_of(status),
        executable=bool(status.st_mode & 0o111),
    )


def read_file(path: Path, entry: Entry) -> Iterator[bytes]:
    """The blocks of a file. Raises SourceMoved unless it is ``entry`` before and after."""
    try:
        # Not blocking: should a pipe have taken the file's place, to open it would wait for ever.
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
            _require(entry, os.fstat(file.fileno()))
            while block := file.read(BLOCK_BYTES):
                yield block
            _require(entry, os.fstat(file.fileno()))
    except FileNotFoundError as error:
        raise base.SourceMoved(f"{path} is gone since it was listed") from error
    except PermissionError as error:
        raise unreadable(path, error) from error


def _require(entry: Entry, status: os.stat_result) -> None:
    if (entry.size, entry.version) != (status.st_size, version_of(status)):
        raise base.SourceMoved(f"{entry.key} changed while it was read",
                               found=f"{status.st_size} bytes, listed {entry.size}")  # fmt: skip


class FileStore:
    """A source of one file; its key is its name."""

    parallel = 1

    def __init__(self, path: Path) -> None:
        self._path = path

    def list(self) -> Iterator[Entry]:
        """The one file."""
        yield entry_of(self._path.name, settled(self._path))

    def read(self, entry: Entry) -> Iterator[bytes]:
        """Its blocks."""
        return read_file(self._path, entry)

    def describe(self) -> str:
        """``file /data/a.rec``."""
        return f"file {self._path}"

    def facts(self) -> Mapping[str, Any]:
        """Nothing."""
        return {}


class FolderStore:
    """A source that is a folder; keys are paths below it."""

    parallel = READERS

    def __init__(self, path: Path, *, ignored: Ignored, allow_empty: bool = False) -> None:
        self._path = path
        self._ignored = ignored
        self._allow_empty = allow_empty

    def list(self) -> Iterator[Entry]:
        """All files, sorted within each folder, and the folders that are empty."""
        count = 0
        try:
            top = self._path.stat()
        except OSError as error:
            raise missing(str(self._path)) from error
        for entry in self._walk("", ((top.st_dev, top.st_ino),)):
            count += not entry.key.endswith("/")
            yield entry
        if count == 0 and not self._allow_empty:
            guess = _nearest_sibling(self._path)
            raise base.SourceError(
                f"0 files under {self._path}" + (f"; did you mean {guess}?" if guess else ""),
                code=base.EMPTY, found="0 files", allowed=str(guess or "at least one file"),
            )  # fmt: skip

    def _walk(self, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[Entry]:
        folder = self._path / prefix
        try:
            names = sorted(path.name for path in folder.iterdir())
        except PermissionError as error:
            raise unreadable(folder, error) from error
        except (FileNotFoundError, NotADirectoryError) as error:
            raise base.SourceMoved(f"{folder} is gone since its parent was listed") from error
        if not names and prefix:
            yield Entry(key=prefix, size=0, version="")
        for name in names:
            yield from self._visit(prefix + name, name, above)

    def _visit(self, key: str, name: str, above: tuple[tuple[int, int], ...]) -> Iterator[Entry]:
        try:
            status = settled(self._path / key)
        except PermissionError as error:
            raise unreadable(self._path / key, error) from error
        except OSError as error:
            _left_out(key, f"leads nowhere ({error.strerror})")
            return
        folder = stat.S_ISDIR(status.st_mode)
        if self._ignored(name, folder):
            return
        if not folder:
            if stat.S_ISREG(status.st_mode):
                yield entry_of(key, status)
            else:
                _left_out(key, "is neither a file nor a folder")
            return
        place = (status.st_dev, status.st_ino)
        if place in above:
            _left_out(key, "is a link to a folder that it lies in")
            return
        yield from self._walk(key + "/", (*above, place))

    def read(self, entry: Entry) -> Iterator[bytes]:
        """The blocks of a file."""
        return read_file(self._path / entry.key, entry)

    def describe(self) -> str:
        """``folder /data/train``."""
        return f"folder {self._path}"

    def facts(self) -> Mapping[str, Any]:
        """Nothing."""
        return {}


def _nearest_sibling(path: Path) -> Path | None:
    """A sibling folder with something in it and nearly the same name."""
    names = [name for name in _siblings(str(path.parent)) if name != path.name]
    for match in difflib.get_close_matches(path.name, names, n=3):
        candidate = path.parent / match
        if candidate.is_dir() and _siblings(str(candidate)):
            return candidate
    return None


def _left_out(key: str, why: str) -> None:
    # Standard error of a mover is its log file.
    sys.stderr.write(f"left out: {key!a} {why}\n")
