"""HTTP over a Unix socket, a connection for each request: for gangs on the host of their driver.

Not httpx's own transport: when nobody listens it leaves the socket to the garbage collector, and
looking for a gang that has just left is nothing rare. It costs 0.3 ms more, too (measured).
"""

import http.client
import socket

import httpx


class UnixTransport(httpx.BaseTransport):
    """Requests to whoever listens at ``path``."""

    def __init__(self, path: str) -> None:
        self._path = path

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request and read the whole answer."""
        timeouts = request.extensions.get("timeout") or {}
        connection = _Connection(self._path, timeout_s=timeouts.get("read"))
        try:
            target = request.url.raw_path.decode("ascii")
            connection.request(request.method, target, request.read(), dict(request.headers))
            answer = connection.getresponse()
            return httpx.Response(
                answer.status, headers=answer.getheaders(), content=answer.read(), request=request
            )
        except TimeoutError as error:
            raise httpx.ReadTimeout(str(error), request=request) from error
        except (OSError, http.client.HTTPException) as error:
            raise httpx.NetworkError(repr(error), request=request) from error
        finally:
            connection.close()


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, *, timeout_s: float | None) -> None:
        super().__init__("agent", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """To the socket's path in place of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
