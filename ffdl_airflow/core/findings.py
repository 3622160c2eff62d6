"""What a check of an installation or a cluster has found: one line for a person each."""

from dataclasses import dataclass

from ffdl_airflow.core.errors import FfdlError
from ffdl_airflow.core.text_enum import TextEnum


class Level(TextEnum):
    """How bad it is. A PROBLEM stops jobs; with a WARNING they run, and something is missing."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line: what was looked at, what was found, and what to do (nothing where it is OK)."""

    check: str
    level: Level
    found: str
    do: str = ""

    def row(self) -> dict[str, str]:
        """As it is shown."""
        return {"state": str(self.level), "check": self.check, "found": self.found, "do": self.do}


def ok(check: str, found: str) -> Finding:
    """It is as it should be."""
    return Finding(check=check, level=Level.OK, found=found)


def warning(check: str, found: str, do: str) -> Finding:
    """Jobs run, and something is missing."""
    return Finding(check=check, level=Level.WARNING, found=found, do=do)


def problem(check: str, found: str, do: str) -> Finding:
    """Jobs are stopped by it."""
    return Finding(check=check, level=Level.PROBLEM, found=found, do=do)


def of_error(check: str, error: FfdlError) -> Finding:
    """An error that was met while looking."""
    where = "" if error.evidence in error.cause else f" ({error.evidence})"
    return problem(check, f"{error.cause}{where}", error.next_step)
