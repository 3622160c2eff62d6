"""The registry that is a folder: ``<model_root>/<name>/<version>/{files…, MODEL.json}``.

A version is built beside its place and comes by one rename; then it is read-only, but for
``AUDIT.jsonl``, which has the approvals and only grows. No path in a version is needed to use it,
so a model root can be copied anywhere. ``<name>/.lock`` is held while a number is taken,
``<name>/.tmp/<identity>/`` has what is being made.
"""

import difflib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ffdl_airflow.agent import detached, protocol
from ffdl_airflow.core.model import (
    AUDIT_FILE,
    MODEL_FILE,
    NAME_ALLOWED,
    AuditEntry,
    ModelFile,
    ModelIdentity,
    ModelVersion,
    PublishRequest,
    is_model_name,
)
from ffdl_airflow.registries import base

FILE_MODE = 0o444
FOLDER_MODE = 0o555

SPARE_PERCENT = 5
"""Added to what a copy needs on disk. Chosen, as in the cache."""

_RESERVED = (MODEL_FILE, AUDIT_FILE)
_VERSION = re.compile(r"[1-9][0-9]*")


class PublishStopped(Exception):
    """The worker was told to stop before the version was there."""


class DirectoryRegistry:
    """A registry under ``model_root`` (made when it is missing).

    ``worker``: the process that publishes; it gets the progress, and a ``publish`` that is still
    copying when it is to stop raises PublishStopped.
    """

    def __init__(self, model_root: str | Path, *, worker: detached.Worker | None = None) -> None:
        self.root = Path(model_root).absolute()
        self._worker = worker

    def find(self, identity: ModelIdentity) -> ModelVersion | None:
        """Look through the versions of the name, newest first."""
        _require_name(identity.name)
        for number in reversed(self._numbers(identity.name)):
            found = self._read(identity.name, number)
            if found and (found.job, found.sha256) == (identity.job, identity.checkpointSha256):
                return found
        return None

    def publish(self, request: PublishRequest) -> ModelVersion:
        """Copy, check and number the files; waits for another that publishes the same."""
        identity = ModelIdentity(
            name=request.name, job=request.job, checkpointSha256=request.checkpoint.sha256
        )
        _require_name(request.name)
        work = self.work(identity)
        try:
            with _lock_build(work):
                found = self.find(identity)
                if found is None:
                    self._require_free(request)
                    self._clean(request.name, but=work)
                    found = self._make(request, work / "build")
        except OSError as error:
            raise translated(error) from error
        if request.version is not None and found.version != request.version:
            raise _already(found, request.version)
        return found

    def get(self, name: str, version: int | None = None) -> ModelVersion:
        """Read a version; raises RegistryUnusable where its document is damaged."""
        _require_name(name)
        numbers = self._numbers(name)
        if not numbers or (version is not None and version not in numbers):
            raise self._not_found(name, version, numbers)
        number = numbers[-1] if version is None else version
        found = self._read(name, number)
        if found is None:
            raise base.RegistryUnusable(
                f"version {number} of {name} has no readable {MODEL_FILE}",
                code=base.BROKEN_VERSION, found=str(self.path(name, number)), allowed="a whole one",
                next_step="restore the folder from a copy",
            )  # fmt: skip
        return found

    def list(self, name: str | None = None) -> Sequence[ModelVersion]:
        """Read all versions; one with a damaged document is passed over."""
        names = self._names() if name is None else [name]
        found = (self._read(each, number) for each in names for number in self._numbers(each))
        return [version for version in found if version is not None]

    def append_audit(self, name: str, version: int, entry: AuditEntry) -> ModelVersion:
        """Add a synced line to the version's trail."""
        self.get(name, version)
        line = json.dumps({"v": 1, **entry.model_dump()}, sort_keys=True).encode() + b"\n"
        path = self.path(name, version) / AUDIT_FILE
        try:
            with detached.locked(str(self._lock(name))), path.open("r+b", buffering=0) as file:
                _add_line(file.fileno(), line)
        except OSError as error:
            raise translated(error) from error
        return self.get(name, version)

    def path(self, name: str, version: int) -> Path:
        """The folder of a version, which need not be there."""
        _require_name(name)
        return self.root / name / str(version)

    def work(self, identity: ModelIdentity) -> Path:
        """The folder in which a publication of this identity is made."""
        _require_name(identity.name)
        key = json.dumps([identity.job, identity.checkpointSha256])
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        return self.root / identity.name / ".tmp" / digest

    def verify(self, name: str, version: int) -> tuple[str, ...]:
        """What is wrong with a version, every byte read; empty where nothing is."""
        document = self.get(name, version)
        found = {entry["name"]: entry for entry in _described(self.path(name, version))}
        known = {file.name: file.model_dump() for file in document.files}
        return tuple(
            f"{key} is {_what(known.get(key), found.get(key))}"
            for key in sorted(known.keys() | found.keys())
            if known.get(key) != found.get(key)
        )

    def _lock(self, name: str) -> Path:
        return self.root / name / ".lock"

    def _names(self) -> Sequence[str]:
        if not self.root.is_dir():
            return []
        return sorted(path.name for path in self.root.iterdir() if is_model_name(path.name))

    def _numbers(self, name: str) -> Sequence[int]:
        folder = self.root / name
        if not is_model_name(name) or not folder.is_dir():
            return []
        return sorted(int(path.name) for path in folder.iterdir() if _VERSION.fullmatch(path.name))

    def _read(self, name: str, number: int) -> ModelVersion | None:
        folder = self.path(name, number)
        document = protocol.read_json(str(folder / MODEL_FILE))
        if document is None:
            return None
        with suppress(ValidationError):
            return ModelVersion.model_validate({**document, "auditTrail": [*_audit(folder)]})
        return None

    def _not_found(
        self, name: str, version: int | None, numbers: Sequence[int]
    ) -> base.ModelNotFound:
        if numbers:
            allowed = ", ".join(map(str, numbers))
            return base.ModelNotFound(f"model {name} has no version {version}; it has {allowed}",
                                      code=base.NOT_FOUND, allowed=allowed)  # fmt: skip
        guess = difflib.get_close_matches(name, self._names(), n=1)
        hint = f"; did you mean {guess[0]}?" if guess else ""
        return base.ModelNotFound(f"there is no model {name}{hint}", code=base.NOT_FOUND)

    def _require_free(self, request: PublishRequest) -> None:
        """Early, so that nothing is copied for a version that is taken; asked again at the end."""
        if request.version is not None and request.version in self._numbers(request.name):
            raise base.PublishRefused(
                f"version {request.version} of {request.name} is another model already",
                code=base.VERSION_TAKEN, found=str(request.version),
                allowed=f"no version, or one from {self._numbers(request.name)[-1] + 1} on",
            )  # fmt: skip

    def _make(self, request: PublishRequest, build: Path) -> ModelVersion:
        _remove_tree(build)
        build.mkdir()
        self._copy(Path(request.directory), build)
        files = _described(build)
        digest = protocol.tree_sha256(files)
        if digest != request.checkpoint.sha256:
            raise base.RegistryUnusable(
                f"the files in {request.directory} are not those that were sealed",
                code=base.CHECKPOINT_CHANGED, found=digest, allowed=request.checkpoint.sha256,
                next_step="the newest valid checkpoint has to be chosen again",
            )  # fmt: skip
        (build / AUDIT_FILE).touch()
        with detached.locked(str(self._lock(request.name))):
            self._require_free(request)
            number = request.version or max(self._numbers(request.name), default=0) + 1
            document = ModelVersion(
                **request.lineage(), version=number, sha256=digest,
                files=tuple(ModelFile(**entry) for entry in files),
            )  # fmt: skip
            self._place(build, document)
        return document

    def _place(self, build: Path, document: ModelVersion) -> None:
        target = self.path(document.name, document.version)
        text = document.model_dump(mode="json", exclude={"auditTrail"})
        protocol.write_json(str(build / MODEL_FILE), text, mode=FILE_MODE)
        for folder, _, _ in os.walk(build, topdown=False):
            protocol.fsync_dir(folder)
            if Path(folder) != build:
                Path(folder).chmod(FOLDER_MODE)
        build.rename(target)
        # Only now: a folder that is not writable cannot be given another parent.
        target.chmod(FOLDER_MODE)
        protocol.fsync_dir(str(target.parent))

    def _copy(self, source: Path, build: Path) -> None:
        files = [(name, path) for name, path in protocol.list_files(str(source))
                 if name != protocol.MANIFEST]  # fmt: skip
        _require_copyable(source, files, build)
        sizes = {name: Path(path).stat().st_size for name, path in files}
        self._report(objects_total=len(files), bytes_total=sum(sizes.values()), phase="copying")
        for name, path in files:
            if self._worker is not None and self._worker.stop.is_set():
                raise PublishStopped
            target = build / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy_file(path, target)
            if self._worker is not None:
                self._worker.add(objects_done=1, bytes_done=sizes[name])
        self._report(phase="checking")

    def _report(self, **numbers: Any) -> None:
        if self._worker is not None:
            self._worker.report(**numbers)

    def _clean(self, name: str, *, but: Path) -> None:
        """Remove what publications that died have left. Living ones hold one of two locks."""
        for work in (self.root / name / ".tmp").iterdir():
            if work == but or (detached.Work(str(work)).claims() and any(work.glob("answers/*"))):
                continue
            with ExitStack() as held:
                if _try_hold(held, work / "build.lock") and _try_hold(held, work / "lock"):
                    _remove_tree(work)


