"""HTTP/1.1 as far as agents need it: small JSON bodies with a length, and connections that stay.

For: reading and writing the messages of protocol.py's paths from byte buffers, without I/O. Not
for: a general web server; chunked bodies are refused. The standard library's ``http`` package was
the alternative: it blocks a thread for each long-poll and its import costs 30 ms of CPU.
"""

import json
from typing import Any, Dict, NamedTuple, Optional, Tuple

from . import protocol

MAX_HEAD_BYTES = 16 << 10
MAX_BODY_BYTES = 4 << 20
"""Chosen: a beat of a replica with a thousand ranks has about 400 KiB."""

REASONS = {
    200: "OK", 202: "Accepted", 400: "Bad Request", 403: "Forbidden", 404: "Not Found",
    405: "Method Not Allowed", 409: "Conflict", 410: "Gone", 413: "Payload Too Large",
    500: "Internal Server Error",
}  # fmt: skip


class WireError(ValueError):
    """What came is not HTTP as we speak it. ``status`` is the answer that fits."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Request(NamedTuple):
    """One request. ``headers`` have lower-case names; ``body`` is {} where there is none."""

    method: str
    path: str
    query: Dict[str, str]
    headers: Dict[str, str]
    body: Dict[str, Any]


def read_request(buffer: bytearray) -> Optional[Request]:
    """Take one whole request off the front of ``buffer``; None while more bytes are needed.

    Raises ``WireError`` where what is there can never become a request.
    """
    message = _take_message(buffer)
    if message is None:
        return None
    first, headers, raw = message
    method, _, rest = first.partition(" ")
    target, _, version = rest.partition(" ")
    if not version.startswith("HTTP/1."):
        raise WireError(400, "not an HTTP/1.1 request line")
    path, _, query = target.partition("?")
    return Request(method, path, _query(query), headers, _document(raw))


def read_response(buffer: bytearray) -> Optional[Tuple[int, Dict[str, Any]]]:
    """Take one whole response off the front of ``buffer``: (status, document), or None."""
    message = _take_message(buffer)
    if message is None:
        return None
    first, _, raw = message
    code = first.partition(" ")[2][:3]
    if not code.isdigit():
        raise WireError(400, "not an HTTP/1.1 status line")
    return int(code), _document(raw)


def response(status: int, document: Dict[str, Any]) -> bytes:
    """The bytes of an answer."""
    body = json.dumps(document).encode()
    head = "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return (head % (status, REASONS.get(status, "Unknown"), len(body))).encode() + body


def post(path: str, document: Dict[str, Any], *, token: str) -> bytes:
    """The bytes of a POST that carries the placement's token."""
    return request("POST", path, document, token=token)


def request(method: str, path: str, document: Optional[Dict[str, Any]], *, token: str) -> bytes:
    """The bytes of a request that carries the placement's token; no document, no body."""
    body = b"" if document is None else json.dumps(document).encode()
    head = "%s %s HTTP/1.1\r\nHost: ffdl\r\n%s: %s\r\nContent-Length: %d\r\n\r\n"
    return (head % (method, path, protocol.TOKEN_HEADER, token, len(body))).encode() + body


def _take_message(buffer: bytearray) -> Optional[Tuple[str, Dict[str, str], bytes]]:
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        if len(buffer) > MAX_HEAD_BYTES:
            raise WireError(413, "the head of the message is too long")
        return None
    lines = bytes(buffer[:end]).decode("latin-1").split("\r\n")
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if "transfer-encoding" in headers:
        raise WireError(400, "Transfer-Encoding is not supported, send Content-Length")
    length = headers.get("content-length", "0")
    if not length.isdigit():
        raise WireError(400, "Content-Length is not a number")
    if int(length) > MAX_BODY_BYTES:
        raise WireError(413, "the body has more than %d bytes" % MAX_BODY_BYTES)
    whole = end + 4 + int(length)
    if len(buffer) < whole:
        return None
    raw = bytes(buffer[end + 4 : whole])
    del buffer[:whole]
    return lines[0], headers, raw


def _document(raw: bytes) -> Dict[str, Any]:
    if not raw.strip():
        return {}
    try:
        document = json.loads(raw.decode("utf-8"))
    except ValueError:
        raise WireError(400, "the body is not JSON") from None
    if not isinstance(document, dict):
        raise WireError(400, "the body is not a JSON object")
    return document


def _query(text: str) -> Dict[str, str]:
    found = {}
    for pair in text.split("&"):
        name, _, value = pair.partition("=")
        if name:
            found[_unquote(name)] = _unquote(value)
    return found


def _unquote(text: str) -> str:
    parts = text.replace("+", " ").encode("utf-8").split(b"%")
    raw = parts[0]
    for part in parts[1:]:
        try:
            raw += bytes([int(part[:2], 16)]) + part[2:]
        except ValueError:
            raw += b"%" + part
    return raw.decode("utf-8", "replace")
