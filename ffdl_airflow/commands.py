"""The commands of ``ffdl``: each reads its arguments, calls a stage and shows the answer."""

import argparse
import fcntl
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ffdl_airflow import console, report, services
from ffdl_airflow.core.errors import NotFoundError, TrainingFailed, UserError
from ffdl_airflow.core.events import Event
from ffdl_airflow.core.job import TrainingJob, job_id_for
from ffdl_airflow.core.lifecycle import JobState, Phase, fold
from ffdl_airflow.core.manifests.ffdl import read_yaml, read_job
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.engines.base import SupportsTail
from ffdl_airflow.settings import from_environment
from ffdl_airflow.stages import wishes
from ffdl_airflow.stages.advance import Driver, Ended, Outcome
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.drive import drive
from ffdl_airflow.stages.paths import resolve_paths
from ffdl_airflow.stages.reap import reap
from ffdl_airflow.stages.submit import check, submit, user_name

_FOLLOW_S = 0.3
"""Time between two looks at a log that is followed. Chosen."""
_SHORT = ("job", "phase", "replicas/gpus", "step", "duration", "reason")
_WIDE = ("job", "name", "phase", "replicas/gpus", "utilization", "duration", "generation", "model",
         "sha256", "reason")  # fmt: skip

Options = argparse.Namespace


def validate(options: Options) -> int:
    """Check a manifest against this installation; create nothing."""
    job = _read_manifest(options.file)
    check(_deps(), job, job_id=job_id_for(job.metadata.name, "validate"))
    limit = job.spec.time_limit_s
    text = f"{options.file}: valid; {job.spec.gang_size} replicas, {job.spec.total_gpus} GPUs"
    console.line(f"{text}, time limit {f'{limit:.0f} s of running' if limit else 'none'}")
    return 0


def run(options: Options) -> int:
    """Run a job to its end, or go on with one."""
    deps = _deps()
    if options.job is None and options.file is None:
        raise UserError("ffdl run: found neither -f FILE nor --job ID, allowed: one of them or both")
    job = _read_manifest(options.file) if options.file else None
    if options.job is not None:
        job_id = options.job
        _continue(deps, job_id, job)
    else:
        if job is None:
            raise AssertionError  # the parser demands one of both
        job_id = job_id_for(job.metadata.name, secrets.token_hex(16))
        submit(deps, job, job_id=job_id, owner=_owner())
    console.line(f"job {job_id}")
    with _only_driver(deps, job_id):
        outcome = _drive(deps, job_id, Goal(options.until))
    return _finish(deps, job_id, outcome=outcome, options=options)


def get(options: Options) -> int:
    """List jobs, or show one."""
    deps = _deps()
    rows = deps.ledger.jobs(options.job)
    if options.job and not rows:
        raise NotFoundError(f"there is no job {options.job}")
    now = datetime.now(timezone.utc)
    shown = [console.job_row(row, now) for row in rows]
    columns = _WIDE if options.output == "wide" else _SHORT
    console.print_rows(shown, output=options.output, columns=columns)
    return 0


def describe(options: Options) -> int:
    """Tell a job's story: phases, attempts, data, cost, model."""
    deps = _deps()
    document = report.describe(
        options.job, _events(deps, options.job), now=datetime.now(timezone.utc)
    )
    document["status"] = deps.ledger.jobs(options.job)[0].status
    console.print_document(document, output=options.output)
    return 0


def events(options: Options) -> int:
    """Print the events of a job."""
    rows = [event.document() for event in _events(_deps(), options.job)]
    for row in rows:
        row["text"] = _event_text(row["body"])
    columns = ("seq", "at", "kind", "attempt", "text")
    console.print_rows(rows, output=options.output, columns=columns)
    return 0


def logs(options: Options) -> int:
    """Print the log of a rank (rank 0 of the newest attempt), or follow it."""
    deps = _deps()
    _events(deps, options.job)
    path = _log_path(deps, options)
    with Path(path).open("rb") as file:
        while True:
            block = file.read(1 << 16)
            if block:
                sys.stdout.buffer.write(block)
                sys.stdout.flush()
            elif not options.follow or _is_over(deps, options.job):
                return 0
            else:
                time.sleep(_FOLLOW_S)


