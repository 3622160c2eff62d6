"""The agent's door: HTTP, served by the loop, answers may come later.

Every request needs the placement's token. A request that is held open knows when its caller goes
away, which is how the loss of a neighbour is seen at once.
"""

import hmac
import socket
from typing import Any, Callable, Dict, List, Optional, Set

from . import address, protocol, wire
from .address import Address
from .log import log_fault
from .loop import Callback, Loop


class Connection:
    """One caller. A handler answers by :meth:`respond`, now or later, once for each request."""

    def __init__(self, server: "Server", peer: socket.socket) -> None:
        self._server = server
        self._socket = peer
        self._received = bytearray()
        self._unsent = bytearray()
        self._busy = False
        self._open = True
        self._on_close: List[Callback] = []
        server.loop.watch(peer.fileno(), read=self._readable)

    def respond(self, status: int, document: Dict[str, Any]) -> None:
        """Send the answer; does nothing where the caller has gone or has been answered."""
        if not (self._open and self._busy):
            return
        self._busy = False
        self._send(wire.response(status, document))
        if self._open:
            self._server.loop.soon(self._serve)

    def when_closed(self, callback: Callback) -> None:
        """Call back when the caller's end is closed."""
        self._on_close.append(callback)

    def close(self) -> None:
        """Hang up."""
        if not self._open:
            return
        self._open = False
        self._server.loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._server.connections.discard(self)
        for callback in self._on_close:
            callback()

    def _readable(self) -> None:
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._received += data
        self._serve()

    def _serve(self) -> None:
        if self._busy or not self._open or not self._received:
            return
        try:
            request = wire.read_request(self._received)
        except wire.WireError as error:
            self._busy = True
            self.respond(error.status, {"v": 1, "error": "bad-request", "text": str(error)})
            self.close()
            return
        if request is not None:
            self._busy = True
            self._server.serve(request, self)

    def _send(self, data: bytes) -> None:
        self._unsent += data
        self._writable()

    def _writable(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        del self._unsent[:sent]
        write: Optional[Callback] = self._writable if self._unsent else None
        self._server.loop.watch(self._socket.fileno(), read=self._readable, write=write)


Handler = Callable[[wire.Request, Connection], None]


class Server:
    """Listens at ``at`` and gives each request with the right token to ``handler``."""

    def __init__(self, loop: Loop, *, at: Address, token: str, handler: Handler) -> None:
        self.loop = loop
        self.connections: Set[Connection] = set()
        self._at = at
        self._token = token
        self._handler = handler
        self._listener = address.listen(at)
        loop.watch(self._listener.fileno(), read=self._accept)

    def serve(self, request: wire.Request, connection: Connection) -> None:
        """Check the token, then hand over; a fault in a handler is answered with 500."""
        given = request.headers.get(protocol.TOKEN_HEADER.lower(), "")
        if not hmac.compare_digest(given.encode("utf-8"), self._token.encode("utf-8")):
            text = "header %s does not carry this placement's token" % protocol.TOKEN_HEADER
            connection.respond(403, {"v": 1, "error": "wrong-token", "text": text})
            return
        try:
            self._handler(request, connection)
        except wire.WireError as error:
            connection.respond(error.status, {"v": 1, "error": "bad-request", "text": str(error)})
        except Exception as error:  # noqa: BLE001 - a caller must not be able to end the gang
            log_fault("request %s failed" % request.path)
            connection.respond(500, {"v": 1, "error": "agent-fault", "text": repr(error)})

    def close(self) -> None:
        """Stop listening, hang up on everybody and remove the socket's name."""
        self.loop.unwatch(self._listener.fileno())
        self._listener.close()
        for connection in list(self.connections):
            connection.close()
        address.forget(self._at)

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        peer.setblocking(False)
        self.connections.add(Connection(self, peer))
