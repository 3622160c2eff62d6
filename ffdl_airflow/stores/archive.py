"""Sources that are one archive: zip, tar, tar.gz. The members are the entries.

Members are only ever read as streams, never unpacked by the archive library, so the key policy of
``core.data`` sees each name before anything is written.
"""

import gzip
import os
import posixpath
import stat
import sys
import tarfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from ffdl_airflow.core.data import Entry
from ffdl_airflow.stores import base

BLOCK_BYTES = 1 << 20
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError,
           NotImplementedError, UnicodeDecodeError)  # fmt: skip

LINKS_FOLLOWED = 8
"""Links from one member to another that are followed in a row. Chosen."""

Ignored = Callable[[str, bool], bool]


def is_zip_name(path: str) -> bool:
    """Whether a file's name says that it is a zip."""
    return path.lower().endswith(".zip")


def is_tar_name(path: str) -> bool:
    """Whether a file's name says that it is a tar, plain or compressed with gzip."""
    return path.lower().endswith((".tar", ".tar.gz", ".tgz"))


def _stamp(path: Path) -> str:
    """Changes when the archive may have changed; it stands for every member."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise base.SourceMoved(f"{path} is gone since it was listed") from error
    return f"{status.st_mtime_ns}-{status.st_ctime_ns}-{status.st_ino}-{status.st_size}"


@contextmanager
def _one_clear_error(path: Path) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise _broken(path, f"{type(error).__name__}: {error}") from error
    except PermissionError as error:
        raise base.SourceError(
            f"{path} cannot be read: {error.strerror}", code=base.UNREADABLE,
            found=error.strerror or "no right to read", allowed=f"readable by user {os.geteuid()}",
        ) from error  # fmt: skip


def _broken(path: Path, why: str) -> base.SourceError:
    return base.SourceError(f"the archive {path} cannot be used: {why}", code=base.ARCHIVE_BROKEN,
                            found=why, allowed="a complete zip, tar or tar.gz")  # fmt: skip


def _name_ignored(name: str, ignored: Ignored) -> bool:
    """Whether the member or one of the folders that it lies in is passed over."""
    *folders, last = PurePosixPath(name).parts or ("",)
    return any(ignored(part, True) for part in folders) or ignored(last, name.endswith("/"))


def _plain(name: str) -> str:
    """``./a`` as ``a``: tar writes the names so when it is given ``.``; no other change."""
    while name.startswith("./"):
        name = name[2:]
    return "" if name == "." else name


class _Archive:
    """What zip and tar have in common. A listing is kept while the file is the same."""

    kind = "archive"

    def __init__(self, path: Path, *, ignored: Ignored) -> None:
        self._path = path
        self._ignored = ignored
        self._entries: tuple[str, list[Entry]] | None = None

    def list(self) -> Iterator[Entry]:
        with _one_clear_error(self._path):
            stamp = _stamp(self._path)
            if self._entries is None or self._entries[0] != stamp:
                self._entries = (stamp, [*self._members(stamp)])
        if all(entry.key.endswith("/") for entry in self._entries[1]):
            raise base.SourceError(f"0 files in {self._path}", code=base.EMPTY, found="0 files",
                                   allowed="at least one file")  # fmt: skip
        yield from self._entries[1]

    def read(self, entry: Entry) -> Iterator[bytes]:
        with _one_clear_error(self._path):
            self._require(entry)
            size = 0
            with self._open(entry.key) as member:
                while block := member.read(BLOCK_BYTES):
                    size += len(block)
                    yield block
            self._require(entry)
            if size != entry.size:
                raise _broken(self._path, f"{entry.key} has {size} bytes, not {entry.size}")

    def _require(self, entry: Entry) -> None:
        if entry.version != _stamp(self._path):
            raise base.SourceMoved(f"{self._path} changed while it was read")

    def describe(self) -> str:
        return f"{self.kind} {self._path}"

    def facts(self) -> Mapping[str, Any]:
        return {}

    def _members(self, version: str) -> Iterator[Entry]:
        raise NotImplementedError

    def _open(self, key: str) -> IO[bytes]:
        raise NotImplementedError


class ZipStore(_Archive):
    """A zip file. Encrypted members are refused, links in it are left out with a warning."""

    kind = "zip"
    parallel = 4

    def _members(self, version: str) -> Iterator[Entry]:
        # Stays open: to open it means to read its whole directory. Reading by threads is safe.
        self._archive = zipfile.ZipFile(self._path)
        weakref.finalize(self, self._archive.close)
        self._by_key: dict[str, zipfile.ZipInfo] = {}
        for member in self._archive.infolist():
            key = _plain(member.filename)
            mode = member.external_attr >> 16
            if member.flag_bits & 1:
                raise _broken(self._path, f"{key} is encrypted")
            if not key or _name_ignored(key, self._ignored):
                continue
            if stat.S_ISLNK(mode):
                _left_out(key, "is a link")
                continue
            self._by_key[key] = member
            yield Entry(key=key, size=member.file_size, version=version,
                        executable=bool(mode & 0o111) and not key.endswith("/"))  # fmt: skip

    def _open(self, key: str) -> IO[bytes]:
        return self._archive.open(self._by_key[key])


class TarStore(_Archive):
    """A tar, plain or gzip. Links to members of it are followed, other special members left out.

    Read one after the other in the order of the archive: to go back in a gzip means to unpack it
    from its beginning again.
    """

    kind = "tar"
    parallel = 1

    def _members(self, version: str) -> Iterator[Entry]:
        self._archive = tarfile.open(self._path)  # noqa: SIM115 - stays open for `_open`
        weakref.finalize(self, self._archive.close)
        self._by_key: dict[str, tarfile.TarInfo] = {}
        members = self._archive.getmembers()
        self._require_end()
        by_name = {posixpath.normpath(member.name): member for member in members}
        for member in members:
            key = _plain(member.name)
            if not key or _name_ignored(key, self._ignored):
                continue
            if member.isdir():
                yield Entry(key=key.rstrip("/") + "/", size=0, version=version)
                continue
            target = _followed(member, by_name)
            if target is None:
                _left_out(key, "is a link out of the archive, or no file")
                continue
            self._by_key[key] = target
            yield Entry(key=key, size=target.size, version=version,
                        executable=bool(target.mode & 0o111))  # fmt: skip

    def _require_end(self) -> None:
        """Refuse an archive that is cut off in a header; tarfile takes that for its end.

        The rest is read too, because gzip has its checksum at the very end.
        """
        file = cast(IO[bytes], self._archive.fileobj)
        file.seek(self._archive.offset)
        if 0 < len(file.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
            raise _broken(self._path, "it is cut off")
        while file.read(BLOCK_BYTES):
            pass

    def _open(self, key: str) -> IO[bytes]:
        file = self._archive.extractfile(self._by_key[key])
        if file is None:
            raise _broken(self._path, f"{key} is no file")
        return file


def _followed(
    member: tarfile.TarInfo, by_name: Mapping[str, tarfile.TarInfo]
) -> tarfile.TarInfo | None:
    """The file that a member is or links to, or None."""
    for _ in range(LINKS_FOLLOWED):
        if member.isfile():
            return member
        if member.issym():
            name = posixpath.join(posixpath.dirname(member.name), member.linkname)
        elif member.islnk():
            name = member.linkname
        else:
            return None
        target = by_name.get(posixpath.normpath(name))
        if target is None:
            return None
        member = target
    return None


def _left_out(key: str, why: str) -> None:
    # Standard error of a mover is its log file.
    sys.stderr.write(f"left out: {key!a} {why}\n")
