"""Fetching the files of a source in parallel, so that what is complete is never fetched twice.

Each file goes to a temporary name, is hashed on its way, synced, noted in ``parts.jsonl`` and then
renamed to its place. After an end at any point the next mover finds the complete files by these
lines.
"""

import errno
import hashlib
import itertools
import json
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from ffdl_airflow.agent import detached, protocol
from ffdl_airflow.core.data import Entry, GenerationFile
from ffdl_airflow.stores import base, generations
from ffdl_airflow.stores.layout import DATA

BLOCK_BYTES = 4096
"""Disk space is counted in blocks of this size: the default of ext4 and XFS."""

SPARE_PERCENT = 5
"""Added to what a fetch needs, for the file system's own structures (cases E17)."""

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Stopped(Exception):
    """The mover is to end; its parts stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One complete file in the build. ``moved``: its bytes came from the source, not by a link."""

    key: str
    size: int
    version: str
    sha256: str
    executable: bool
    moved: bool

    def as_file(self) -> GenerationFile:
        """As the manifest of a generation has it."""
        return GenerationFile(key=self.key, size=self.size, sha256=self.sha256,
                              version=self.version, executable=self.executable)  # fmt: skip


class Build:
    """The generation that is being made, in the folder of a mover's work."""

    def __init__(self, work: Path) -> None:
        self.root = work / "build"
        self.data = self.root / DATA
        self.incoming = work / "incoming"
        self._list = work / "parts.jsonl"
        self._guard = threading.Lock()
        self._numbers = itertools.count()
        self.parts: dict[str, Part] = {}

    def open(self) -> None:
        """Make the folders, and find what an earlier mover has left complete."""
        shutil.rmtree(self.incoming, ignore_errors=True)
        self.incoming.mkdir(parents=True)
        self._reopen_folders()
        self.data.mkdir(parents=True, exist_ok=True)
        for part in self._listed():
            if generations.with_damage(self.root, [part.as_file()]):
                self.parts.pop(part.key, None)
            else:
                self.parts[part.key] = part

    def _reopen_folders(self) -> None:
        """A mover that died while it published may have closed them."""
        for folder, names, _ in os.walk(self.root):
            for name in (".", *names):
                Path(folder, name).chmod(generations.OPEN_FOLDER_MODE)

    def _listed(self) -> Iterator[Part]:
        try:
            lines = self._list.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield Part(**json.loads(line))
            except (ValueError, TypeError):  # the last line may be cut off by a crash
                continue

    def temporary(self) -> Path:
        """A new name for a file that is being written."""
        with self._guard:
            return self.incoming / str(next(self._numbers))

    def put(self, file: Path, part: Part) -> None:
        """Take a complete, synced file into the build."""
        target = self.data / part.key
        target.parent.mkdir(parents=True, exist_ok=True)
        file.chmod(generations.PROGRAM_MODE if part.executable else generations.FILE_MODE)
        line = json.dumps(asdict(part)).encode() + b"\n"
        with self._guard, self._list.open("ab") as listed:
            listed.write(b"\n" + line)  # a line of its own even after one that a crash cut off
        # The line first: nothing is at the target yet, so a file that is there later is this one.
        file.replace(target)
        self.parts[part.key] = part

    def keep_only(self, entries: Mapping[str, Entry], directories: Iterable[str]) -> None:
        """Drop parts that are not (any more) what the source has; make the folders."""
        for key, part in list(self.parts.items()):
            entry = entries.get(key)
            if entry is None or (entry.size, entry.version) != (part.size, part.version):
                del self.parts[key]
        for key, path in protocol.list_files(str(self.data)):
            if key not in self.parts:
                Path(path).unlink()
        for folder, _, _ in os.walk(self.data, topdown=False):
            if Path(folder) != self.data and not any(Path(folder).iterdir()):
                Path(folder).rmdir()
        for name in directories:
            (self.data / name).mkdir(parents=True, exist_ok=True)

    def require_exactly(self, keys: Iterable[str]) -> None:
        """Raise unless the build has just these names, each once and as it was written.

        A file system that normalises names, or takes two cases for one, shows here.
        """
        found = {key for key, _ in protocol.list_files(str(self.data))}
        missing = sorted(set(keys) - found)
        if missing or generations.with_damage(self.root, self.files()):
            raise base.CacheError(
                "the cache's file system does not keep names or sizes as they are",
                code=base.CACHE_UNUSABLE, found=f"lost: {', '.join(map(ascii, missing[:3]))}",
                allowed="a file system that tells all names apart (ext4, XFS)",
            )  # fmt: skip

    def files(self) -> list[GenerationFile]:
        """The manifest's files, sorted by key."""
        return [self.parts[key].as_file() for key in sorted(self.parts)]

    @property
    def moved_bytes(self) -> int:
        """Bytes that came from the source, over all movers of this build."""
        return sum(part.size for part in self.parts.values() if part.moved)

    @property
    def size_bytes(self) -> int:
        """Bytes that are complete."""
        return sum(part.size for part in self.parts.values())

    def discard(self) -> None:
        """What was being made is not needed."""
        generations.remove_tree(self.root)
        self.close()

    def close(self) -> None:
        """The build was published: forget its parts."""
        self._list.unlink(missing_ok=True)
        shutil.rmtree(self.incoming, ignore_errors=True)


