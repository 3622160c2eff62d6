"""The pages: HTML made on the server, which works without JavaScript. GET only."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ffdl_airflow import report
from ffdl_airflow.core.lifecycle import Phase
from ffdl_airflow.core.quantities import format_bytes, format_duration
from ffdl_airflow.web.access import AccessDep
from ffdl_airflow.web.reading import JobsDep

_FOLDER = Path(__file__).parent
STATIC = _FOLDER / "static"
PREFIX = "/ffdl"
"""Where the app is mounted below Airflow."""

router = APIRouter()


@router.get("/")
def index(request: Request, _: AccessDep) -> RedirectResponse:
    """The list."""
    return RedirectResponse(f"{request.scope['root_path']}/jobs")


@router.get("/jobs", response_class=HTMLResponse)
def jobs_page(request: Request, jobs: JobsDep, *, phase: Phase | None = None,
              page: Annotated[int, Query(ge=1)] = 1) -> HTMLResponse:  # fmt: skip
    """The jobs that the reader may see."""
    return render(request, "jobs.html", **jobs.page(phase=phase, number=page))


@router.get("/jobs/{job_id}", response_class=HTMLResponse)
def job_page(request: Request, jobs: JobsDep, job_id: str) -> HTMLResponse:
    """One job."""
    return render(request, "job.html", told=jobs.job(job_id), tails=jobs.tails(job_id))


def render(request: Request, template: str, *, code: int = 200, **values: Any) -> HTMLResponse:
    """A page of a template. Everything that is put into it is escaped."""
    root = request.scope["root_path"]
    text = _TEMPLATES.get_template(template).render(
        root=root, airflow=root.removesuffix(PREFIX), path=request.url.path, **values
    )
    return HTMLResponse(text, status_code=code)


def moment(text: str | None) -> str:
    """A time as people read it, in UTC."""
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S}" if text else "-"


def share(part: float, whole: float) -> str:
    """A part in percent of the whole, for the place and width of a bar."""
    return f"{max(0.0, 100 * part / whole):.2f}" if whole > 0 else "0"


def tenths(parts: Mapping[str, float]) -> dict[str, float]:
    """Slot-seconds to one digit; the parts sum to the total as it stands there."""
    return report.slot_seconds(parts, digits=1)


def number(value: Any) -> str:
    """A measured value, short."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters.update(
        moment=moment,
        seconds=format_duration,
        size=format_bytes,
        share=share,
        number=number,
        tenths=tenths,
    )
    return made


_TEMPLATES = _environment()
