"""What the pages and the API show, as plain data: the same readings as the command line's.

For: one user's view of the jobs of this installation. Not for: deciding, writing or driving.
"""

from collections import Counter
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any

from fastapi import Depends, HTTPException, status

from ffdl_airflow import __version__, report
from ffdl_airflow.core.errors import InfrastructureError, NotFoundError
from ffdl_airflow.core.events import Event
from ffdl_airflow.core.lifecycle import TERMINAL, Phase
from ffdl_airflow.engines.base import ProcessLog, SupportsTail
from ffdl_airflow.hooks.ffdl import FfdlHook
from ffdl_airflow.ledger.base import JobRow
from ffdl_airflow.settings import Settings
from ffdl_airflow.stages import look
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.evidence import tail
from ffdl_airflow.web.access import Access, AccessDep, dag_of
from ffdl_airflow.web.log_lines import cleaned, instead_of_logs, without_logs

PAGE = 50
"""Jobs on a page of the list. Chosen."""
LOG_BYTES = 64 * 1024
"""Most that is answered of a rank's log: its end. Chosen: some 500 lines."""
SHOWN_BYTES = 4 * 1024
"""The same for each rank on the job's page. Chosen: about a screen."""
SHOWN_RANKS = 16
"""Most ranks whose tails stand on the job's page; the others are a link away. Chosen."""