class Fetcher:
    """Fetches from ``store`` into ``build``, and reports to ``worker``."""

    def __init__(self, store: base.Store, build: Build, worker: detached.Worker) -> None:
        self._store = store
        self._build = build
        self._worker = worker

    def fetch_all(self, entries: Iterable[Entry]) -> None:
        """Raise the first error, or Stopped; what is complete then stays in the build."""
        waiting = iter(entries)
        guard = threading.Lock()
        failed = threading.Event()

        def drain() -> None:
            while not failed.is_set():
                with guard:
                    entry = next(waiting, None)
                if entry is None:
                    return
                try:
                    self._fetch(entry)
                except BaseException:
                    failed.set()
                    raise

        readers = self._store.parallel
        with ThreadPoolExecutor(readers, thread_name_prefix="fetch") as pool:
            futures = [pool.submit(drain) for _ in range(readers)]
        for future in futures:
            future.result()

    def _fetch(self, entry: Entry) -> None:
        temporary = self._build.temporary()
        try:
            sha256 = self.copy_hashed(entry, temporary)
        except BaseException:
            temporary.unlink(missing_ok=True)  # on a full disk this makes room for the answer
            raise
        part = Part(
            key=entry.key,
            size=entry.size,
            version=entry.version,
            sha256=sha256,
            executable=entry.executable,
            moved=True,
        )
        self._build.put(temporary, part)
        self._worker.add(objects_done=1)

    def copy_hashed(self, entry: Entry, target: Path) -> str:
        """Write the entry's bytes to ``target``, synced, and return their SHA-256."""
        digest = hashlib.sha256()
        size = 0
        with target.open("wb", buffering=0) as file:
            for block in _readable(self._store.read(entry), entry):
                if self._worker.stop.is_set():
                    raise Stopped
                digest.update(block)
                size += len(block)
                _write(file.fileno(), block)
                self._worker.add(bytes_done=len(block), moved_bytes=len(block))
            os.fsync(file.fileno())
        if size != entry.size:
            raise base.SourceMoved(
                f"{entry.key} changed while it was read",
                found=f"{size} bytes, listed {entry.size}",
            )
        return digest.hexdigest()


def _readable(blocks: Iterator[bytes], entry: Entry) -> Iterator[bytes]:
    try:
        yield from blocks
    except OSError as error:
        raise base.CacheError(
            f"{entry.key} could not be read: {error.strerror}", code=base.READ_FAILED,
            found=str(error.strerror), allowed="a source that answers",
        ) from error  # fmt: skip


def _write(descriptor: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(descriptor, view) :]


def link_unchanged(
    entries: Iterable[Entry], build: Build, *, known: Mapping[str, tuple[int, str, str]], data: Path
) -> None:
    """Take files that an older generation of the same source has, by hard link, into the build.

    ``known`` is {key: (size, version, SHA-256)} of that generation, ``data`` its folder.
    """
    for entry in entries:
        old = known.get(entry.key)
        if entry.key in build.parts or old is None or old[:2] != (entry.size, entry.version):
            continue
        temporary = build.temporary()
        try:
            if (data / entry.key).stat().st_size != entry.size:
                continue
            os.link(data / entry.key, temporary)
        except OSError:
            continue  # it is fetched instead
        build.put(temporary, Part(key=entry.key, size=entry.size, version=entry.version,
                                  sha256=old[2], executable=entry.executable,
                                  moved=False))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a file system has left. ``files`` None: it does not count them."""

    free_bytes: int
    files: int | None


def space_at(path: Path) -> Space:
    """What is left where ``path`` lies, for users who are not root."""
    found = os.statvfs(path)
    return Space(
        free_bytes=found.f_bavail * found.f_frsize,
        files=found.f_favail if found.f_files else None,
    )


def require_space(entries: Iterable[Entry], space: Space) -> None:
    """Raise CacheError DISK_FULL unless the entries fit, counted in blocks and in files."""
    count = need = 0
    for entry in entries:
        count += 1
        need += -(-entry.size // BLOCK_BYTES) * BLOCK_BYTES
    need += need * SPARE_PERCENT // 100
    if need > space.free_bytes:
        raise disk_full(f"{need} bytes are needed (with {SPARE_PERCENT} % to spare)",
                        f"{space.free_bytes} bytes are free")  # fmt: skip
    if space.files is not None and count > space.files:
        raise disk_full(f"{count} files are needed", f"{space.files} more files are possible")


def disk_full(need: str, found: str) -> base.CacheError:
    """The error for a cache without room."""
    return base.CacheError(
        f"the cache's disk is too full: {need}, {found}", code=base.DISK_FULL, found=found,
        allowed=need, next_step="remove generations that no job uses (`ffdl cache`), or set "
        "cache_dir to a larger disk",
    )  # fmt: skip


def translated(error: OSError) -> base.CacheError:
    """An error of the operating system under the cache folder, as one of ours."""
    if error.errno in _DISK_FULL:
        full = disk_full("a file could not be written", os.strerror(error.errno or 0))
        full.__cause__ = error
        return full
    return base.CacheError(
        f"the cache cannot be used: {error}", code=base.CACHE_UNUSABLE,
        found=error.strerror or str(error), allowed="a folder that this user can write",
    )  # fmt: skip
