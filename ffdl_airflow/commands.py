"""The commands of ``ffdl``: each reads its arguments, calls a stage and shows the answer."""

import argparse
import json
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ffdl_airflow import ahead, console, report, services
from ffdl_airflow.agent.protocol import who
from ffdl_airflow.ahead import read_manifest, warn
from ffdl_airflow.core.errors import (
    FfdlError,
    InfrastructureError,
    JobStopped,
    NotFoundError,
    TrainingFailed,
    UserError,
)  # fmt: skip
from ffdl_airflow.core.events import Event
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.job import TrainingJob, job_id_for
from ffdl_airflow.core.lifecycle import JobState, Phase, fold
from ffdl_airflow.engines.base import ProcessLog, SupportsTail
from ffdl_airflow.exclusive import exclusive
from ffdl_airflow.ledger.base import JobRow
from ffdl_airflow.settings import from_environment
from ffdl_airflow.stages import look, wishes
from ffdl_airflow.stages.advance import Driver, Ended, Outcome
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.drive import drive
from ffdl_airflow.stages.reap import reap
from ffdl_airflow.stages.submit import submit, user_name, warnings

_FOLLOW_S = 0.3
"""Time between two looks at a log that is followed. Chosen."""
_SHORT = ("job", "phase", "replicas/gpus", "step", "duration", "reason")
_WIDE = ("job", "name", "phase", "replicas/gpus", "utilization", "duration", "generation", "model",
         "sha256", "reason")  # fmt: skip

Options = argparse.Namespace


def run(options: Options) -> int:
    """Run a job to its end, or go on with one."""
    job = read_manifest(options.file) if options.file else None
    begun = options.job is not None
    deps = _deps_with(options.job) if begun else _deps()
    if begun:
        _events(deps, options.job)
    job_id = options.job = options.job or _new_id(deps, job)
    with _only_driver(deps, job_id):
        if begun:
            _continue(deps, job_id, job)
        beside = console.beside(options.output)
        console.line(f"job {job_id}", to=beside)
        warn(warnings(deps, job) if job else [])
        with console.ProgressDisplay(beside) as display:
            goal = Goal(options.until)
            outcome = drive(deps, Driver(deps, job_id), goal, on_wait=display.waits)
            display.phases(outcome.state)
    return _finish(deps, job_id, outcome=outcome, options=options)


def get(options: Options) -> int:
    """List jobs, or show one. An installation that there is not yet stays so."""
    rows, missing = list[JobRow](), list[str]()
    if services.is_installed(from_environment()):
        known = _Known()
        rows = [known.row(row) for row in known.ledger.jobs(options.job)]
        missing = known.missing
    if options.job and not rows:
        raise NotFoundError(f"there is no job {options.job}")
    now = datetime.now(timezone.utc)
    shown = [report.job_row(row, now) for row in rows]
    columns = _WIDE if options.output == "wide" else _SHORT
    console.print_rows(shown, output=options.output, columns=columns)
    warn(missing)
    return 0


def describe(options: Options) -> int:
    """Tell a job's story: phases, attempts, data, cost, model."""
    known = _known_with(options.job)
    now = datetime.now(timezone.utc)
    document = report.describe(options.job, known.story(options.job), now=now)
    document["status"] = known.ledger.jobs(options.job)[0].status
    console.print_document(document, output=options.output)
    warn(known.missing)
    return 0


def events(options: Options) -> int:
    """Print the events of a job."""
    known = _known_with(options.job)
    found = known.story(options.job)
    rows = [event.document() | {"text": report.event_text(event)} for event in found]
    columns = ("seq", "at", "kind", "attempt", "text")
    console.print_rows(rows, output=options.output, columns=columns)
    warn(known.missing)
    return 0


def logs(options: Options) -> int:
    """Print the log of a process (the first of the newest attempt), or follow it."""
    deps = _deps_with(options.job)
    _events(deps, options.job)
    path = _log_path(deps, options)
    with Path(path).open("rb") as file:
        last = not options.follow
        while True:
            block = file.read(1 << 16)
            if block:
                with console.writing():
                    sys.stdout.buffer.write(block)
                    sys.stdout.flush()
            elif last:
                return 0
            elif not (last := _is_over(deps, options.job)):  # what came since is still to be read
                time.sleep(_FOLLOW_S)


