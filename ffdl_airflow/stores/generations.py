"""Generations on disk: read, check, publish, mend, remove.

A generation is read-only from the moment that it is there, and it comes and goes by one rename.
Whoever changes what is under ``<store>/`` holds ``<store>/lock`` for that short moment.
"""

import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from ffdl_airflow.agent import detached, protocol
from ffdl_airflow.core.data import GENERATION_FILE, Generation, GenerationFile
from ffdl_airflow.stores.layout import DATA, StoreLayout

FILE_MODE = 0o444
PROGRAM_MODE = 0o555
FOLDER_MODE = 0o555
OPEN_FOLDER_MODE = 0o755


def load(directory: Path) -> Generation | None:
    """The manifest of the generation in ``directory``; None where there is no readable one."""
    document = protocol.read_json(str(directory / GENERATION_FILE))
    try:
        return None if document is None else Generation.model_validate(document)
    except ValidationError:
        return None


def with_damage(directory: Path, files: Iterable[GenerationFile]) -> list[GenerationFile]:
    """Those files that are missing, have another size, or were written to and are wrong.

    Cheap: one stat for each; only what is younger than the manifest, which comes last, is read.
    """
    manifest = _stat(directory / GENERATION_FILE)
    sealed_ns = manifest.st_mtime_ns if manifest is not None else None
    return [
        file
        for file in files
        if _is_damaged(directory / DATA / file.key, file, sealed_ns=sealed_ns)
    ]


def _is_damaged(path: Path, file: GenerationFile, *, sealed_ns: int | None) -> bool:
    found = _stat(path)
    if found is None or found.st_size != file.size:
        return True
    if sealed_ns is None or found.st_mtime_ns <= sealed_ns:
        return False
    if protocol.sha256_file(str(path)) != file.sha256:
        return True
    os.utime(path, ns=(found.st_atime_ns, sealed_ns))  # looked at, and right: not again next time
    return False


def strangers(directory: Path, generation: Generation) -> list[str]:
    """Files that somebody has put into the generation."""
    known = _keys(generation)
    return [key for key, _ in protocol.list_files(str(directory / DATA)) if key not in known]


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def verify(directory: Path) -> tuple[str, ...]:
    """What is wrong with the generation in ``directory``, in words; empty where nothing is.

    Every byte is read, so this takes as long as the data are large.
    """
    generation = load(directory)
    if generation is None:
        return (f"no readable {GENERATION_FILE}",)
    found = dict(protocol.list_files(str(directory / DATA)))
    problems = [f"{key} does not belong to it" for key in found if key not in _keys(generation)]
    for file in generation.files:
        if file.key not in found:
            problems.append(f"{file.key} is missing")
        elif (size := Path(found[file.key]).stat().st_size) != file.size:
            problems.append(f"{file.key} has {size} bytes, not {file.size}")
        elif protocol.sha256_file(found[file.key]) != file.sha256:
            problems.append(f"{file.key} has another SHA-256")
    return tuple(problems)


def _keys(generation: Generation) -> set[str]:
    return {file.key for file in generation.files}


def publish(layout: StoreLayout, build: Path, generation: Generation) -> None:
    """Make ``build`` (with ``data/``) the generation. If it is there already, mend and keep that.

    Afterwards ``build`` is gone. A crash at any point leaves either nothing or the whole.
    """
    protocol.write_json(str(build / GENERATION_FILE), generation.model_dump(mode="json"))
    _close_folders(build / DATA)
    target = layout.generation(generation.id)
    with detached.locked(str(layout.lock)):
        if target.exists():
            if load(target) is not None:
                _mend(target, generation, {f.key: build / DATA / f.key for f in generation.files})
                remove_tree(build)
                return
            remove_tree(target)
        build.rename(target)
        # Only now: a folder that is not writable cannot be given another parent.
        target.chmod(FOLDER_MODE)
        protocol.fsync_dir(str(layout.root))


def _close_folders(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        protocol.fsync_dir(folder)
        Path(folder).chmod(FOLDER_MODE)


def mend(layout: StoreLayout, generation: Generation, replacements: Mapping[str, Path]) -> None:
    """Put ``replacements`` (key → file with the right bytes) where a file is missing or wrong."""
    with detached.locked(str(layout.lock)):
        _mend(layout.generation(generation.id), generation, replacements)


def _mend(target: Path, generation: Generation, replacements: Mapping[str, Path]) -> None:
    data = target / DATA
    for file in with_damage(target, generation.files):
        if file.key in replacements:
            with _Opened(data, (data / file.key).parent):
                replacements[file.key].replace(data / file.key)
    for name in generation.directories:
        if not (data / name).is_dir():
            with _Opened(data, data / name):
                pass
    for file in generation.files:
        if file.executable and not os.access(data / file.key, os.X_OK):
            (data / file.key).chmod(PROGRAM_MODE)
    _reclose(target, generation)


def _reclose(target: Path, generation: Generation) -> None:
    """A crash in the middle of mending leaves folders open."""
    keys = [file.key for file in generation.files] + [
        f"{name}/." for name in generation.directories
    ]
    folders = {parent for key in keys for parent in PurePosixPath(DATA, key).parents}
    for folder in folders:
        if stat.S_IMODE((target / folder).stat().st_mode) != FOLDER_MODE:
            (target / folder).chmod(FOLDER_MODE)


class _Opened:
    """Makes a folder below ``top`` (which may be missing in part) writable for a moment."""

    def __init__(self, top: Path, folder: Path) -> None:
        self._folders = [p for p in (folder, *folder.parents) if p == top or top in p.parents]

    def __enter__(self) -> None:
        for folder in reversed(self._folders):
            folder.mkdir(exist_ok=True)
            folder.chmod(OPEN_FOLDER_MODE)

    def __exit__(self, *_: object) -> None:
        for folder in self._folders:
            protocol.fsync_dir(str(folder))
            folder.chmod(FOLDER_MODE)


def remove_files(layout: StoreLayout, generation: str, keys: Iterable[str]) -> None:
    """Take broken files out, so that the next ``ensure`` fetches exactly these again."""
    data = layout.data(generation)
    with detached.locked(str(layout.lock)):
        for key in keys:
            with _Opened(data, (data / key).parent):
                (data / key).unlink(missing_ok=True)


def remove_tree(top: Path) -> None:
    """Remove a read-only tree. It may be gone, or in part."""
    for folder, names, _ in os.walk(top):
        Path(folder).chmod(OPEN_FOLDER_MODE)
        for name in names:
            if not Path(folder, name).is_symlink():
                Path(folder, name).chmod(OPEN_FOLDER_MODE)
    if top.exists():
        shutil.rmtree(top)
