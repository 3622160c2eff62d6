"""Where the coordinator is met: a Unix socket on one host, a TCP port of its pod between hosts."""

import contextlib
import os
import socket
from typing import Any, Dict, NamedTuple, Optional

BACKLOG = 512
"""Agents that may knock at once; a whole gang does when its pods start together. Chosen."""


class Address(NamedTuple):
    """``path`` of a Unix socket, else ``host`` and ``port``."""

    path: Optional[str] = None
    host: str = ""
    port: int = 0

    @property
    def is_local(self) -> bool:
        """Whether dialling never takes long: no name is looked up and nothing leaves the host."""
        return self.path is not None


def read(entry: Dict[str, Any]) -> Address:
    """From the plan: ``{"unix": path}`` or ``{"host": name, "port": number}``."""
    if "unix" in entry:
        return Address(path=str(entry["unix"]))
    return Address(host=str(entry["host"]), port=int(entry["port"]))


def listen(address: Address) -> socket.socket:
    """A listening socket; a name that an earlier agent left is taken over.

    Only for the holder of the replica lock: nobody else may be listening there.
    """
    if address.path is None:
        listener = _listen_on_all(address.port)
    else:
        remove_socket(address.path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(address.path)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def dial(address: Address, *, timeout_s: float) -> socket.socket:
    """A connection that does not block from now on. Raises ``OSError``.

    To another host it may take up to ``timeout_s`` and the time of the name's resolution.
    """
    if address.path is None:
        peer = socket.create_connection((address.host, address.port), timeout=timeout_s)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setblocking(False)
        return peer
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.setblocking(False)
    try:
        peer.connect(address.path)
    except OSError:
        peer.close()
        raise
    return peer


def forget(address: Address) -> None:
    """Remove what listening has left behind."""
    if address.path is not None:
        remove_socket(address.path)


def remove_socket(path: str) -> None:
    """Remove a socket's name where there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _listen_on_all(port: int) -> socket.socket:
    """On all addresses, IPv6 too where the host has it."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=dual)
