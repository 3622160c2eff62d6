"""The REST API: the same as the pages show, as JSON, and the logs as plain text. GET only."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse

from ffdl_airflow.core.lifecycle import Phase
from ffdl_airflow.web.reading import PAGE, JobsDep

API = "/api/v1"
MOST = 500
"""Most jobs of one answer. Chosen."""

router = APIRouter(prefix=API)


@router.get("/status")
def status(jobs: JobsDep) -> dict[str, Any]:
    """The installation: version, slots, how many jobs are in which phase."""
    return jobs.status()


@router.get("/jobs")
def list_jobs(jobs: JobsDep, *, phase: Phase | None = None, page: Annotated[int, Query(ge=1)] = 1,
              limit: Annotated[int, Query(ge=1, le=MOST)] = PAGE) -> dict[str, Any]:  # fmt: skip
    """One page of the jobs, newest first."""
    return jobs.page(phase=phase, number=page, size=limit)


@router.get("/jobs/{job_id}")
def one_job(jobs: JobsDep, job_id: str) -> dict[str, Any]:
    """All of one job."""
    return jobs.job(job_id)


@router.get("/jobs/{job_id}/log", response_class=PlainTextResponse)
def log(jobs: JobsDep, job_id: str, *, rank: str | None = None,
        attempt: Annotated[int | None, Query(ge=1)] = None) -> PlainTextResponse:  # fmt: skip
    """The end of a rank's log. ``rank`` may be the name of a process that has no rank."""
    return PlainTextResponse(jobs.log(job_id, label=rank, attempt=attempt))
