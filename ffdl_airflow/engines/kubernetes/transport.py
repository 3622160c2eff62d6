"""HTTP to a pod by way of the API server, for :class:`httpx.Client`; no route to pods is needed.

The pod proxy is the way. Where it is forbidden, or the API server itself cannot reach pods, a
command in the pod asks the agent beside it, if ``pods/exec`` is allowed: the kubelet runs it.
"""

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

from ffdl_airflow.agent import protocol
from ffdl_airflow.engines.kubernetes.client import ApiError, AwayError, KubeClient, Request
from ffdl_airflow.engines.kubernetes.refusals import explain, no_way_to_pods
from ffdl_airflow.engines.kubernetes.render import AGENT_DIR, AGENT_FILE, PLACEMENT_DIR
from ffdl_airflow.engines.kubernetes.template import TRAINER

AGAIN_S = 60.0
"""A way that did not lead to the pod is not tried again for so long. Chosen."""
START_S = 10.0
"""What a command may take beside its answer: a Python starts in the pod. Chosen."""
_READ_S = 5.0  # where the request says nothing
_SKIPPED = ("host", "content-length", "connection", "accept-encoding", "user-agent")


@dataclass(frozen=True, kw_only=True)
class Pod:
    """Whom to ask: the pod's ``path`` in the API, the agent's ``port`` and Python in it."""

    path: str
    port: int
    python: str


class ClosedError(httpx.NetworkError):
    """This way does not lead to the pod, whatever is asked."""

    def __init__(self, cause: ApiError | AwayError, request: httpx.Request) -> None:
        super().__init__(str(cause), request=request)
        self.cause = cause
        self.forbidden = isinstance(cause, ApiError) and cause.forbidden


class PodTransport(httpx.BaseTransport):
    """Requests to the agent of one pod; remembers which way works.

    An answer of the API server itself (no such pod, nobody listens) is a NetworkError. Where the
    proxy is forbidden and no command helps, InfrastructureError is raised: no later try helps.
    """

    def __init__(self, client: KubeClient, pod: Pod) -> None:
        self._host = client.host
        self._proxy = _Proxy(client, pod)
        self._command = _Command(client, pod)
        self._forbidden = False  # the proxy is
        self._proxy_at = self._command_at = 0.0  # not before

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request and read the whole answer."""
        if self._forbidden or time.monotonic() < self._proxy_at:
            try:
                return self._command.send(request)
            except ClosedError:
                self._forbidden, self._proxy_at = False, 0.0
                raise
        try:
            return self._proxy.send(request)
        except ClosedError as closed:
            answer = self._instead(request, closed)
            if answer is not None:
                return answer
            if isinstance(closed.cause, ApiError) and closed.forbidden:
                raise explain(closed.cause, doing="reach pods by the proxy",
                              host=self._host) from closed  # fmt: skip
            raise

    def _instead(self, request: httpx.Request, closed: ClosedError) -> httpx.Response | None:
        """The answer by a command; None where that way is closed as well."""
        if time.monotonic() < self._command_at:
            return None
        self._forbidden, self._proxy_at = closed.forbidden, time.monotonic() + AGAIN_S
        try:
            return self._command.send(request)
        except ClosedError as error:
            self._forbidden, self._proxy_at = False, 0.0
            if error.forbidden:
                self._command_at = time.monotonic() + AGAIN_S
            return None


class _Proxy:
    """The API server's pod proxy."""

    def __init__(self, client: KubeClient, pod: Pod) -> None:
        self._client = client
        self._prefix = f"{pod.path}:{pod.port}/proxy"
        self._has_answered = False

    def send(self, request: httpx.Request) -> httpx.Response:
        path = self._prefix + _target(request)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _SKIPPED}
        try:
            answer = self._client.send(
                Request(request.method, path, body=request.read() or None, headers=headers),
                timeout_s=_patience_s(request),
            )  # fmt: skip
        except AwayError as error:
            if error.late and not self._has_answered:  # its packets may be lost, for good
                raise ClosedError(error, request) from error
            raise httpx.NetworkError(str(error), request=request) from error
        response = httpx.Response(answer.status, content=answer.data, request=request)
        if response.is_error:
            self._require_from_the_pod(response, request)
        self._has_answered = True
        return response

    def _require_from_the_pod(self, response: httpx.Response, request: httpx.Request) -> None:
        """The API server's own errors are objects of kind Status; agents' documents have none."""
        try:
            document = response.json()
        except ValueError:
            document = {}
        if document.get("kind") == "Status" or "error" not in document:
            error = ApiError(response.status_code, document, f"{request.method} {self._prefix}")
            if error.forbidden or no_way_to_pods(error):
                raise ClosedError(error, request)
            raise httpx.NetworkError(str(error), request=request)


class _Command:
    """A command in the coordinator's container, see ``agent/ask.py``."""

    def __init__(self, client: KubeClient, pod: Pod) -> None:
        self._client, self._path = client, pod.path
        agent = [pod.python, "-E", "-S", f"{AGENT_DIR}/{AGENT_FILE}"]
        self._words = [*agent, protocol.ASK, PLACEMENT_DIR]

    def send(self, request: httpx.Request) -> httpx.Response:
        body = request.read().decode("utf-8")
        words = [*self._words, request.method, _target(request), *([body] if body else [])]
        try:
            outcome = self._client.execute(
                self._path, words, container=TRAINER, timeout_s=_patience_s(request) + START_S
            )
        except (ApiError, AwayError) as error:
            raise ClosedError(error, request) from error
        answer = _answer(outcome.stdout)
        if answer is None:
            text = outcome.failed or f"no answer: {outcome.stdout[:100]!r}"
            raise ClosedError(ApiError(500, {"message": text}, f"EXEC {self._path}"), request)
        if not answer["status"]:
            raise httpx.NetworkError(str(answer["document"].get("text")), request=request)
        return httpx.Response(answer["status"], json=answer["document"], request=request)


def _target(request: httpx.Request) -> str:
    return request.url.raw_path.decode("ascii")


def _patience_s(request: httpx.Request) -> float:
    timeouts = request.extensions.get("timeout") or {}
    return float(timeouts.get("read") or _READ_S)


def _answer(text: str) -> dict[str, Any] | None:
    """The line that the command prints, None where it is none of ours."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    shaped = isinstance(found, dict) and isinstance(found.get("document"), dict)
    return found if shaped and isinstance(found.get("status"), int) else None
