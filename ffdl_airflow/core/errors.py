"""The one tree of errors. Each answers: what happened, whose fault, is a retry useful, what now.

::

    FfdlError
    ├── UserError            the user's input; exit code 2; a retry does not help
    │   └── SpecError        of a spec, with the path of each field
    ├── InfrastructureError  the place where we run; exit code 3; a retry may help
    ├── NotFoundError        no such job, model or file; exit code 4
    ├── AttemptFailed        an attempt failed and costs one of ``backoffLimit``; retry: yes
    ├── TrainingFailed       the job is over and has failed; exit code 1; retry: no
    └── JobStopped           the job was stopped by a person; exit code 1; retry: no

Not for: bugs of our own. Those stay what Python raises, and the command line answers with 5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


class FfdlError(Exception):
    """Base. ``cause`` one sentence, ``evidence`` where to look, ``next_step`` what to do now."""

    exit_code: ClassVar[int] = 5
    fault: ClassVar[str] = "us"
    retryable: ClassVar[bool] = False
    default_next_step: ClassVar[str] = "report this with the output of `ffdl events JOB`"

    def __init__(self, cause: str, *, evidence: str = "", next_step: str = "") -> None:
        self.cause = cause
        self.evidence = evidence
        self.next_step = next_step or self.default_next_step
        parts = [cause, f"Evidence: {evidence}" if evidence else "", f"Next: {self.next_step}"]
        self.message = ". ".join(part.rstrip(". ") for part in parts if part) + "."
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross process boundaries in Airflow; keyword-only arguments need this."""
        return (_rebuild, (type(self), self.__dict__.copy()))


def _rebuild(kind: type[FfdlError], state: dict[str, Any]) -> FfdlError:
    error = kind.__new__(kind)
    error.__dict__.update(state)
    error.args = (state["message"],)
    return error


class UserError(FfdlError):
    """The user's input: nothing was created."""

    exit_code = 2
    fault = "user"
    default_next_step = "correct the input and try again"


@dataclass(frozen=True)
class FieldProblem:
    """One wrong field: its path, what was found there and what is allowed."""

    path: str
    found: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.path}: found {self.found}, allowed: {self.allowed}"


class SpecError(UserError):
    """A spec is wrong. ``problems`` has every field that is, not just the first."""

    default_next_step = "correct the fields and try again; nothing was created"

    def __init__(self, problems: Sequence[FieldProblem], *, source: str = "the job spec") -> None:
        self.problems = tuple(problems)
        self.source = source
        super().__init__(f"{source} is not valid: " + "; ".join(str(p) for p in self.problems))


class InfrastructureError(FfdlError):
    """The place where we run: disk, ledger, cluster, another host."""

    exit_code = 3
    fault = "infrastructure"
    retryable = True
    default_next_step = "mend what is named and try again; nothing acknowledged is lost"


class NotFoundError(FfdlError):
    """There is no such thing."""

    exit_code = 4
    fault = "user"
    default_next_step = "`ffdl get` lists the jobs, `ffdl registry` the models"


class CodedError(FfdlError):
    """Base of adapters' errors: a reason code, what was found and what is allowed.

    The caller adds the path of the field in the user's spec.
    """

    def __init__(self, cause: str, *, code: str, found: str = "", allowed: str = "",
                 next_step: str = "") -> None:  # fmt: skip
        self.code = code
        self.found = found
        self.allowed = allowed
        super().__init__(cause, next_step=next_step)

    def report(self) -> dict[str, Any]:
        """The error as a plain document; :class:`ErrorReport` reads it."""
        return {
            "code": self.code, "text": self.cause, "found": self.found, "allowed": self.allowed,
            "next_step": self.next_step, "fault": self.fault, "retryable": self.retryable,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ErrorReport:
    """A :class:`CodedError` of another process, as it has reported it."""

    code: str
    text: str
    found: str
    allowed: str
    next_step: str
    fault: str
    retryable: bool


class _VerdictError(FfdlError):
    def __init__(self, cause: str, *, verdict: Mapping[str, Any], evidence: str = "",
                 next_step: str = "") -> None:  # fmt: skip
        self.verdict = dict(verdict)
        super().__init__(cause, evidence=evidence, next_step=next_step)


class AttemptFailed(_VerdictError):
    """An attempt failed and used one of ``backoffLimit``; the next try resumes."""

    exit_code = 1
    fault = "job"
    retryable = True
    default_next_step = "the next try resumes from the newest valid checkpoint"


class TrainingFailed(_VerdictError):
    """The job has failed for good."""

    exit_code = 1
    fault = "job"
    default_next_step = "see `ffdl describe JOB` and the tail of the first failing rank"


class JobStopped(FfdlError):
    """The job was stopped on request."""

    exit_code = 1
    fault = "user"
    default_next_step = "continue it with `ffdl run --job JOB` or clear the task"
