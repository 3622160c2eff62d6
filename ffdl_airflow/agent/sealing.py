"""Checkpoints on disk: sealing, moving into place, and which old ones may go.

Blocking work on files, run beside the loop. A sealed checkpoint is a directory ``step-<12 digits>``
with a manifest; it appears under that name whole or not at all.
"""

import ctypes
import os
import re
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from . import protocol

TMP_DIR = "tmp"
PART_DIR = re.compile(r"^step-\d{12}\.\d+\.rank-\d+-[0-9a-f]+$")
"""Name of the directory in ``tmp`` that a trainer's rank writes into; each block has its own."""
KEEP_DIR = "KEEP"
"""Folder of claims: a file named like a step directory keeps that directory from being deleted."""
REPLACED = ".replaced"
AT_FDCWD = -100
RENAME_EXCHANGE = 2  # linux/fs.h

Signature = Tuple[Tuple[str, int, int], ...]


class Writer(NamedTuple):
    """Who seals: the placement that writes now, and its attempt."""

    placement: int
    attempt: int


class SealError(RuntimeError):
    """A checkpoint cannot be accepted; the text says why."""


def part_path(checkpoint_dir: str, name: str) -> str:
    """Where a rank writes its part before it is sealed.

    Raises ``ValueError`` for a name that cannot be a part's.
    """
    if not PART_DIR.match(name):
        message = "%r is no directory of a checkpoint being written" % name
        raise ValueError(message)
    return os.path.join(checkpoint_dir, TMP_DIR, name)


def merge(parts: List[Tuple[str, str]]) -> str:
    """Move the files of all parts, ``(who wrote it, directory)``, into the first's directory.

    Returns that directory. Raises ``SealError`` that names the file which two have written, before
    anything is moved.
    """
    (_, target), writers = parts[0], {}  # type: Tuple[str, str], Dict[str, str]
    moves = []
    for who, folder in parts:
        for name, path in protocol.list_files(folder):
            if name in writers:
                message = "%s and %s both wrote %s: with shards=%d each rank needs names of its own"
                raise SealError(message % (writers[name], who, name, len(parts)))
            writers[name] = who
            moves.append((path, os.path.join(target, *name.split("/"))))
    for path, to in moves:
        if path != to:
            os.makedirs(os.path.dirname(to), exist_ok=True)
            os.rename(path, to)
    for _, folder in parts[1:]:
        remove(folder)
    return target


def differs(folder: str, sealed: str, *, by_content: bool) -> bool:
    """Whether ``folder`` has other files than the checkpoint ``sealed``.

    Names and sizes are compared, the bytes as well ``by_content``. False where ``sealed`` has been
    deleted meanwhile.
    """
    manifest = protocol.read_json(os.path.join(sealed, protocol.MANIFEST))
    if manifest is None:
        return False
    here = {name: os.path.getsize(path) for name, path in protocol.list_files(folder)}
    if here != {entry["name"]: entry["size"] for entry in manifest["files"]}:
        return True
    if not by_content:
        return False
    return protocol.tree_sha256(protocol.describe_files(folder)) != str(manifest["sha256"])


def seal(
    checkpoint_dir: str,
    source: str,
    *,
    step: int,
    by: Writer,
    world_size: int,
    generation: Optional[str],
) -> Dict[str, Any]:
    """Seal ``source`` and give it its name. Returns the body of ``CheckpointSealed``.

    Raises ``SealError`` or ``OSError``; then no step directory has changed.
    """
    began = time.monotonic()
    if not os.path.isdir(source):
        message = "%s does not exist" % source
        raise SealError(message)
    if not any(True for _ in protocol.list_files(source)):
        message = "no file was written into %s" % source
        raise SealError(message)
    require_writer(checkpoint_dir, by.placement)
    manifest = protocol.seal_checkpoint(
        source, step=step, attempt=by.attempt, world_size=world_size, generation=generation
    )
    for folder, _, _ in os.walk(source, topdown=False):
        protocol.fsync_dir(folder)
    final = os.path.join(checkpoint_dir, protocol.step_dir(step))
    require_writer(checkpoint_dir, by.placement)  # again: hashing may have taken minutes
    if source != final:
        _move(source, final)
    protocol.fsync_dir(checkpoint_dir)
    return {
        "step": step,
        "path": final,
        "sha256": manifest["sha256"],
        "bytes": sum(entry["size"] for entry in manifest["files"]),
        "seconds": round(time.monotonic() - began, 3),
    }


