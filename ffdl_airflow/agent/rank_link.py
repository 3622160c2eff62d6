"""The socket that the trainer's ``ffdl`` module talks to: JSON objects, one on a line.

From a rank: ``hello`` (rank, attempt, pid), ``progress``, ``checkpoint``, ``checkpoint-abort``.
To a rank: ``save`` and ``checkpoint`` with what became of it. A process of an older attempt is not
listened to.
"""

import json
import socket
from typing import Any, Callable, Dict, List, Optional

from . import address, protocol
from .address import Address
from .loop import Loop

MAX_LINE_BYTES = 1 << 20


class Rank:
    """One connected process; ``rank`` is None until it has said hello."""

    def __init__(self, link: "RankLink", peer: socket.socket) -> None:
        self._link = link
        self._socket = peer
        self._received = bytearray()
        self._unsent = bytearray()
        self.rank: Optional[int] = None
        self.pid = 0
        link.loop.watch(peer.fileno(), read=self.read)

    def send(self, message: Dict[str, Any]) -> None:
        """Send a message; a peer that reads nothing for a megabyte is hung up on."""
        self._unsent += json.dumps(message).encode() + b"\n"
        if len(self._unsent) > MAX_LINE_BYTES:
            self.close()
        else:
            self._writable()

    def close(self) -> None:
        """Hang up."""
        if self in self._link.ranks:
            self._link.ranks.remove(self)
            self._link.loop.unwatch(self._socket.fileno())
            self._socket.close()

    def _writable(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        del self._unsent[:sent]
        write = self._writable if self._unsent else None
        self._link.loop.watch(self._socket.fileno(), read=self.read, write=write)

    def read(self) -> bool:
        """Take in what has come, its end as well. Returns whether there may be more."""
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._received += data
        *lines, rest = bytes(self._received).split(b"\n")
        self._received = bytearray(rest)
        for line in lines:
            self._message(line)
        if not data or len(rest) > MAX_LINE_BYTES:
            self.close()
        return self in self._link.ranks

    def _message(self, line: bytes) -> None:
        try:
            message = json.loads(line.decode("utf-8"))
            kind = str(message["t"])
            if kind == "hello":
                self._hello(message)
            elif self.rank is not None:
                self._link.deliver(self, kind, message)
        except (ValueError, TypeError, KeyError, AttributeError):
            self.close()

    def _hello(self, message: Dict[str, Any]) -> None:
        if message.get("v") != protocol.VERSION or message.get("attempt") != self._link.attempt:
            self.close()
            return
        self.rank, self.pid = int(message["rank"]), int(message["pid"])
        if self._link.save_wish is not None:
            self.send(self._link.save_wish)


class RankLink:
    """Listens for the ranks of this replica. ``deliver`` gets (rank, kind, message)."""

    def __init__(
        self, loop: Loop, *, path: str, deliver: Callable[[Rank, str, Dict[str, Any]], None]
    ) -> None:
        self.loop = loop
        self.deliver = deliver
        self.attempt: Optional[int] = None
        self.ranks: List[Rank] = []
        self.save_wish: Optional[Dict[str, Any]] = None
        self._path = path
        self._listener = address.listen(Address(path=path))
        loop.watch(self._listener.fileno(), read=self._accept)

    def begin(self, attempt: int) -> None:
        """Listen to processes of this attempt only."""
        self.attempt = attempt
        self.save_wish = None
        for rank in list(self.ranks):
            rank.close()

    def ask_save(self, why: str) -> int:
        """Ask every connected rank for a checkpoint; returns how many were asked."""
        self.save_wish = {"t": "save", "why": why}
        connected = [rank for rank in self.ranks if rank.rank is not None]
        for rank in connected:
            rank.send(self.save_wish)
        return len(connected)

    def drain(self) -> None:
        """Take in what lies in the sockets: the last words of a process that has just ended."""
        while self._accept():
            pass
        for rank in list(self.ranks):
            while rank.read():
                pass

    def close(self) -> None:
        """Stop listening and remove the socket's name."""
        self.loop.unwatch(self._listener.fileno())
        self._listener.close()
        for rank in list(self.ranks):
            rank.close()
        address.remove_socket(self._path)

    def _accept(self) -> bool:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return False
        peer.setblocking(False)
        self.ranks.append(Rank(self, peer))
        return True
