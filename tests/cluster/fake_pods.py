"""A stand-in for what runs in fake pods: one HTTP server that answers on the address of each.

All addresses of kwok's range lead to one network namespace, where each of them is local; so the API
server's pod proxy reaches this server whichever pod it was asked for. Real pods reach it as well.
"""

from __future__ import annotations

import ctypes
import dataclasses
import http.server
import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

from tests.cluster import network, tools
from tests.cluster.cleanup import Journal
from tests.cluster.places import FAKE_POD_RANGE, FAKE_PODS_IP, Layout, NodePlaces
from tests.cluster.processes import Daemon, run

POLL_S = 0.05
"""How soon `close` is noticed."""
_CLONE_NEWNET = 0x40000000
_SCRIPT = """\
ip link set lo up
ip addr add {ip}/24 dev eth0
ip link set eth0 up
ip route add local {fakes} dev lo
"""


@dataclasses.dataclass(frozen=True)
class Request:
    """What was asked of a pod. ``path`` has the query, ``body`` is empty without one."""

    pod_ip: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Handler = Callable[[Request], Any]
"""Returns what is sent as JSON, or a pair of HTTP status and that."""


class FakePodNetwork:
    """A network namespace that has every address of fake pods, at the bed's bridge.

    Apart from the machine's own, so that every port is free there and no route stays behind.
    """

    def __init__(self, layout: Layout, journal: Journal) -> None:
        self._layout = layout
        self._journal = journal
        words = ["unshare", "--net", tools.path_of("pause")]
        self.daemon = Daemon(layout, journal, "fake-pods", words)

    def start(self, nodes: list[NodePlaces]) -> None:
        """Make it, and tell the machine and the nodes' pods the way there and back."""
        self.daemon.start()
        pid, link = str(self.daemon.pid), f"ffdl{self._layout.suffix}f"
        here = Path("/proc/self/ns/net").readlink()
        self.daemon.wait_until(lambda: Path(f"/proc/{pid}/ns/net").readlink() != here)
        network.plug(self._layout, self._journal, link, pid=pid)
        lines = [_SCRIPT.format(ip=FAKE_PODS_IP, fakes=FAKE_POD_RANGE)]
        lines += [f"ip route add {node.pod_range} via {node.ip}\n" for node in nodes]
        run("nsenter", "-t", pid, "-n", "sh", "-e", text="".join(lines))
        run("ip", "route", "add", FAKE_POD_RANGE, "via", FAKE_PODS_IP)

    def listen(self, port: int) -> socket.socket:
        """A socket inside. Entering is for a whole thread, so one does only that and ends."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self._listen, port).result()

    def _listen(self, port: int) -> socket.socket:
        with Path(f"/proc/{self.daemon.pid}/ns/net").open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        return socket.create_server(("", port), backlog=512)


class FakePods:
    """Serves one port of all fake pods until it is closed; the handler runs in many threads."""

    def __init__(self, fakes: FakePodNetwork, port: int, handler: Handler) -> None:
        self._server = _Server(fakes.listen(port), handler)
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(POLL_S,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: Handler) -> None:
        super().__init__(listening.getsockname(), _Call, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.answer = handler


class _Call(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        request = Request(
            pod_ip=self.connection.getsockname()[0], method=self.command, path=self.path,
            headers={key.lower(): value for key, value in self.headers.items()}, body=body,
        )  # fmt: skip
        answer = self.server.answer(request)
        status, data = answer if isinstance(answer, tuple) else (200, answer)
        content = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 (the library's names)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the library's name)
        """Say nothing: a test looks at what its handler was given."""
