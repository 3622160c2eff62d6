"""The one door to the Kubernetes API: requests in and out as plain data.

For: authentication (``kubeconfig.py``) and its renewal, a limit on our own request rate, patience
where the server asks for it (429, 503 with Retry-After), and its answers as errors. Not for:
knowing any kind of object, and what an error means to a person (``refusals.py``).
"""

import json
import math
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import responses
from typing import Any
from urllib.parse import urlencode

import urllib3  # how `kubernetes` speaks HTTP
from kubernetes.client import ApiClient, Configuration
from kubernetes.stream.ws_client import websocket_proxycare

from ffdl_airflow.core.errors import FfdlError
from ffdl_airflow.engines.kubernetes import pod_exec
from ffdl_airflow.engines.kubernetes.kubeconfig import configuration
from ffdl_airflow.engines.kubernetes.pod_exec import BrokenError, Outcome, RefusedError
from ffdl_airflow.engines.kubernetes.rate import RateLimit
from ffdl_airflow.engines.kubernetes.settings import Credentials

Document = dict[str, Any]

CALL_S = 15.0
"""Time-out of a request that is answered at once. Chosen."""
PATIENCE_S = 10.0
"""Longest time that a request waits because the server asks it to (Retry-After). Chosen."""
RATE, BURST = 50.0, 300
"""Requests a second and at once, from one process: what kubectl allows itself. A gang of 256
replicas goes out at once, and what follows is spread."""
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
MERGE_PATCH = "application/merge-patch+json"
RENEW_S = 5.0
"""Credentials that were refused are read anew, and no more often than this. Chosen."""
_NO_CONNECTION = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
_ELSEWHERE, _ERRORS, _TOO_MANY, _UNAVAILABLE = 300, 400, 429, 503
_CONFLICT, _NOT_FOUND, _FORBIDDEN, _UNAUTHORIZED, _GONE = 409, 404, 403, 401, 410


@dataclass(frozen=True)
class Request:
    """What is sent, but for what says who we are."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: str | bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class ApiError(Exception):
    """The API server has said no. ``status`` is HTTP's, ``reason`` its one word, ``text`` why."""

    def __init__(self, status: int, body: Mapping[str, Any], what: str) -> None:
        self.status = status
        self.reason = str(body.get("reason") or responses.get(status, "no reason"))
        self.text = str(body.get("message") or body.get("text") or "no message")
        details = body.get("details")
        self.details: Mapping[str, Any] = details if isinstance(details, dict) else {}
        super().__init__(f"{what}: {status} {self.reason}: {self.text}")

    @property
    def conflict(self) -> bool:
        """An object of that name is there already, or it has changed meanwhile."""
        return self.status == _CONFLICT

    @property
    def not_found(self) -> bool:
        """There is no such object, or no such namespace."""
        return self.status == _NOT_FOUND

    @property
    def forbidden(self) -> bool:
        """We lack a right, or an admission check of the cluster says no (``refusals.py``)."""
        return self.status == _FORBIDDEN

    @property
    def unauthorized(self) -> bool:
        """The API server does not know who we are, or not any more."""
        return self.status == _UNAUTHORIZED

    @property
    def gone(self) -> bool:
        """The resource version is too old to watch from."""
        return self.status == _GONE

    @property
    def namespace_missing(self) -> bool:
        """Nothing can be created, because the namespace is not there."""
        return self.not_found and self.details.get("kind") == "namespaces"


class AwayError(Exception):
    """The API server cannot be reached, or does not answer in time (``late``)."""

    def __init__(self, text: str, *, late: bool = False) -> None:
        super().__init__(text)
        self.late = late


