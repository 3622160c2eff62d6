"""Where the agents of a placement listen: a short folder that only its owner may enter.

Short, because the path of a Unix socket has 107 bytes at most and a state directory may be deep.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from ffdl_airflow.core.errors import InfrastructureError

MOST_BYTES = 107
"""Longest path of a Unix socket (unix(7): ``sun_path`` without its last zero)."""
_NAME_BYTES = 24
"""Room for ``/evaluator-1234567.sock``. Chosen: longer than any replica's name."""


def folder_for(placement_folder: Path) -> Path:
    """Folder of a placement's sockets: in the temporary folder, in /tmp where that is too deep."""
    digest = hashlib.sha256(str(placement_folder).encode()).hexdigest()[:8]
    wanted = Path(tempfile.gettempdir()) / f"ffdl-{os.getuid()}" / digest
    if len(os.fsencode(wanted)) + _NAME_BYTES <= MOST_BYTES:
        return wanted
    return Path("/tmp") / f"ffdl-{os.getuid()}" / digest  # noqa: S108 - checked for its owner below


def make(folder: Path) -> None:
    """Make the folder, mode 0700. Raises InfrastructureError where it is somebody else's."""
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o077 or path.is_symlink():
            raise InfrastructureError(
                f"{path} belongs to user {found.st_uid} with mode {found.st_mode & 0o777:o}, "
                "sockets need a folder of our own with mode 700",
                next_step="remove it, or set TMPDIR to a folder of your own",
            )


def remove(folder: Path) -> None:
    """Remove the folder of a placement that is over; harmless where there is none."""
    shutil.rmtree(folder, ignore_errors=True)