def evidence(options: Options) -> int:
    """Show why an attempt failed: its verdict and the tails of its ranks."""
    deps = _deps_with(options.job)
    _events(deps, options.job)
    root = Path(deps.roots.state_dir) / "jobs" / options.job / "attempts"
    numbers = sorted(int(path.name) for path in root.glob("[0-9]*"))
    number = options.attempt or (numbers[-1] if numbers else None)
    folder = root / str(number) / "evidence"
    if not folder.is_dir():
        which = "no attempt" if options.attempt is None else f"attempt {number}"
        raise NotFoundError(f"{which} of {options.job} has left evidence",
                            next_step="only failed attempts do; see `ffdl describe`")  # fmt: skip
    verdict = json.loads((folder / "verdict.json").read_text())
    paths = sorted((folder / "ranks").iterdir(), key=lambda path: _by_number(path.stem))
    tails = {path.stem: path.read_text(errors="replace") for path in paths}
    document = {"job": options.job, "attempt": number, "verdict": verdict, "tails": tails,
                "folder": str(folder)}  # fmt: skip
    console.answer(report.evidence_text(document), document, output=options.output)
    return 0


def _by_number(label: str) -> tuple[bool, int, str]:
    """Ranks in their order, then what has no rank."""
    return not label.isdigit(), int(label) if label.isdigit() else 0, label


def stop(options: Options) -> int:
    """Stop a job: save first, or at once."""
    deps = _deps_with(options.job)
    mode = "now" if options.now else "save"
    state = fold(options.job, _events(deps, options.job))
    before = "has ended already: " if state.terminal else ""
    if not state.terminal:
        wishes.stop(deps, options.job, mode=mode, by=user_name())
        state = _obeyed(deps, options.job)
    reason = f": {state.reason}" if state.reason else ""
    text = f"{options.job} {before}{state.phase}{reason}"
    document = {"job": options.job, "phase": str(state.phase), "reason": state.reason}
    if state.phase is Phase.STOPPED:
        text += f". Next: `ffdl run --job {options.job}` goes on"
    console.answer(text, document, output=options.output)
    return 0


def _obeyed(deps: Deps, job_id: str) -> JobState:
    """The stop that is recorded, carried out; where that cannot be, it stays recorded."""
    try:
        return drive(deps, Driver(deps, job_id), Goal.REGISTER).state
    except InfrastructureError as error:
        first = f"{error.next_step}; " if error.next_step else ""
        raise InfrastructureError(
            f"{job_id} is not stopped yet: {error.cause}", evidence=error.evidence,
            next_step=f"{first}the stop is recorded; whoever drives the job next obeys: "
            f"`ffdl stop {job_id}`, or its task in Airflow",
        ) from error  # fmt: skip


def save(options: Options) -> int:
    """Ask a running job for a checkpoint now."""
    deps = _deps_with(options.job)
    state = fold(options.job, _events(deps, options.job))
    if state.phase is not Phase.RUNNING:
        raise UserError(f"job {options.job}: found phase {state.phase}, allowed: Running",
                        next_step="a checkpoint is made by what runs; see `ffdl get`")  # fmt: skip
    wishes.save(deps, options.job, by=user_name())
    step = Driver(deps, options.job).advance(Goal.LAUNCH).state.step
    text = f"{options.job}: a checkpoint was asked for"
    text += "" if step is None else f" after step {step}"
    console.answer(text, {"job": options.job, "step": step}, output=options.output)
    return 0


def reap_(options: Options) -> int:
    """End placements that no job needs any more; exit code 3 where one could not be."""
    rows = [vars(found) | {"placement": found.placement_id} for found in reap(_deps())]
    columns = ("placement", "why", "killed", "error")
    console.print_rows(rows, output=options.output, columns=columns)
    return InfrastructureError.exit_code if any(row["error"] for row in rows) else 0


def registry(options: Options) -> int:
    """List registered models, or show one version with its lineage."""
    models = services.registry(from_environment())
    if options.name is not None and options.version is not None:
        found = models.get(options.name, options.version)
        console.print_document(found.model_dump(mode="json"), output=options.output)
        return 0
    if options.name is not None:
        models.get(options.name)  # says so where there is no such model
    rows = [version.model_dump(mode="json") for version in models.list(options.name)]
    for row in rows:
        row["step"] = row["checkpoint"]["step"]
    columns = ("name", "version", "sha256", "job", "attempts", "step", "createdAt")
    console.print_rows(rows, output=options.output, columns=columns)
    return 0


def _deps() -> Deps:
    return services.deps(from_environment(), source={"user": user_name()})


def _deps_with(job_id: str) -> Deps:
    """The installation that has the job. Where there is none yet, none is made."""
    _require_installed(job_id)
    return _deps()


def _require_installed(job_id: str) -> None:
    if not services.is_installed(from_environment()):
        raise NotFoundError(f"there is no job {job_id}")


def _owner() -> dict[str, str]:
    return {"key": "command line", "user": user_name()}