class KubeClient:
    """Requests to one cluster; safe in any number of threads."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._api = ApiClient(configuration(credentials))
        self._renewed_at = -RENEW_S
        self._renewing = threading.Lock()
        self._limit = RateLimit(RATE, BURST)
        self.unreachable_at = -math.inf
        """When no connection to the API server could be made last, by the monotonic clock."""

    @property
    def host(self) -> str:
        """Address of the API server."""
        return str(self._api.configuration.host)

    def get(self, path: str, **query: Any) -> Document:
        """Read an object."""
        return self.call("GET", path, query=query)

    def list(self, path: str, **query: Any) -> Document:
        """Read a list, with ``items`` and the version that it is of."""
        found = self.call("GET", path, query=query)
        items, metadata = found.get("items"), found.get("metadata")
        if "items" not in found or not isinstance(metadata, dict) or not _are_objects(items or []):
            raise self._stranger(f"GET {path}", "a list without items")
        return {**found, "items": items or []}

    def version(self) -> str:
        """The API server's; whoever answers without one is none."""
        found = self.call("GET", "/version").get("gitVersion")
        if not isinstance(found, str) or not found:
            raise self._stranger("GET /version", "no gitVersion")
        return found

    def create(self, path: str, body: Mapping[str, Any], *, one_of_many: bool = False) -> Document:
        """Create an object; ApiError with ``conflict`` where one of that name is there.

        ``one_of_many``: the server is asked to look for no unknown fields and to answer with the
        metadata alone, which for a large gang is a tenth of its work.
        """
        if not one_of_many:
            return self.call("POST", path, body=body)
        return self.call("POST", path, body=body, query={"fieldValidation": "Ignore"},
                         headers={"Accept": METADATA_ONLY})  # fmt: skip

    def patch(self, path: str, body: Mapping[str, Any]) -> Document:
        """Merge-patch an object; with ``metadata.resourceVersion`` only if it is unchanged."""
        return self.call("PATCH", path, body=body, headers={"Content-Type": MERGE_PATCH})

    def replace(self, path: str, body: Mapping[str, Any]) -> Document:
        """Replace an object that has not changed since it was read."""
        return self.call("PUT", path, body=body)

    def delete(self, path: str, *, uid: str | None = None, grace_s: int | None = None) -> None:
        """Delete this very object. One that is gone, or is another by now, is no error."""
        body: Document = {"kind": "DeleteOptions", "apiVersion": "v1",
                          "propagationPolicy": "Background"}  # fmt: skip
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            self.call("DELETE", path, body=body)
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise

    def call(self, method: str, path: str, *, query: Mapping[str, Any] | None = None,
             body: Mapping[str, Any] | None = None,
             headers: Mapping[str, str] | None = None) -> Document:  # fmt: skip
        """One request and its document. Raises ApiError or AwayError."""
        text = None if body is None else json.dumps(body)
        request = Request(method, path, query=query or {}, body=text, headers=headers or {})
        deadline = time.monotonic() + PATIENCE_S
        while True:
            response = self.send(request)
            document = _document(response.data)
            wait_s = _retry_after(response)
            if wait_s is None or time.monotonic() + wait_s > deadline:
                break
            time.sleep(wait_s)
        if response.status >= _ERRORS:
            raise ApiError(response.status, document, str(request))
        if "/proxy/" not in path:  # there somebody else answers
            self._require_api(str(request), response, document)
        return document

    def send(self, request: Request, *, timeout_s: float = CALL_S) -> urllib3.BaseHTTPResponse:
        """One request, whatever the answer is. Raises AwayError."""
        self._limit.take()
        with self._away(str(request)):
            return self._send(request, timeout_s=timeout_s)

    def watch(self, path: str, *, read_s: float, **query: Any) -> Iterator[Document]:
        """Events of a watch until the server ends it. Raises ApiError or AwayError.

        ``read_s``: so long the server may say nothing; bookmarks are asked for, which come at
        least once a minute.
        """
        self._limit.take()
        request = Request(
            "GET", path, query={**query, "watch": "true", "allowWatchBookmarks": "true"}
        )
        what = f"WATCH {path}"
        with self._away(what):
            response = self._send(request, timeout_s=read_s, stream=True)
            try:
                if response.status >= _ERRORS:
                    raise ApiError(response.status, _document(response.read()), what)
                if response.status >= _ELSEWHERE:
                    raise self._stranger(what, f"status {response.status}")
                for line in _lines(response):
                    event = _document(line)
                    if event.get("type") == "ERROR":
                        status = event.get("object") or {}
                        raise ApiError(int(status.get("code") or 0), status, what)
                    if not _are_objects([event.get("object")]):
                        raise self._stranger(what, "a line that is no event")
                    yield event
            finally:
                response.close()
                response.release_conn()

    def execute(self, path: str, words: Sequence[str], *, container: str,
                timeout_s: float) -> Outcome:  # fmt: skip
        """A command in a pod's container, until it has ended. Raises ApiError or AwayError.

        ``path``: the pod's. Whatever the command's exit code is, its end is an answer.
        """
        self._limit.take()
        query = [("container", container), ("stdout", "true"), ("stderr", "true"),
                 *(("command", word) for word in words)]  # fmt: skip
        what, target = f"EXEC {path}", f"{path}/exec?{urlencode(query)}"
        try:
            try:
                return self._execute(target, timeout_s)
            except RefusedError as error:
                if error.status != _UNAUTHORIZED or not self._renew():
                    raise
            return self._execute(target, timeout_s)
        except RefusedError as error:
            raise ApiError(error.status, _document(error.body), what) from error
        except BrokenError as error:
            raise AwayError(f"{what}: {error}") from error

    def _execute(self, target: str, timeout_s: float) -> Outcome:
        headers: dict[str, str] = {}
        with _login():
            self._api.update_params_for_auth(headers, [], ["BearerToken"])
        url = self.host.replace("http", "ws", 1) + target
        return pod_exec.run(url, headers=headers, options=_line_options(self._api.configuration),
                            connect_s=min(CALL_S, timeout_s), timeout_s=timeout_s)  # fmt: skip

    def _require_api(self, what: str, response: urllib3.BaseHTTPResponse,
                     found: Document) -> None:  # fmt: skip
        known = isinstance(found.get("kind") or found.get("gitVersion"), str)
        known = known or any(isinstance(found.get(key), dict) for key in ("metadata", "status"))
        if response.status >= _ELSEWHERE or not known:
            content = response.headers.get("Content-Type") or "no content type"
            raise self._stranger(what, f"status {response.status}, {content}")

    def _stranger(self, what: str, said: str) -> AwayError:
        """Something answers at the address, and it is not what we look for."""
        text = f"what answers at {self.host} is no Kubernetes API server: {said}"
        return AwayError(f"{what}: {text}")

    @contextmanager
    def _away(self, what: str) -> Iterator[None]:
        try:
            yield
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if isinstance(error, _NO_CONNECTION):
                self.unreachable_at = time.monotonic()
            late = isinstance(error, urllib3.exceptions.ReadTimeoutError)
            raise AwayError(f"{what}: {type(error).__name__}: {error}", late=late) from error

    def _send(self, request: Request, *, timeout_s: float,
              stream: bool = False) -> urllib3.BaseHTTPResponse:  # fmt: skip
        """Once more with credentials read anew, where the server does not know those that we have.

        Tokens of the client's own sources are renewed before they end; one that somebody writes
        into a file is not.
        """
        response = self._send_once(request, timeout_s=timeout_s, stream=stream)
        if response.status != _UNAUTHORIZED or not self._renew():
            return response
        response.drain_conn()
        return self._send_once(request, timeout_s=timeout_s, stream=stream)

    def _renew(self) -> bool:
        with self._renewing:
            if time.monotonic() - self._renewed_at < RENEW_S:
                return False
            self._renewed_at = time.monotonic()
            with _login():
                self._api = ApiClient(configuration(self._credentials))
        return True

    def _send_once(self, request: Request, *, timeout_s: float,
                   stream: bool) -> urllib3.BaseHTTPResponse:  # fmt: skip
        headers: dict[str, str] = {"Accept": "application/json", "Content-Type": "application/json"}
        headers.update(request.headers)
        with _login():
            self._api.update_params_for_auth(headers, [], ["BearerToken"])
        said = {name: value for name, value in request.query.items() if value is not None}
        url = self.host + request.path + (f"?{urlencode(said)}" if said else "")
        pool: urllib3.PoolManager = self._api.rest_client.pool_manager
        return pool.request(
            request.method, url, body=request.body, headers=headers, retries=False, redirect=False,
            timeout=urllib3.Timeout(connect=min(CALL_S, timeout_s), read=timeout_s),
            preload_content=not stream,
        )  # fmt: skip


