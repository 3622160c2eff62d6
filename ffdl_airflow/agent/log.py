"""The agent's own log: one line to standard error, which the engine keeps in a file."""

import sys

from . import protocol


def log_fault(where: str) -> None:
    """Write the exception that is being handled, with its traceback."""
    import traceback  # noqa: PLC0415 - 10 ms of CPU that only a fault is worth

    log("%s: %s" % (where, traceback.format_exc()))


def log(text: str) -> None:
    """Write a line with the time. A log that cannot be written is no reason to end a gang."""
    try:
        sys.stderr.write("%s %s\n" % (protocol.now_iso(), text))
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