def _new_id(deps: Deps, job: TrainingJob | None) -> str:
    """Submit a new job under an id of its own."""
    if job is None:
        raise UserError(
            "ffdl run: found neither -f FILE nor --job ID, allowed: one of them or both"
        )
    job_id = job_id_for(job.metadata.name, secrets.token_hex(16))
    submit(deps, job, job_id=job_id, owner=_owner())
    return job_id


def _continue(deps: Deps, job_id: str, job: TrainingJob | None) -> None:
    """``run --job``: a job that has ended begins again from its newest checkpoint."""
    state = fold(job_id, _events(deps, job_id))
    if state.phase is Phase.SUCCEEDED and job is not None and job.document() != state.spec:
        raise UserError(
            f"-f: found another spec than that of job {job_id}, which has succeeded; allowed: the "
            "same one: a finished job is not run again",
            next_step="leave out --job: that starts a new job",
        )
    if job is not None:
        state = submit(deps, job, job_id=job_id, owner=_owner())
    elif state.owner.get("key") != _owner()["key"] and not state.terminal:
        found = f"job {job_id}: found owner {state.owner.get('key')}"
        raise UserError(f"{found}, allowed: a job of the command line, or one that has ended")
    if state.phase in (Phase.FAILED, Phase.STOPPED):
        wishes.clear(deps, job_id, task="command line", number=state.seq,
                     mode=state.spec["spec"]["checkpoint"]["onClear"])  # fmt: skip


def _finish(deps: Deps, job_id: str, *, outcome: Outcome, options: Options) -> int:
    if options.output in ("json", "yaml"):
        now = datetime.now(timezone.utc)
        document = report.describe(job_id, _events(deps, job_id), now=now)
        console.print_document(document, output=options.output)
    if isinstance(outcome, Ended):
        raise _ended(job_id, outcome.state)
    model = outcome.state.model
    if model is not None:
        text = f"model {model['name']} version {model['version']} sha256 {model['sha256']}"
        console.line(text, to=console.beside(options.output))
    return 0


def _ended(job_id: str, state: JobState) -> FfdlError:
    """A job that is over without having reached the goal, as an error."""
    cause = f"job {job_id} {state.phase}: {state.reason}"
    if state.phase is Phase.STOPPED:
        return JobStopped(cause, next_step=f"`ffdl run --job {job_id}` goes on")
    verdict = state.verdict or {}
    ran = f"`ffdl evidence {job_id}`, `ffdl logs {job_id}`"
    return TrainingFailed(
        cause, verdict=verdict, evidence=ran if state.attempt else f"`ffdl events {job_id}`",
        next_step=str(verdict.get("next_step") or f"see `ffdl describe {job_id}`"),
    )  # fmt: skip


def _only_driver(deps: Deps, job_id: str) -> AbstractContextManager[None]:
    """Two command lines on one job: the second one is told so."""
    refusal = UserError(
        f"job {job_id}: found another command line that drives it, allowed: one at a time",
        next_step=f"watch it with `ffdl logs {job_id} -f`, or stop the other command",
    )
    return exclusive(Path(deps.roots.state_dir) / "jobs" / job_id / "driver.lock", refusal)


def _events(deps: Deps, job_id: str) -> list[Event]:
    found = deps.ledger.read(job_id)
    if not found:
        raise NotFoundError(f"there is no job {job_id}")
    return found


def _story(deps: Deps, job_id: str) -> list[Event]:
    """The log, and what the gang has written down since; nobody has to drive for that."""
    found = look.story(deps, job_id)
    if not found:
        raise NotFoundError(f"there is no job {job_id}")
    return found


class _Known:
    """What is known of jobs: with what their gangs have written since, as far as they answer.

    ``missing``: what there is to say to a person of those that do not, in at most one line.
    """

    def __init__(self) -> None:
        self.missing: list[str] = []
        self._deps: Deps | None = None
        try:
            self._deps = _deps()
            self.ledger = self._deps.ledger
        except InfrastructureError as error:  # the engine's, or the ledger's again
            self._miss(error)
            self.ledger = services.ledger(from_environment().ledger_url)

    def row(self, row: JobRow) -> JobRow:
        try:
            return look.brought_up(self._deps, row) if self._deps else row
        except InfrastructureError as error:
            self._miss(error)
            return row

    def story(self, job_id: str) -> list[Event]:
        """Raises NotFoundError where there is no such job."""
        found = self.ledger.read(job_id)
        try:
            found = look.story(self._deps, job_id) if self._deps else found
        except InfrastructureError as error:
            self._miss(error)
        if not found:
            raise NotFoundError(f"there is no job {job_id}")
        return found

    def _miss(self, error: InfrastructureError) -> None:
        text = f"what the gang has written since is not among this: {error.cause}"
        self.missing = self.missing or [text]


def _known_with(job_id: str) -> _Known:
    _require_installed(job_id)
    return _Known()


