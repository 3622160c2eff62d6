"""Control of a gang over HTTP: the one implementation of ``AgentClient``.

The transport is the engine's: ``unix_transport.py`` on one host, the API server's pod proxy on
Kubernetes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import httpx

from ffdl_airflow.agent import protocol
from ffdl_airflow.engines.base import AgentAway, AgentRefused

_CALL_S = 5.0
"""Time-out of a call that is not held open. Chosen: an agent answers within milliseconds."""


class HttpAgentClient:
    """See :class:`ffdl_airflow.engines.base.AgentClient`.

    ``reachable`` is asked before each call, where the engine can tell without a connection.
    """

    def __init__(self, transport: httpx.BaseTransport, token: str, *,
                 reachable: Callable[[], bool] = lambda: True) -> None:  # fmt: skip
        self._reachable = reachable
        self._client = httpx.Client(
            transport=transport, base_url="http://agent", timeout=_CALL_S,
            headers={protocol.TOKEN_HEADER: token},
        )  # fmt: skip

    def status(self, *, after: int = -1, wait_s: float = 0.0) -> Mapping[str, Any]:
        """The coordinator's document."""
        return self._status({"after": str(after)}, wait_s)

    def news(self, *, journal: int, wait_s: float = 0.0) -> Mapping[str, Any]:
        """The document as soon as the journal is past that number, with its entries since.

        They stand under ``journal``, as protocol.py's files have them.
        """
        return self._status({"journal": str(journal)}, wait_s)

    def _status(self, asked: Mapping[str, str], wait_s: float) -> Mapping[str, Any]:
        wait_s = min(wait_s, protocol.LONG_POLL_S)
        params = {**asked, "wait": str(wait_s)}
        return self._call("GET", protocol.PATH_STATUS, params=params, timeout=wait_s + _CALL_S)

    def go(self, order: Mapping[str, Any]) -> None:
        """Start an attempt."""
        self._call("POST", protocol.PATH_GO, json=dict(order))

    def save(self, why: str) -> None:
        """Ask for a checkpoint."""
        self._call("POST", protocol.PATH_SAVE, json={"why": why})

    def stop(self, *, mode: str, why: str, then: str) -> None:
        """End the running attempt."""
        self._call("POST", protocol.PATH_STOP, json={"mode": mode, "why": why, "then": then})

    def renew(self, hold_s: float) -> None:
        """The hold counts from now."""
        self._call("POST", protocol.PATH_RENEW, json={"hold_s": hold_s})

    def _call(self, method: str, path: str, **options: Any) -> Mapping[str, Any]:
        if not self._reachable():
            raise AgentAway(f"{method} {path}: nobody there")
        try:
            response = self._client.request(method, path, **options)
            document = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise AgentAway(f"{method} {path}: {type(error).__name__}") from error
        if response.is_error:
            raise AgentRefused(str(document.get("error", response.status_code)), document)
        return dict(document)
