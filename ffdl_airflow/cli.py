"""``ffdl …``: the same stages as in Airflow, from a shell.

Exit codes: 0 fine · 1 the job failed · 2 the user's input · 3 infrastructure · 4 not found · 5 our
own fault · 130 interrupted · 143 told to end (SIGTERM). No traceback for anything but 5.
"""

import argparse
import errno
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ffdl_airflow import __version__, commands, console
from ffdl_airflow.core.errors import FfdlError, InfrastructureError

EXIT_BUG = 5
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
_OF_THE_MACHINE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO,
    errno.ENAMETOOLONG, errno.ELOOP, errno.EMFILE, errno.ENFILE,
)  # fmt: skip
"""What the system says of a file and no code of ours can help."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: as an interrupt, with an exit code of its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = parser().parse_args(arguments)
    # A signal may come while a connection is being closed, and SQLAlchemy would log its traceback.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    try:
        with _ends_on_sigterm():
            return _run(options)
    except FfdlError as error:
        _settle_output()
        sys.stderr.write(f"ffdl: {error.message}\n")
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        sys.stderr.write(f"\nffdl: {_interrupted(options)}\n")
        return EXIT_TERMINATED if isinstance(interrupt, Terminated) else EXIT_INTERRUPTED
    except BrokenPipeError:
        _give_up_output()
        return 0
    except Exception as error:  # noqa: BLE001 - the last door: our own fault, told as such
        if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE and error.filename:
            _settle_output()
            sys.stderr.write(f"ffdl: {error.filename}: {error.strerror}. Next: name a place that "
                             "this user may use, or make it usable\n")  # fmt: skip
            return InfrastructureError.exit_code
        traceback.print_exc()
        sys.stderr.write("ffdl: this is a fault of ffdl itself; please report it\n")
        return EXIT_BUG


def parser() -> argparse.ArgumentParser:
    """The commands and their arguments."""
    root = argparse.ArgumentParser(prog="ffdl", description="Training jobs, stage by stage.")
    root.add_argument("--version", action="version", version=f"ffdl {__version__}")
    commands_ = root.add_subparsers(metavar="COMMAND", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("-o", "--output", choices=("table", "wide", "json", "yaml"),
                        default="table")  # fmt: skip
    for name, text, run, spec in commands.TABLE:
        sub = commands_.add_parser(name, help=text, description=text, parents=[shared])
        for flags, settings in spec:
            sub.add_argument(*flags, **settings)
        sub.set_defaults(run=run)
    return root


def _run(options: argparse.Namespace) -> int:
    """The command, with all of its output on its way: what is wrong with that is told too."""
    code = int(options.run(options))
    with console.writing():
        sys.stdout.flush()
    return code


@contextmanager
def _ends_on_sigterm() -> Iterator[None]:
    """While a command runs SIGTERM ends it as Ctrl-C does. Signals are the main thread's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(*_: object) -> None:
    raise Terminated


def _interrupted(options: argparse.Namespace) -> str:
    job = getattr(options, "job", None) or "JOB"
    return (f"interrupted; a running gang goes on, `ffdl run --job {job}` follows it, "
            f"`ffdl stop {job}` ends it")  # fmt: skip


def _settle_output() -> None:
    """What was written before an error is shown; what cannot be is given up."""
    try:
        sys.stdout.flush()
    except OSError:
        _give_up_output()


def _give_up_output() -> None:
    """What is left in the buffer goes nowhere, so that the interpreter does not try again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
