"""A replica's working directory: its own copy of the code.

A generation is shared by all jobs that use it, so nobody may work in it: what a trainer writes
beside its program stays in its placement and goes with it.
"""

import errno
import os

WRITABLE = 0o200


def make(source: str, target: str) -> None:
    """Copy the code to ``target``, whole or not at all; one that is there stays as it is."""
    import shutil  # noqa: PLC0415 - it brings four compression libraries along

    if os.path.exists(target):
        return
    temporary = "%s.%d.tmp" % (target, os.getpid())
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        shutil.copytree(source, temporary, copy_function=shutil.copy)
    except shutil.Error as error:  # a list of (from, to, why), one for each file
        said = "; ".join(str(entry[2]) for entry in error.args[0])
        raise OSError(errno.ENOSPC if "No space left" in said else errno.EIO, said) from error
    for folder, _, names in os.walk(temporary):
        for path in [folder] + [os.path.join(folder, name) for name in names]:
            os.chmod(path, os.stat(path).st_mode | WRITABLE)
    os.rename(temporary, target)