def evidence(options: Options) -> int:
    """Show why an attempt failed: its verdict and the tails of its ranks."""
    deps = _deps()
    _events(deps, options.job)
    root = Path(deps.roots.state_dir) / "jobs" / options.job / "attempts"
    numbers = sorted(int(path.name) for path in root.glob("[0-9]*"))
    number = options.attempt or (numbers[-1] if numbers else None)
    folder = root / str(number) / "evidence"
    if not folder.is_dir():
        raise NotFoundError(f"no attempt of {options.job} has left evidence", next_step="only failed "
                            "attempts do")  # fmt: skip
    console.line((folder / "verdict.json").read_text())
    for path in sorted((folder / "ranks").iterdir()):
        console.line(f"--- rank {path.stem}\n{path.read_text(errors='replace')}")
    return 0


def stop(options: Options) -> int:
    """Stop a job: save first, or at once."""
    deps = _deps()
    mode = "now" if options.now else "save"
    if fold(options.job, _events(deps, options.job)).terminal:
        console.line(f"{options.job} has ended already")
        return 0
    wishes.stop(deps, options.job, mode=mode, by=user_name())
    outcome = drive(deps, Driver(deps, options.job), Goal.REGISTER)
    console.line(f"{options.job} {outcome.state.phase}: {outcome.state.reason}")
    return 0


def save(options: Options) -> int:
    """Ask a running job for a checkpoint now."""
    deps = _deps()
    state = fold(options.job, _events(deps, options.job))
    if state.phase is not Phase.RUNNING:
        raise UserError(f"job {options.job}: found phase {state.phase}, allowed: Running")
    wishes.save(deps, options.job, by=user_name())
    outcome = Driver(deps, options.job).advance(Goal.LAUNCH)
    console.line(f"{options.job}: a checkpoint was asked for at step {outcome.state.step}")
    return 0


def reap_(options: Options) -> int:
    """End placements that no job needs any more."""
    rows = [vars(found) | {"placement": found.placement_id} for found in reap(_deps())]
    console.print_rows(rows, output=options.output, columns=("placement", "why", "killed"))
    return 0


def registry(options: Options) -> int:
    """List registered models, or show one version with its lineage."""
    models = services.registry(from_environment())
    if options.name is not None and options.version is not None:
        found = models.get(options.name, options.version)
        console.print_document(found.model_dump(mode="json"), output=options.output)
        return 0
    rows = [version.model_dump(mode="json") for version in models.list(options.name)]
    for row in rows:
        row["step"] = row["checkpoint"]["step"]
    columns = ("name", "version", "sha256", "job", "attempts", "step", "createdAt")
    console.print_rows(rows, output=options.output, columns=columns)
    return 0


def _deps() -> Deps:
    return services.deps(from_environment(), source={"user": user_name()})


def _owner() -> dict[str, str]:
    return {"key": "command line", "user": user_name()}


def _read_manifest(path: str) -> TrainingJob:
    file = Path(path)
    try:
        text = sys.stdin.read() if path == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"-f: found {path} ({error}), allowed: a YAML file") from None
    base = Path.cwd() if path == "-" else file.absolute().parent
    return read_job(resolve_paths(read_yaml(text, source=path), base), source=path)


def _continue(deps: Deps, job_id: str, job: TrainingJob | None) -> None:
    """``run --job``: a job that has ended begins again from its newest checkpoint."""
    state = fold(job_id, _events(deps, job_id))
    if job is not None:
        state = submit(deps, job, job_id=job_id, owner=_owner())
    elif state.owner.get("key") != _owner()["key"] and not state.terminal:
        raise UserError(f"job {job_id}: found owner {state.owner.get('key')}, allowed: a job of the "
                        "command line, or one that has ended")  # fmt: skip
    if state.phase in (Phase.FAILED, Phase.STOPPED):
        wishes.clear(deps, job_id, task="command line", number=state.seq,
                     mode=state.spec["spec"]["checkpoint"]["onClear"])  # fmt: skip


def _drive(deps: Deps, job_id: str, until: Goal) -> Outcome:
    with console.ProgressDisplay() as display:
        outcome = drive(deps, Driver(deps, job_id), until, on_wait=display.waits)
        display.phases(outcome.state)
    return outcome


