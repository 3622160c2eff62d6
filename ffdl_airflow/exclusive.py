"""One at a time: a lock that lasts as long as what is done under it, or as its process."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ffdl_airflow.core.errors import UserError


@contextmanager
def exclusive(path: Path, refusal: UserError, *, mode: int = 0o644) -> Iterator[None]:
    """Hold the file's lock; raises ``refusal`` where another process has it.

    The file and its folder are made where they are missing. ``mode``: the new file's.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise refusal from None
    else:
        yield
    finally:
        os.close(descriptor)