def _require_name(name: str) -> None:
    if not is_model_name(name):
        raise base.PublishRefused(f"{name!r} cannot name a model", code=base.BAD_NAME,
                                  found=repr(name), allowed=NAME_ALLOWED)  # fmt: skip


def _require_copyable(source: Path, files: list[tuple[str, str]], build: Path) -> None:
    if not files:
        raise base.RegistryUnusable(
            f"there are no files in {source}", code=base.NO_FILES, found="0 files",
            allowed="a sealed checkpoint", next_step="see whether the job has saved anything",
        )  # fmt: skip
    reserved = [name for name, _ in files if name in _RESERVED]
    if reserved:
        raise base.PublishRefused(
            f"the checkpoint has a file {reserved[0]}, a name that the registry needs",
            code=base.RESERVED_NAME, found=reserved[0], allowed=f"not {' or '.join(_RESERVED)}",
            next_step="let the trainer save it under another name",
        )  # fmt: skip
    need = sum(Path(path).stat().st_size for _, path in files) * (100 + SPARE_PERCENT) // 100
    free = shutil.disk_usage(build).free
    if need > free:
        raise _full(f"{need} bytes are needed, {free} bytes are free")


def _copy_file(path: str, target: Path) -> None:
    """A synced, read-only copy."""
    try:
        shutil.copyfile(path, target)
    except FileNotFoundError as error:
        raise base.RegistryUnusable(
            f"{path} is gone since it was sealed", code=base.CHECKPOINT_CHANGED, found="no file",
            allowed="a sealed checkpoint", next_step="choose the newest valid checkpoint again",
        ) from error  # fmt: skip
    with target.open("rb") as file:
        os.fsync(file.fileno())
    target.chmod(FILE_MODE)


