"""A free port for each process of a replica, found before the start and kept until then.

A port is bound from the checks to the moment in which the processes are started, so that two gangs
on one host never get the same one. In the second or two until a trainer binds it itself somebody
else could take it: then the trainer ends with "Address already in use", and the gang starts anew.
"""

import errno
import os
import socket
from typing import List

from .plan import ReplicaPlan

FIRST, LAST = 20000, 32767
"""Where ports are looked for: below Linux's ephemeral range (net.ipv4.ip_local_port_range, from
32768). In that range the kernel gives ports away to any connection, and a process that tries again
and again to reach a local port there may in the end connect to itself."""
TRIES = 200


class PortError(RuntimeError):
    """A port that the plan asks for is taken, or none is free."""


def hold(replica: ReplicaPlan) -> List[socket.socket]:
    """A bound socket for each process. Raises ``PortError`` with the port and its process."""
    held: List[socket.socket] = []
    for process in replica.processes:
        try:
            held.append(_any() if process.port is None else _bound(process.port))
        except OSError as error:
            release(held)
            which = "no port is free" if process.port is None else "port %d" % process.port
            message = "%s: %s" % (which, error.strerror)
            raise PortError(message) from error
    return held


def release(held: List[socket.socket]) -> None:
    """Let the ports go."""
    for one in held:
        one.close()
    held.clear()


def number(held: socket.socket) -> int:
    """The port of a socket."""
    return int(held.getsockname()[1])


def _any() -> socket.socket:
    for _ in range(TRIES):
        try:
            chance = int.from_bytes(os.urandom(4), "big")
            return _bound(FIRST + chance % (LAST + 1 - FIRST))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return _bound(0)


def _bound(port: int) -> socket.socket:
    """Bound on all addresses, without SO_REUSEADDR: a port that still winds down is not free."""
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.bind(("", port))
    except OSError:
        held.close()
        raise
    return held