def _is_over(deps: Deps, job_id: str) -> bool:
    state: JobState = fold(job_id, _story(deps, job_id))
    return not state.attempt_open


def _log_path(deps: Deps, options: Options) -> str:
    if not isinstance(deps.engine, SupportsTail):
        raise UserError(f"engine {deps.engine_name} keeps no logs on this host")
    every = deps.engine.logs(options.job)
    attempt = options.attempt or max((log.attempt for log in every), default=0)
    found = [log for log in every if log.attempt == attempt and _is_meant(log, options)]
    if not every:
        raise _no_logs(deps, options.job)
    if not found:
        have = ", ".join(f"attempt {log.attempt} {who(log.replica, log.rank)}" for log in every)
        wanted = options.replica or f"rank {options.rank or 0}"
        raise NotFoundError(f"{options.job} has no log of attempt {attempt} {wanted}",
                            next_step=f"there are: {have}")  # fmt: skip
    newest = found[-1].placement
    return next(log.path for log in found if log.placement == newest)


def _no_logs(deps: Deps, job_id: str) -> NotFoundError:
    state: JobState = fold(job_id, _story(deps, job_id))
    if state.attempt == 0:
        return NotFoundError(f"{job_id} has no logs: no attempt has started yet",
                             next_step=f"see `ffdl events {job_id}`")  # fmt: skip
    cause = (state.verdict or {}).get("cause") or state.reason
    told = f"; the newest one: {cause}" if cause else ""
    return NotFoundError(
        f"{job_id} has no logs: no process has started in {report.count(state.attempt, 'attempt')}"
        f"{told}", next_step=f"see `ffdl evidence {job_id}`",
    )  # fmt: skip


def _is_meant(log: ProcessLog, options: Options) -> bool:
    """By rank, by the name of replica or process; by nothing: the first one of the attempt."""
    by_rank = options.rank is None or log.rank == options.rank
    return by_rank and options.replica in (None, log.replica, log.label)


def _number_from(least: int) -> Callable[[str], int]:
    """A reader of arguments: whole numbers from ``least`` on."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            message = f"found {text}, allowed: a whole number, at least {least}"
            raise argparse.ArgumentTypeError(message)
        return int(text)

    return read


Spec = tuple[tuple[str, ...], dict[str, Any]]
_FILE: Spec = (("-f", "--file"), {"required": True, "help": "manifest, - for standard input"})
_JOB: Spec = (("job",), {"metavar": "JOB", "help": "job id"})
_ATTEMPT: Spec = (
    ("--attempt",),
    {"type": _number_from(1), "help": "number of the attempt (the newest)"},
)
_GOALS = [goal.value for goal in Goal if goal is not Goal.RELEASE]
TABLE: tuple[tuple[str, str, Callable[[Options], int], tuple[Spec, ...]], ...] = (
    ("validate", "check a manifest; create nothing", ahead.validate, (_FILE,)),
    ("render", "show what a manifest would create; ask nobody", ahead.render, (_FILE,)),
    ("doctor", "check this installation, and its cluster", ahead.doctor,
     ((("--cluster",), {"action": "store_true", "help": "ask the cluster too"}),
      (("--image",), {"help": "try a pod of this image there: it has to have Python"}))),
    ("run", "run a job to its end, or go on with one", run,
     ((("-f", "--file"), {"help": "manifest, - for standard input"}),
      (("--job",), {"help": "go on with this job"}),
      (("--until",), {"choices": _GOALS, "default": "register", "help": "stage to stop after"}))),
    ("get", "list jobs", get,
     ((("job",), {"metavar": "JOB", "nargs": "?", "help": "job id (all)"}),)),
    ("describe", "tell a job's story", describe, (_JOB,)),
    ("events", "print a job's events", events, (_JOB,)),
    ("logs", "print the log of a rank", logs,
     (_JOB, (("--rank",), {"type": _number_from(0), "help": "rank (0)"}),
      (("--replica",), {"help": "replica, for example ps-0"}), _ATTEMPT,
      (("-f", "--follow"), {"action": "store_true", "help": "until the attempt ends"}))),
    ("evidence", "show why an attempt failed", evidence, (_JOB, _ATTEMPT)),
    ("stop", "stop a job, after a save", stop,
     (_JOB, (("--now",), {"action": "store_true", "help": "without a save"}))),
    ("save", "ask a running job for a checkpoint", save, (_JOB,)),
    ("reap", "end placements that no job needs", reap_, ()),
    ("registry", "list models, or show a version", registry,
     ((("name",), {"nargs": "?", "help": "model (all)"}),
      (("version",), {"nargs": "?", "type": _number_from(1), "help": "version (all)"}))),
)  # fmt: skip
