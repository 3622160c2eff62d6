"""A replica's working directory: its own copy of the code.

A generation is shared by all jobs that use it, so nobody may work in it: what a trainer writes
beside its program stays in its placement and goes with it.
"""

import os
import shutil
from pathlib import Path

_WRITABLE = 0o200


def make(source: Path, target: Path) -> None:
    """Copy the code to ``target``, whole or not at all; one that is there stays as it is."""
    if target.exists():
        return
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    shutil.copytree(source, temporary, copy_function=shutil.copy)
    for folder, _, names in os.walk(temporary):
        for path in (Path(folder), *(Path(folder, name) for name in names)):
            path.chmod(path.stat().st_mode | _WRITABLE)
    try:
        temporary.rename(target)
    except OSError:
        shutil.rmtree(temporary)  # another driver was quicker
        if not target.exists():
            raise
