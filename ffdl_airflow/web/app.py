"""The web app that Airflow's API server mounts at ``/ffdl``: pages, REST API, static files.

It runs in an embedding page of Airflow's (same origin) or by itself. Scripts, styles and pictures
come from here only; nothing is inline, so the policy below forbids what an injected text could do.
"""

from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

from fastapi import FastAPI, HTTPException, Request, Response, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles

from ffdl_airflow.core.errors import FfdlError, NotFoundError
from ffdl_airflow.web import api, pages

LOGIN = "/api/v2/auth/login"
"""Airflow's way to the login page of whatever auth manager there is."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


def create_app() -> FastAPI:
    """The app, without state of its own."""
    app = FastAPI(title="FfDL training", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(api.router)
    app.include_router(pages.router)
    app.mount("/static", StaticFiles(directory=pages.STATIC), name="static")
    app.middleware("http")(_with_headers)
    for kind in (HTTPException, status.HTTP_404_NOT_FOUND, status.HTTP_405_METHOD_NOT_ALLOWED):
        app.exception_handler(kind)(_refused)
    app.exception_handler(RequestValidationError)(_wrong)
    app.exception_handler(FfdlError)(_failed)
    return app


async def _with_headers(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    response = await call_next(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def _refused(request: Request, error: HTTPException) -> Response:
    """A reader without a login is sent to it, a program is told."""
    if error.status_code == status.HTTP_401_UNAUTHORIZED and not _is_program(request):
        airflow = request.scope["root_path"].removesuffix(pages.PREFIX)
        query = urlencode({"next": str(request.url)})
        return RedirectResponse(f"{airflow}{LOGIN}?{query}", status.HTTP_303_SEE_OTHER)
    return _answer(request, error.status_code, str(error.detail))


async def _wrong(request: Request, error: RequestValidationError) -> Response:
    problems = "; ".join(f"{found['loc'][-1]}: {found['msg']}" for found in error.errors())
    return _answer(request, status.HTTP_400_BAD_REQUEST, problems)


async def _failed(request: Request, error: FfdlError) -> Response:
    code = status.HTTP_404_NOT_FOUND
    if not isinstance(error, NotFoundError):
        code = status.HTTP_503_SERVICE_UNAVAILABLE
    return _answer(request, code, error.cause)


def _answer(request: Request, code: int, text: str) -> Response:
    if _is_program(request):
        return JSONResponse({"detail": text}, status_code=code)
    return pages.render(request, "error.html", code=code, number=code, text=text)


def _is_program(request: Request) -> bool:
    return request.url.path.startswith(f"{request.scope['root_path']}{api.API}/")