@contextmanager
def _login() -> Iterator[None]:
    """Who has worked once and gets no new credentials is away, until they are there again."""
    try:
        yield
    except FfdlError as error:
        raise AwayError(error.cause) from error


def _line_options(configuration: Configuration) -> Document:
    """TLS and proxy of the configuration, in the words of websocket-client."""
    tls: Document = {"cert_reqs": ssl.CERT_NONE, "check_hostname": False}
    if configuration.verify_ssl:
        check = configuration.assert_hostname is not False
        tls = {"cert_reqs": ssl.CERT_REQUIRED, "check_hostname": check,
               "ca_certs": configuration.ssl_ca_cert}  # fmt: skip
    tls |= {"certfile": configuration.cert_file, "keyfile": configuration.key_file,
            "server_hostname": configuration.tls_server_name}  # fmt: skip
    options: Document = {"sslopt": tls}
    if configuration.proxy or configuration.proxy_headers:
        options = websocket_proxycare(options, configuration, None, None)
    return options


def _retry_after(response: urllib3.BaseHTTPResponse) -> float | None:
    if response.status not in (_TOO_MANY, _UNAVAILABLE):
        return None
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdigit() else None


def _are_objects(found: Any) -> bool:
    """Whether each is one of the API's."""
    return isinstance(found, list) and all(
        isinstance(one, dict) and isinstance(one.get("metadata"), dict) for one in found
    )


def _document(data: bytes) -> Document:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        text = " ".join(data.decode("utf-8", "replace").split())
        return {"message": "an HTML page" if text.startswith("<") else text[:500]}
    return found if isinstance(found, dict) else {"message": str(found)[:500]}


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    buffer = bytearray()
    for chunk in response.stream(None, decode_content=False):
        buffer += chunk
        while (end := buffer.find(b"\n")) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            if line.strip():
                yield line
