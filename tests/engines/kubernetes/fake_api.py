"""An API server as far as the engine uses one: objects in memory, over real HTTP.

Pods are bound and run as soon as they are made, if ``binds`` says so; what an object owns goes with
it. Not for: what the real one refuses (tests/cluster has a real one).
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ffdl_airflow.engines.kubernetes.settings import Credentials, KubernetesSettings

Plain = dict[str, Any]
Answer = tuple[int, Plain]
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class FakeApi(http.server.ThreadingHTTPServer):
    """``forbidden``: pairs of verb and resource, such as ``("get", "pods/proxy")``.

    ``proxied`` answers for a pod what is asked of it: method, path with query, headers, body.
    ``judged`` answers for a pod that is sent with ``dryRun``.
    ``executed`` gives the output, errors and exit code of a command in a container.
    ``stranger``: status, content type and body of all answers, as of a server of another kind.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Call)
        self.objects: dict[str, Plain] = {}
        self.changes: list[tuple[int, str, Plain]] = []
        self.forbidden: set[tuple[str, str]] = {("list", "nodes")}
        self.requests: list[tuple[str, str]] = []
        self.reviews: list[Plain] = []
        self.binds: Callable[[Plain], bool] = lambda pod: True
        self.judged: Callable[[Plain], Answer] = lambda pod: (201, pod)
        self.proxied: Callable[..., Answer] = lambda *call: (503, status(503, "no route to host"))
        self.executed: Callable[..., tuple[str, str, int]] = lambda container, words: ("", "", 1)
        self.stranger: tuple[int, str, bytes] | None = None
        self.changed = threading.Condition()
        self.closing = False
        self._version = 1

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def credentials(self) -> Credentials:
        text = json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "c", "user": {"token": "driver"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        })  # fmt: skip
        return Credentials(kubeconfig=text + "\n")

    def settings(self, **fields: Any) -> KubernetesSettings:
        wanted = {"namespace": "ml", "installation_key": b"k", "agent_image": "reg/agent:1"}
        return KubernetesSettings(credentials=self.credentials, **{**wanted, **fields})

    def named(self, kind: str, *, namespace: str = "ml") -> dict[str, Plain]:
        """Objects of a kind by their name."""
        with self.changed:
            found = dict(self.objects)
        part = f"/namespaces/{namespace}/{kind}/"
        return {path.rpartition("/")[2]: one for path, one in found.items() if part in path}

    def keep(self, path: str, found: Plain, kind: str) -> Plain:
        """Write an object; ``kind`` of the event that watches see."""
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        if kind == "DELETED":
            self.objects.pop(path, None)
        else:
            self.objects[path] = found
        self.changes.append((self._version, kind, {"path": path, "object": deepcopy(found)}))
        self.changed.notify_all()
        return found

    def version(self) -> int:
        return self._version


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[FakeApi]:
    api = FakeApi()
    if tls is not None:
        api.socket = tls.wrap_socket(api.socket, server_side=True)
    thread = threading.Thread(target=lambda: api.serve_forever(0.05), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        with api.changed:
            api.closing = True
            api.changed.notify_all()
        api.shutdown()
        api.server_close()


def status(code: int, text: str, reason: str = "") -> Plain:
    """An error of the API server itself."""
    return {"kind": "Status", "code": code, "message": text, "reason": reason}


class _Call(http.server.BaseHTTPRequestHandler):
    server: FakeApi
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        url = urlsplit(self.path)
        self.query = dict(parse_qsl(url.query))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.changed:
            self.server.requests.append((self.command, self.path))
        if self.server.stranger is not None:
            self._write(*self.server.stranger)
            return
        namespace, kind, name, below = _parts(url.path)
        resource = f"{kind}/{below.partition('/')[0]}" if below else kind
        verb = self._verb(name=name)
        if (verb, resource) in self.server.forbidden:
            where = f'in API group "" in the namespace "{namespace}"'
            text = f'{kind} is forbidden: User "driver" cannot {verb} resource "{resource}" {where}'
            self._answer(403, status(403, text, "Forbidden"))
        elif resource == "pods/exec":
            self._execute(parse_qsl(url.query))
        elif resource == "pods/proxy":
            rest = below.partition("/")[2]
            path = f"/{rest}" + (f"?{url.query}" if url.query else "")
            self._answer(*self.server.proxied(self.command, path, self.headers, self.body))
        elif self.query.get("watch"):
            self._watch(url.path)
        else:
            with self.server.changed:
                code, found = self._object(url.path, name=name)
            self._answer(code, found)

    def __getattr__(self, name: str) -> Any:
        """All methods are served alike."""
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def log_message(self, *words: object) -> None:
        pass

    def _execute(self, query: list[tuple[str, str]]) -> None:
        """By the channel protocol's version 5: output, the end's status, a close."""
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        digest = hashlib.sha1(key.encode()).digest()  # noqa: S324 - RFC 6455 has it so
        self.send_response(101)
        for name, value in {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Accept": base64.b64encode(digest).decode(),
            "Sec-WebSocket-Protocol": "v5.channel.k8s.io",
        }.items():
            self.send_header(name, value)  # fmt: skip
        self.end_headers()
        words = [value for name, value in query if name == "command"]
        stdout, stderr, code = self.server.executed(dict(query)["container"], words)
        half = len(stdout) // 2
        for channel, data in ((1, stdout[:half]), (1, stdout[half:]), (2, stderr)):
            self._send(_frame(bytes([channel]) + data.encode()))
        self._send(_frame(b"\xff\x01"))
        end = {"status": "Success"} if code == 0 else {
            "status": "Failure", "reason": "NonZeroExitCode",
            "message": f"command terminated with non-zero exit code: exit status {code}",
        }  # fmt: skip
        self._send(_frame(b"\x03" + json.dumps(end).encode()))
        self.close_connection = True

    def _verb(self, *, name: str) -> str:
        if self.command == "GET":
            return "watch" if self.query.get("watch") else "get" if name else "list"
        return VERBS[self.command]

    def _object(self, path: str, *, name: str) -> Answer:
        if self.command == "POST" and self.query.get("dryRun"):
            return self.server.judged(json.loads(self.body))
        if path == "/version":
            return 200, {"gitVersion": "v1.35.0"}
        if self.command == "POST":
            return self._create(path, json.loads(self.body))
        if not name:
            items = [one for at, one in self.server.objects.items() if self._wanted(at, one, path)]
            return 200, {
                "items": items,
                "resources": [],
                "metadata": {"resourceVersion": str(self.server.version())},
            }
        found = self.server.objects.get(path)
        if found is None:
            return 404, status(404, f"{path} not found", "NotFound")
        return (200, found) if self.command == "GET" else self._change(path, found)

    def _change(self, path: str, found: Plain) -> Answer:
        body = json.loads(self.body)
        asked = body.get("preconditions") or body.get("metadata") or {}
        for key in ("uid", "resourceVersion"):
            if asked.get(key) not in (None, found["metadata"][key]):
                return 409, status(409, f"another {key}", "Conflict")
        if self.command == "DELETE":
            self._delete(path, found)
            return 200, found
        written = body if self.command == "PUT" else _merged(found, body)
        return 200, self.server.keep(path, written, "MODIFIED")

    def _create(self, path: str, body: Plain) -> Answer:
        if path.endswith("selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            self.server.reviews.append(asked)
            parts = filter(None, (asked["resource"], asked.get("subresource")))
            denied = (asked["verb"], "/".join(parts)) in self.server.forbidden
            return 201, {"status": {"allowed": not denied}}
        at = f"{path}/{body['metadata']['name']}"
        if at in self.server.objects:
            return 409, status(409, f"{at} already exists", "AlreadyExists")
        body["metadata"]["uid"] = f"uid-{self.server.version()}"
        if path.endswith("/pods"):
            bound = self.server.binds(body)
            body["status"] = {"phase": "Running" if bound else "Pending"}
            body["spec"] |= {"nodeName": "n0"} if bound else {}
        if self.query.get("dryRun"):
            return 201, body
        return 201, self.server.keep(at, body, "ADDED")

    def _delete(self, path: str, found: Plain) -> None:
        self.server.keep(path, found, "DELETED")
        uid = found["metadata"]["uid"]
        for at, one in list(self.server.objects.items()):
            if any(o["uid"] == uid for o in one["metadata"].get("ownerReferences", ())):
                self._delete(at, one)

    def _wanted(self, at: str, found: Plain, path: str) -> bool:
        labels = found["metadata"].get("labels") or {}
        selector = self.query.get("labelSelector", "")
        key, _, value = selector.partition("=")
        said = not selector or (key in labels and value in ("", labels[key]))
        name = self.query.get("fieldSelector", "").partition("metadata.name=")[2]
        return at.rpartition("/")[0] == path and said and name in ("", found["metadata"]["name"])

    def _watch(self, path: str) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        version = int(self.query["resourceVersion"])
        while not (self.server.closing or self.close_connection):
            with self.server.changed:
                news = [one for one in self.server.changes if one[0] > version]
                if not news:
                    self.server.changed.wait(1.0)
            for number, kind, change in news:
                version = number
                if self._wanted(change["path"], change["object"], path):
                    line = json.dumps({"type": kind, "object": change["object"]}).encode() + b"\n"
                    self._send(b"%x\r\n%s\r\n" % (len(line), line))

    def _answer(self, code: int, found: Plain) -> None:
        self._write(code, "application/json", json.dumps(found).encode())

    def _write(self, code: int, content: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self._send(body)

    def _send(self, data: bytes) -> None:
        try:
            self.wfile.write(data)
            self.wfile.flush()
        except OSError:  # who asked has gone
            self.close_connection = True


def _frame(payload: bytes) -> bytes:
    """A binary frame as a server sends it."""
    size = len(payload)
    head = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big")
    return b"\x82" + head + payload


def _parts(path: str) -> tuple[str, str, str, str]:
    """Namespace, kind, name and what is below it; a pod's name is without its port."""
    _, found, rest = path.partition("/namespaces/")
    if not found:
        return "", path.rpartition("/")[2], "", ""
    namespace, kind, name, below = [*rest.split("/", 3), "", "", ""][:4]
    return namespace, kind, name, below


def _merged(base: Plain, extra: Plain) -> Plain:
    found = dict(base)
    for key, value in extra.items():
        known = found.get(key)
        both = isinstance(known, dict) and isinstance(value, dict)
        found[key] = _merged(known, value) if both else value
    return {key: value for key, value in found.items() if value is not None}
