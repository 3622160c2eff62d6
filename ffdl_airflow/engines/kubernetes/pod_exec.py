"""A command in a container over a websocket, by Kubernetes' channel protocol; its output as text.

For: ``client.py``, which says who we are. Not for: input to the command. The client library's own
websocket client was the alternative: it has no time-out for the connection, and waits on a TLS
socket for bytes that it has read already.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import websocket

Document = dict[str, Any]

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDOUT, _STDERR, _ERROR = 1, 2, 3
_SHOWN = 500  # of what a command says on its standard error


class RefusedError(Exception):
    """The API server has not made a websocket of it: HTTP's ``status``, and the body."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status, self.body = status, body
        super().__init__(f"{status}")


class BrokenError(Exception):
    """No connection, or it ended before the command did."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a command has said, and the API server's word on its end."""

    stdout: str
    stderr: str
    status: Mapping[str, Any]

    @property
    def failed(self) -> str | None:
        """Why it did not end with 0, None where it did."""
        if self.status.get("status") == "Success":
            return None
        return f"{self.status.get('message')} {self.stderr.strip()[-_SHOWN:]}".strip()


def run(url: str, *, headers: Mapping[str, str], options: Mapping[str, Any],
        connect_s: float, timeout_s: float) -> Outcome:  # fmt: skip
    """Run it. ``options`` are websocket-client's, of TLS and proxy.

    Raises RefusedError, or BrokenError after ``timeout_s`` without the command's end.
    """
    deadline = time.monotonic() + timeout_s
    try:
        line = websocket.create_connection(
            url, timeout=connect_s, subprotocols=list(PROTOCOLS), enable_multithread=False,
            header=[f"{name}: {value}" for name, value in headers.items()], **options,
        )  # fmt: skip
    except websocket.WebSocketBadStatusException as error:
        raise RefusedError(error.status_code, error.resp_body or b"") from error
    except (websocket.WebSocketException, OSError) as error:
        raise BrokenError(f"{type(error).__name__}: {error}") from error
    try:
        return _read(line, deadline)
    except (websocket.WebSocketException, OSError) as error:
        raise BrokenError(f"{type(error).__name__}: {error}") from error
    finally:
        line.close(timeout=0)


def _read(line: websocket.WebSocket, deadline: float) -> Outcome:
    """Frames begin with the number of a channel; the last word is on the error channel."""
    said: dict[int, bytes] = {_STDOUT: b"", _STDERR: b""}
    while True:
        line.settimeout(max(0.001, deadline - time.monotonic()))
        code, frame = line.recv_data_frame(control_frame=True)
        if code == websocket.ABNF.OPCODE_CLOSE:
            raise BrokenError("the line was closed before the command ended")
        data: bytes = frame.data if _carries(code) else b""
        channel, text = (data[0], data[1:]) if data else (-1, b"")
        if channel == _ERROR:
            return Outcome(
                stdout=_text(said[_STDOUT]), stderr=_text(said[_STDERR]), status=_document(text)
            )
        if channel in said:
            said[channel] += text


def _carries(code: int) -> bool:
    kinds: Sequence[int] = (websocket.ABNF.OPCODE_BINARY, websocket.ABNF.OPCODE_TEXT)
    return code in kinds


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _document(data: bytes) -> Document:
    try:
        found = json.loads(data)
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}