def become_writer(checkpoint_dir: str, placement: int) -> None:
    """Whoever sealed here before seals nothing any more. Raises ``SealError`` for one given up."""
    if require_writer(checkpoint_dir, placement) < placement:
        path = os.path.join(checkpoint_dir, protocol.WRITER)
        protocol.write_json(path, {"v": protocol.VERSION, "placement": placement})


def require_writer(checkpoint_dir: str, placement: int) -> int:
    """The placement that writes; raises ``SealError`` where that is a newer one by now."""
    found = protocol.read_json(os.path.join(checkpoint_dir, protocol.WRITER)) or {}
    newest = int(found.get("placement") or 0)
    if newest > placement:
        message = "placement %d was given up: placement %d writes the checkpoints by now"
        raise SealError(message % (placement, newest))
    return newest


def clear_tmp(checkpoint_dir: str) -> List[str]:
    """Remove what earlier attempts left half-written. Returns the names."""
    folder = os.path.join(checkpoint_dir, TMP_DIR)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    for name in names:
        path = os.path.join(folder, name)
        final = os.path.join(checkpoint_dir, name[: -len(REPLACED)])
        if name.endswith(REPLACED) and not os.path.exists(final):
            os.rename(path, final)  # a crash came between the two renames of _move
        else:
            remove(path)
    return names


def remove(path: str) -> None:
    """Remove a directory with everything in it; harmless where there is none."""
    import shutil  # noqa: PLC0415 - it brings four compression libraries along

    shutil.rmtree(path, ignore_errors=True)


def expire(
    checkpoint_dir: str, *, keep: int, sealed_now: Set[int], resume_step: Optional[int]
) -> List[str]:
    """Delete sealed checkpoints beyond the newest ``keep``. Returns what was deleted.

    Only those count that this attempt sealed or resumed from or that are older: a newer one of an
    earlier attempt was passed over when the attempt began, so it cannot be relied on and must not
    push out a good one. Claimed ones stay, and so does the one that the attempt resumed from until
    a newer one is sealed.
    """
    newest = max(sealed_now) if sealed_now else None
    counted = [
        (step, path)
        for step, path in protocol.list_checkpoints(checkpoint_dir)
        if os.path.exists(os.path.join(path, protocol.MANIFEST))
        and (step in sealed_now or (resume_step is not None and step <= resume_step))
    ]
    deleted = []
    for step, path in counted[keep:]:
        needed = step == resume_step and (newest is None or newest <= step)
        claim = os.path.join(checkpoint_dir, KEEP_DIR, protocol.step_dir(step))
        if not needed and not os.path.lexists(claim):
            os.unlink(os.path.join(path, protocol.MANIFEST))  # never a half one that looks whole
            remove(path)
            deleted.append(path)
    return deleted


def unsealed(checkpoint_dir: str) -> Dict[int, Signature]:
    """Step directories without a manifest, and what they look like now."""
    return {
        step: signature(path)
        for step, path in protocol.list_checkpoints(checkpoint_dir)
        if not os.path.exists(os.path.join(path, protocol.MANIFEST))
    }


def signature(path: str) -> Signature:
    """(name, bytes, mtime in ns) of each file: equal while nobody writes."""
    found = []
    for name, file in protocol.list_files(path):
        try:
            status = os.stat(file)
        except FileNotFoundError:
            continue
        found.append((name, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _move(source: str, final: str) -> None:
    """Give ``source`` the name ``final``; a checkpoint of that name is replaced in one step."""
    if not os.path.lexists(final):
        os.rename(source, final)
        return
    if _exchange(source, final):
        remove(source)
        return
    aside = os.path.join(os.path.dirname(source), os.path.basename(final) + REPLACED)
    os.rename(final, aside)
    os.rename(source, final)
    remove(aside)


def _exchange(one: str, other: str) -> bool:
    """Swap two names at once; False where the C library or the file system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    failed = rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    return not failed