def _full(found: str) -> base.RegistryUnusable:
    return base.RegistryUnusable(
        f"the registry's disk is too full: {found}", code=base.DISK_FULL, found=found,
        allowed="room for the model", next_step="make room under model_root and register again",
    )  # fmt: skip


def translated(error: OSError) -> base.RegistryUnusable:
    """An error of the operating system under the model root, as one of ours."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return _full(os.strerror(error.errno or 0))
    return base.RegistryUnusable(
        f"the registry cannot be used: {error}", code=base.UNUSABLE, found=str(error),
        allowed="a folder that this user can write",
    )  # fmt: skip


def _already(found: ModelVersion, wanted: int) -> base.PublishRefused:
    return base.PublishRefused(
        f"this checkpoint of job {found.job} is version {found.version} of {found.name} already",
        code=base.VERSION_TAKEN, found=str(wanted), allowed=f"{found.version} or no version",
    )  # fmt: skip


def _lock_build(work: Path) -> AbstractContextManager[Any]:
    """Hold the one lock under which this identity is made."""
    while True:
        work.mkdir(parents=True, exist_ok=True)
        stack = ExitStack()
        # Another publication may have cleaned the folder away just now.
        with suppress(FileNotFoundError):
            stack.enter_context(detached.locked(str(work / "build.lock")))
            return stack


def _try_hold(held: ExitStack, path: Path) -> bool:
    try:
        lock = detached.try_lock(str(path))
    except FileNotFoundError:
        return False
    if lock is not None:
        held.callback(os.close, lock)
    return lock is not None


def _described(folder: Path) -> list[dict[str, Any]]:
    return [entry for entry in protocol.describe_files(str(folder))
            if entry["name"] not in _RESERVED]  # fmt: skip


def _what(known: object, found: object) -> str:
    if found is None:
        return "missing"
    return "changed" if known else "not part of it"


def _audit(folder: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = (folder / AUDIT_FILE).read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines:
        with suppress(ValueError):  # a line that a crash cut off was never acknowledged
            entry = json.loads(line)
            yield {key: value for key, value in entry.items() if key != "v"}


def _add_line(descriptor: int, line: bytes) -> None:
    end = os.lseek(descriptor, 0, os.SEEK_END)
    if end and os.pread(descriptor, 1, end - 1) != b"\n":
        line = b"\n" + line
    os.write(descriptor, line)
    os.fsync(descriptor)


def _remove_tree(top: Path) -> None:
    for folder, names, _ in os.walk(top):
        for name in names:
            Path(folder, name).chmod(0o755)
    shutil.rmtree(top, ignore_errors=True)