class Jobs:
    """The jobs of an installation, as one user may see them."""

    def __init__(self, deps: Deps, access: Access) -> None:
        self._deps = deps
        self._access = access
        self._logs_of: dict[str | None, bool] = {}

    def status(self) -> dict[str, Any]:
        """The installation in a few figures."""
        slots = self._deps.engine.capacity()
        return {
            "version": __version__,
            "engine": self._deps.engine_name,
            "ledger": self._deps.ledger.ledger_id,
            "slots": {"total": slots.total, "free": slots.free},
            "jobs": dict(Counter(row.phase for row in self._rows())),
        }

    def page(self, *, phase: Phase | None = None, number: int = 1, size: int = PAGE,
             ) -> dict[str, Any]:  # fmt: skip
        """One page of the list, newest jobs first; a number past the end is the last page."""
        rows = self._rows()
        counts = Counter(row.phase for row in rows)
        found = [row for row in rows if phase in (None, row.phase)]
        pages = max(1, -(-len(found) // size))
        number = min(number, pages)
        shown = found[(number - 1) * size : number * size]
        return {
            "jobs": [self._row(row) for row in shown],
            "phase": phase, "phases": {str(p): counts[p] for p in Phase if counts[p]},
            "live": any(row.phase not in TERMINAL for row in rows),
            "all": len(rows), "total": len(found), "page": number, "pages": pages,
        }  # fmt: skip

    def job(self, job_id: str) -> dict[str, Any]:
        """All of one job but its spec, whose environment may hold what is not for all eyes."""
        row, now = self._one(job_id), self._deps.clock()
        events, missing = self._story(job_id)
        logs = self._may_read_logs(row)
        events = events if logs else without_logs(events)
        told = report.describe(job_id, events, now=now)
        del told["spec"]
        return told | {
            "row": self._row(row),
            "live": told["phase"] not in TERMINAL,
            "status": _status(row, logs=logs),
            "events": [_line(event) for event in events],
            "logs": [
                {"attempt": log.attempt, "rank": log.label} for log in self._logs(job_id) if logs
            ],
            "not_seen": missing,
            "now": now.isoformat(timespec="seconds"),
        }

    def tails(self, job_id: str) -> list[dict[str, Any]]:
        """The ends of the logs of the newest attempt, for people; none where they may not see."""
        row = self._one(job_id)
        if not self._may_read_logs(row):
            return []
        logs = self._logs(job_id)
        newest = logs[-1].attempt if logs else 0
        return [
            {"attempt": log.attempt, "label": log.label, "rank": log.rank, "replica": log.replica,
             "text": _shown(log)}
            for log in [log for log in logs if log.attempt == newest][:SHOWN_RANKS]
        ]  # fmt: skip

    def log(self, job_id: str, *, label: str | None, attempt: int | None) -> bytes:
        """The end of a process's log, at most ``LOG_BYTES``.

        ``label`` is its rank, or the name of a process without one; None: the first one.
        ``attempt`` None: the newest.
        """
        row = self._one(job_id)
        if not self._may_read_logs(row):
            raise _forbidden(f"you may not read the logs of job {job_id}")
        logs = self._logs(job_id)
        attempt = attempt or (logs[-1].attempt if logs else 0)
        for log in logs:
            if log.attempt == attempt and label in (None, log.label):
                return _tail(log, LOG_BYTES)
        raise NotFoundError(f"job {job_id} has no log of attempt {attempt} rank {label or 0}")

    def _rows(self) -> list[JobRow]:
        rows = self._deps.ledger.jobs()
        may_read = self._access.readable(row.summary["owner"] for row in rows)
        return [row for row in rows if may_read(row.summary["owner"])]

    def _one(self, job_id: str) -> JobRow:
        rows = self._deps.ledger.jobs(job_id)
        if not rows:
            raise NotFoundError(f"there is no job {job_id}")
        if not self._access.may_read(rows[0].summary["owner"]):
            raise _forbidden(f"you may not read the DAG of job {job_id}")
        return rows[0]

    def _row(self, row: JobRow) -> dict[str, Any]:
        with suppress(InfrastructureError):  # away; what the ledger holds is true as far as it goes
            row = look.brought_up(self._deps, row)
        owner = row.summary["owner"]
        told = report.job_row(row, self._deps.clock())
        if told["reason"] and not self._may_read_logs(row):
            instead = instead_of_logs(self._deps.ledger.read(row.job_id))
            told["reason"] = cleaned(told["reason"], instead)
        return told | {
            "dag_id": dag_of(owner), "run_id": owner.get("run_id"), "task_id": owner.get("task_id"),
            "submitted_at": row.summary["submitted_at"],
        }  # fmt: skip

    def _may_read_logs(self, row: JobRow) -> bool:
        """Asked once for each DAG: a list has many jobs of one."""
        dag_id = dag_of(row.summary["owner"])
        if dag_id not in self._logs_of:
            self._logs_of[dag_id] = self._access.may_read_logs(row.summary["owner"])
        return self._logs_of[dag_id]

    def _story(self, job_id: str) -> tuple[list[Event], str | None]:
        """The job's events, and why what its gang has written down since is not among them."""
        try:
            return look.story(self._deps, job_id), None
        except InfrastructureError as error:
            return self._deps.ledger.read(job_id), error.cause

    def _logs(self, job_id: str) -> list[ProcessLog]:
        """Logs on this host by attempt; of an attempt that began twice those of the later one."""
        if not isinstance(self._deps.engine, SupportsTail):
            return []
        found = {(log.attempt, log.label): log for log in self._deps.engine.logs(job_id)}
        return sorted(found.values(), key=lambda log: log.attempt)


def _tail(log: ProcessLog, count: int) -> bytes:
    try:
        return tail(log.path, count)
    except OSError as error:
        raise NotFoundError(f"the log cannot be read: {error.strerror}") from None


def _shown(log: ProcessLog) -> str:
    """The end of a log, or why it cannot be read; the page has more to tell."""
    try:
        return _tail(log, SHOWN_BYTES).decode(errors="replace")
    except NotFoundError as error:
        return f"({error.cause})"


def _status(row: JobRow, *, logs: bool) -> dict[str, Any] | None:
    """The live status of what runs; the last lines of the ranks are log lines."""
    if row.phase != Phase.RUNNING or row.status is None:
        return None
    found = dict(row.status)
    ranks = [dict(rank) for rank in found.get("ranks") or []]
    for rank in ranks if not logs else []:
        rank.pop("last_line", None)
    return found | {"ranks": ranks}


def _line(event: Event) -> dict[str, Any]:
    return {"seq": event.seq, "at": event.document()["at"], "kind": event.kind.value,
            "attempt": event.attempt, "text": report.event_text(event)}  # fmt: skip


def _forbidden(text: str) -> HTTPException:
    return HTTPException(status.HTTP_403_FORBIDDEN, text)


@lru_cache(maxsize=4)
def _deps(settings: Settings) -> Deps:
    """Ready adapters, made once: they are safe to use from several threads."""
    from ffdl_airflow import services

    return services.deps(settings, source={"web": True})


def installation() -> Deps:
    """What the API server's settings and the connection ``ffdl_default`` name."""
    return _deps(FfdlHook().settings())


def jobs(access: AccessDep, deps: Annotated[Deps, Depends(installation)]) -> Jobs:
    """The jobs as the one who asks may see them."""
    return Jobs(deps, access)


JobsDep = Annotated[Jobs, Depends(jobs)]