def _finish(deps: Deps, job_id: str, *, outcome: Outcome, options: Options) -> int:
    if options.output in ("json", "yaml"):
        now = datetime.now(timezone.utc)
        document = report.describe(job_id, _events(deps, job_id), now=now)
        console.print_document(document, output=options.output)
    if isinstance(outcome, Ended):
        state = outcome.state
        raise TrainingFailed(
            f"job {job_id} {state.phase}: {state.reason}", verdict=state.verdict or {},
            evidence=f"ffdl evidence {job_id}; ffdl logs {job_id}",
            next_step=str((state.verdict or {}).get("next_step") or "see ffdl describe"),
        )  # fmt: skip
    model = outcome.state.model
    if model is not None:
        console.line(f"model {model['name']} version {model['version']} sha256 {model['sha256']}")
    return 0


@contextmanager
def _only_driver(deps: Deps, job_id: str) -> Iterator[None]:
    """Two command lines on one job: the second one is told so."""
    folder = Path(deps.roots.state_dir) / "jobs" / job_id
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "driver.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"job {job_id}: found another command line that drives it, allowed: one at a time",
            next_step=f"watch it with `ffdl logs {job_id} -f`, or stop the other command",
        ) from None
    else:
        yield
    finally:
        os.close(descriptor)


def _events(deps: Deps, job_id: str) -> list[Event]:
    found = deps.ledger.read(job_id)
    if not found:
        raise NotFoundError(f"there is no job {job_id}")
    return found


def _is_over(deps: Deps, job_id: str) -> bool:
    state: JobState = fold(job_id, _events(deps, job_id))
    return not state.attempt_open


def _log_path(deps: Deps, options: Options) -> str:
    if not isinstance(deps.engine, SupportsTail):
        raise UserError(f"engine {deps.engine_name} keeps no logs on this host")
    paths = deps.engine.log_paths(options.job)
    attempt = options.attempt or max((key[1] for key in paths), default=0)
    found = [path for key, path in paths.items() if key[1:] == (attempt, options.rank)]
    if not found:
        have = ", ".join(f"attempt {a} rank {r}" for _, a, r in sorted(paths)) or "none"
        raise NotFoundError(f"{options.job} has no log of attempt {attempt} rank {options.rank}",
                            next_step=f"there are: {have}")  # fmt: skip
    return found[-1]


def _event_text(body: Mapping[str, Any]) -> str:
    shown = {k: v for k, v in body.items() if k not in ("spec", "tail", "ranks", "stores", "placement")
             and v not in (None, "", [], {})}  # fmt: skip
    text = " ".join(f"{key}={value}" for key, value in shown.items())
    return text if len(text) <= 160 else text[:159] + "…"  # noqa: PLR2004 - a line of a screen


Spec = tuple[tuple[str, ...], dict[str, Any]]
_JOB: Spec = (("job",), {"metavar": "JOB", "help": "job id"})
_ATTEMPT: Spec = (("--attempt",), {"type": int, "help": "number of the attempt (the newest)"})
_GOALS = [goal.value for goal in Goal if goal is not Goal.RELEASE]
TABLE: tuple[tuple[str, str, Callable[[Options], int], tuple[Spec, ...]], ...] = (
    ("validate", "check a manifest; create nothing", validate,
     ((("-f", "--file"), {"required": True, "help": "manifest, - for standard input"}),)),
    ("run", "run a job to its end, or go on with one", run,
     ((("-f", "--file"), {"help": "manifest, - for standard input"}),
      (("--job",), {"help": "go on with this job"}),
      (("--until",), {"choices": _GOALS, "default": "register", "help": "stage to stop after"}))),
    ("get", "list jobs", get,
     ((("job",), {"metavar": "JOB", "nargs": "?", "help": "job id (all)"}),)),
    ("describe", "tell a job's story", describe, (_JOB,)),
    ("events", "print a job's events", events, (_JOB,)),
    ("logs", "print the log of a rank", logs,
     (_JOB, (("--rank",), {"type": int, "default": 0, "help": "rank (0)"}), _ATTEMPT,
      (("-f", "--follow"), {"action": "store_true", "help": "until the attempt ends"}))),
    ("evidence", "show why an attempt failed", evidence, (_JOB, _ATTEMPT)),
    ("stop", "stop a job, after a save", stop,
     (_JOB, (("--now",), {"action": "store_true", "help": "without a save"}))),
    ("save", "ask a running job for a checkpoint", save, (_JOB,)),
    ("reap", "end placements that no job needs", reap_, ()),
    ("registry", "list models, or show a version", registry,
     ((("name",), {"nargs": "?", "help": "model (all)"}),
      (("version",), {"nargs": "?", "type": int, "help": "version (all)"}))),
)  # fmt: skip
