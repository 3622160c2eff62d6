"""Commands that come before a job: validate, render, doctor. They leave nothing behind."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

from ffdl_airflow import checkup, console, report, services
from ffdl_airflow.core.errors import InfrastructureError, UserError
from ffdl_airflow.core.findings import Level
from ffdl_airflow.core.job import TrainingJob, job_id_for
from ffdl_airflow.core.manifests.ffdl import read_job, read_yaml
from ffdl_airflow.settings import default_ledger_url, from_environment
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.paths import resolve_paths
from ffdl_airflow.stages.preview import preview
from ffdl_airflow.stages.submit import check, user_name, warnings

Options = argparse.Namespace
_CHECKED = ("state", "check", "found", "do")


def validate(options: Options) -> int:
    """Check a manifest against this installation; create nothing."""
    job = read_manifest(options.file)
    with _looking() as deps:
        check(deps, job, job_id=job_id_for(job.metadata.name, "validate"))
        told = warnings(deps, job)
    limit = job.spec.time_limit_s
    size = report.count(job.spec.gang_size, "replica")
    text = f"{options.file}: valid; {size}, {report.count(job.spec.total_gpus, 'GPU')}"
    text += f", time limit {f'{limit:.0f} s of running' if limit else 'none'}"
    document = {"valid": True, "warnings": told, "spec": job.document()}
    console.answer(text, document, output=options.output)
    warn(told)
    return 0


def render(options: Options) -> int:
    """Show what would be created for a manifest, without creating it or asking anybody."""
    job = read_manifest(options.file)
    settings = from_environment()
    shown = services.renderer(settings)
    plan = preview(
        job, engine=shown, roots=services.roots_of(settings, shown), timing=settings.timing,
        at=datetime.now(timezone.utc), cache_dir=settings.cache_dir,
    )  # fmt: skip
    console.print_documents(shown.render(plan), output=options.output)
    return 0


def doctor(options: Options) -> int:
    """Check this installation, with ``--cluster`` the cluster too; exit code 3 for a problem."""
    settings = from_environment()
    if options.image and not options.cluster:
        raise UserError("--image: found without --cluster, allowed: both, a pod is tried there")
    found = checkup.here(settings)
    if options.cluster:
        found += checkup.cluster(settings, image=options.image)
    rows = [one.row() for one in found]
    console.print_rows(rows, output=options.output, columns=_CHECKED)
    stopped = any(one.level is Level.PROBLEM for one in found)
    return InfrastructureError.exit_code if stopped else 0


def read_manifest(path: str) -> TrainingJob:
    """The job in a file, or on standard input (``-``), with its paths made absolute."""
    file = Path(path)
    try:
        text = sys.stdin.read() if path == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"-f: found {path} ({error}), allowed: a YAML file") from None
    base = Path.cwd() if path == "-" else file.absolute().parent
    return read_job(resolve_paths(read_yaml(text, source=path), base), source=path)


def warn(texts: Sequence[str]) -> None:
    """Say it beside the answer."""
    for text in texts:
        console.line(f"ffdl: warning: {text}", to=sys.stderr)


@contextmanager
def _looking() -> Iterator[Deps]:
    """The installation, or a passing one where there is none yet: a look leaves nothing behind."""
    settings = from_environment()
    if services.is_installed(settings):
        yield services.deps(settings, source={"user": user_name()})
        return
    with TemporaryDirectory(prefix="ffdl-") as folder:
        state = Path(folder)
        ledger = default_ledger_url(state)
        yield services.deps(replace(settings, state_dir=state, ledger_url=ledger))
