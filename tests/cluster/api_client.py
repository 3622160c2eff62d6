"""A tiny client of the API server: JSON in, JSON out, as the administrator."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import httpx


class ApiError(AssertionError):
    """The API server has refused; ``status`` is the HTTP status, ``reason`` Kubernetes' word."""

    def __init__(self, request: str, status: int, body: str, reason: str) -> None:
        super().__init__(f"{request}: {status} {reason}: {body}")
        self.status = status
        self.reason = reason


class Api:
    """Call it: ``api("GET", "/api/v1/nodes")``. Safe to use from several threads."""

    def __init__(self, server: str, ca_file: Path, certificate: Path, key: Path) -> None:
        context = ssl.create_default_context(cafile=str(ca_file))
        context.load_cert_chain(certificate, key)
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        self._client = httpx.Client(
            base_url=server, verify=context, trust_env=False, timeout=60, limits=limits
        )

    def __call__(
        self, method: str, path: str, body: Any = None, *,
        params: dict[str, Any] | None = None, content_type: str = "",
    ) -> Any:  # fmt: skip
        """Return the answer: JSON as data, anything else as text. Raises ApiError.

        The content type of a PATCH is a merge patch unless something else is said.
        """
        answer = self.raw(method, path, body, params=params, content_type=content_type)
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        if answer.is_error:
            reason = answer.json().get("reason", "") if is_json else ""
            raise ApiError(f"{method} {path}", answer.status_code, answer.text, reason)
        return answer.json() if is_json else answer.text

    def raw(
        self, method: str, path: str, body: Any = None, *,
        params: dict[str, Any] | None = None, content_type: str = "",
    ) -> httpx.Response:  # fmt: skip
        """Return the whole HTTP answer, whatever its status."""
        default = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"content-type": content_type or default}
        if body is None:
            return self._client.request(method, path, params=params)
        return self._client.request(method, path, json=body, headers=headers, params=params)

    def find(self, path: str) -> Any | None:
        """GET, or None where there is no such object."""
        try:
            return self("GET", path)
        except ApiError as error:
            if error.status == httpx.codes.NOT_FOUND:
                return None
            raise

    def close(self) -> None:
        self._client.close()
