"""Container images made by hand: an OCI layout in a tar file, which `ctr images import` takes."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import secrets
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Layer:
    """The files of one layer, written into an open tar. Folders are made as they are needed,
    open to everybody: a pod may run as any user.
    """

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._made: set[str] = set()

    def folder(self, path: str, mode: int = 0o755) -> None:
        name = path.strip("/")
        if not name or name in self._made:
            return
        self.folder(str(Path(name).parent).removeprefix("."))
        self._made.add(name)
        self._tar.addfile(_info(name, kind=tarfile.DIRTYPE, mode=mode))

    def link(self, path: str, target: str) -> None:
        if self._take(path):
            info = _info(path.strip("/"), kind=tarfile.SYMTYPE, mode=0o777)
            info.linkname = target
            self._tar.addfile(info)

    def data(self, path: str, content: bytes, mode: int = 0o644) -> None:
        if self._take(path):
            info = _info(path.strip("/"), mode=mode)
            info.size = len(content)
            self._tar.addfile(info, io.BytesIO(content))

    def file(self, path: str, source: Path) -> None:
        """A copy with the source's time (Python's byte code names it) and readable by all."""
        if self._take(path):
            status = source.stat()
            executable = status.st_mode & 0o111
            info = _info(path.strip("/"), mode=0o755 if executable else 0o644)
            info.size, info.mtime = status.st_size, int(status.st_mtime)
            with source.open("rb") as content:
                self._tar.addfile(info, content)

    def _take(self, path: str) -> bool:
        name = path.strip("/")
        self.folder(str(Path(name).parent).removeprefix("."))
        fresh = name not in self._made
        self._made.add(name)
        return fresh


def write_image(
    path: Path,
    ref: str,
    fill: Callable[[Layer], None],
    *,
    entrypoint: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    base: Path | None = None,
) -> None:
    """Write an image to ``path``: what ``fill`` puts into one layer, on top of another image.

    The layers of ``base`` are named only: the node must have that image already.
    """
    config = _base_config(base) if base else {"config": {}, "layers": []}
    with tempfile.TemporaryFile(dir=path.parent) as layer:
        with tarfile.open(fileobj=layer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            fill(Layer(tar))
        descriptor = _describe(layer, LAYER_TYPE)
        layers = [*config["layers"], descriptor]
        settings = dict(config["config"])
        settings["Env"] = [*settings.get("Env", []), *(f"{k}={v}" for k, v in (env or {}).items())]
        if entrypoint:
            settings["Entrypoint"] = list(entrypoint)
        fresh = path.with_suffix(f".{secrets.token_hex(4)}")
        with tarfile.open(fresh, mode="w") as tar:
            _write_layout(tar, ref, settings, layers)
            _add_blob(tar, descriptor, layer)
        fresh.replace(path)


def _write_layout(
    tar: tarfile.TarFile, ref: str, settings: dict[str, Any], layers: list[dict[str, Any]]
) -> None:
    machine = ARCHITECTURES.get(platform.machine(), platform.machine())
    system = {"architecture": machine, "os": "linux"}
    rootfs = {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
    config = _add_json(tar, {**system, "config": settings, "rootfs": rootfs}, CONFIG_TYPE)
    manifest = _add_json(
        tar,
        {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": layers},
        MANIFEST_TYPE,
    )
    names = {"io.containerd.image.name": ref, "org.opencontainers.image.ref.name": ref}
    manifests = [{**manifest, "platform": system, "annotations": names}]
    _add_bytes(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": manifests}).encode())
    _add_bytes(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')


def _base_config(path: Path) -> dict[str, Any]:
    """Settings and layers of an image that `write_image` has written."""
    with tarfile.open(path) as tar:

        def read(name: str) -> Any:
            member = tar.extractfile(name)
            assert member is not None, name
            return json.load(member)

        def blob(descriptor: dict[str, Any]) -> Any:
            return read("blobs/sha256/" + descriptor["digest"].removeprefix("sha256:"))

        manifest = blob(read("index.json")["manifests"][0])
        return {"config": blob(manifest["config"])["config"], "layers": manifest["layers"]}


def _describe(content: BinaryIO, media_type: str) -> dict[str, Any]:
    content.seek(0)
    digest = hashlib.sha256()
    while chunk := content.read(1 << 20):
        digest.update(chunk)
    size = content.tell()
    return {"mediaType": media_type, "digest": f"sha256:{digest.hexdigest()}", "size": size}


def _add_blob(tar: tarfile.TarFile, descriptor: dict[str, Any], content: BinaryIO) -> None:
    content.seek(0)
    info = _info("blobs/sha256/" + descriptor["digest"].removeprefix("sha256:"))
    info.size = descriptor["size"]
    tar.addfile(info, content)


def _add_json(tar: tarfile.TarFile, data: Any, media_type: str) -> dict[str, Any]:
    content = io.BytesIO(json.dumps(data, sort_keys=True).encode())
    descriptor = _describe(content, media_type)
    _add_blob(tar, descriptor, content)
    return descriptor


def _add_bytes(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = _info(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def _info(name: str, *, kind: bytes = tarfile.REGTYPE, mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, mode
    return info
