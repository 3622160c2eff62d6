"""A follower's side of a connection to the coordinator: one request at a time, kept open.

The end of the connection is reported at once, also between requests.
"""

import socket
from typing import Any, Callable, Dict, Optional

from . import address, wire
from .address import Address
from .loop import Loop, Timer

Done = Callable[[int, Dict[str, Any]], None]
"""Gets the HTTP status and the document; status 0 means that no answer came."""


class Channel:
    """One connection to ``to``, opened at the first request and again after it broke."""

    def __init__(self, loop: Loop, *, to: Address, token: str) -> None:
        self._loop = loop
        self._to = to
        self._token = token
        self._socket: Optional[socket.socket] = None
        self._received = bytearray()
        self._unsent = bytearray()
        self._done: Optional[Done] = None
        self._timer: Optional[Timer] = None

    def post(self, path: str, document: Dict[str, Any], *, timeout_s: float, done: Done) -> None:
        """Send a request; ``done`` is called exactly once, never from within this call."""
        if self._done is not None:
            message = "one request at a time"
            raise RuntimeError(message)
        self._done = done
        self._unsent += wire.post(path, document, token=self._token)
        self._timer = self._loop.call_later(timeout_s, self._lost)
        if self._socket is not None:
            self._writable()
        elif self._to.is_local:
            self._dial_here()
        else:
            self._dial_in_thread(timeout_s)

    def close(self) -> None:
        """Hang up; a request that is under way is forgotten."""
        self._done = None
        self._drop()

    def _dial_here(self) -> None:
        try:
            self._socket = address.dial(self._to, timeout_s=0.0)
        except OSError:
            self._lost_soon()
        else:
            self._writable()

    def _dial_in_thread(self, timeout_s: float) -> None:
        request = self._done

        def dialled(peer: Any, error: Optional[BaseException]) -> None:
            if self._done is not request or self._socket is not None:
                if error is None:
                    peer.close()  # nobody waits for it any more
            elif error is not None:
                self._lost()
            else:
                self._socket = peer
                self._writable()

        self._loop.in_thread(lambda: address.dial(self._to, timeout_s=timeout_s), dialled)

    def _writable(self) -> None:
        peer = self._socket
        if peer is None:
            return
        try:
            sent = peer.send(self._unsent) if self._unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lost_soon()
            return
        del self._unsent[:sent]
        write = self._writable if self._unsent else None
        self._loop.watch(peer.fileno(), read=self._readable, write=write)

    def _readable(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        self._received += data
        try:
            answer = wire.read_response(self._received)
        except wire.WireError:
            self._lost()
            return
        if answer is not None:
            self._finish(*answer)

    def _lost_soon(self) -> None:
        request = self._done
        self._loop.soon(lambda: self._lost() if self._done is request else None)

    def _lost(self) -> None:
        self._drop()
        self._finish(0, {})

    def _finish(self, status: int, document: Dict[str, Any]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        done, self._done = self._done, None
        if done is not None:
            done(status, document)

    def _drop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
        self._socket = None
        self._received.clear()
        self._unsent.clear()
