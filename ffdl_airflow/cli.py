"""``ffdl …``: the same stages as in Airflow, from a shell.

Exit codes: 0 fine · 1 the job failed · 2 the user's input · 3 infrastructure · 4 not found · 5 our
own fault · 130 interrupted. No traceback for anything but 5.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

from ffdl_airflow import commands
from ffdl_airflow.core.errors import FfdlError

EXIT_BUG = 5
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except FfdlError as error:
        sys.stderr.write(f"ffdl: {error.message}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("\nffdl: interrupted; a running gang goes on, `ffdl stop JOB` ends it\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:  # noqa: BLE001 - the last door: our own fault, told as such
        traceback.print_exc()
        sys.stderr.write("ffdl: this is a fault of ffdl itself; please report it\n")
        return EXIT_BUG


def parser() -> argparse.ArgumentParser:
    """The commands and their arguments."""
    root = argparse.ArgumentParser(prog="ffdl", description="Training jobs, stage by stage.")
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


if __name__ == "__main__":
    sys.exit(main())
