"""Builds the programs of the test cluster: ``python -m tests.cluster.tools``.

Each folder of ``tools/`` is a Go module of its own, because what they are made of cannot stand in
one; its ``go.mod`` names the versions and ``go.sum`` their content. The binaries lie outside the
tree, in ``FFDL_CLUSTER_TOOLS`` (default ``~/.cache/ffdl-cluster-tools``), in a folder that carries
the hash of everything they were built from: what is there is right, and is not built again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent / "tools"
KUBERNETES = "1.37.2"
_STAMP = "k8s.io/component-base/version"
_LDFLAGS = {
    "k8s": f"-s -w -X {_STAMP}.gitVersion=v{KUBERNETES} -X {_STAMP}.gitMajor=1"
    f" -X {_STAMP}.gitMinor={KUBERNETES.split('.')[1]}"
}
"""Without the stamp the API server calls itself ``v0.0.0-master``, and clients mistrust it."""
MODULES = {
    "k8s": (
        "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl",
        "kube-proxy",
    ),
    "etcd": ("etcd",),
    "kwok": ("kwok",),
    "coredns": ("coredns",),
    "pause": ("pause",),
}  # fmt: skip
"""Programs of each module. ``pause`` is ours: what holds a pod's namespaces."""
_PACKAGES = {"etcd": "go.etcd.io/etcd/server/v3", "pause": "."}


class ToolsMissingError(RuntimeError):
    """A program of the test cluster is not built; the text says how to build it."""


def root() -> Path:
    """The folder outside the tree."""
    default = Path.home() / ".cache" / "ffdl-cluster-tools"
    return Path(os.environ.get("FFDL_CLUSTER_TOOLS") or default)


def path_of(program: str) -> Path:
    """A built program. Raises ToolsMissingError."""
    module = next(name for name, programs in MODULES.items() if program in programs)
    path = _target(module) / program
    if not path.exists():
        raise ToolsMissingError(f"{path} is missing: run `make cluster-tools`")
    return path


def source_of(module: str, package: str) -> Path:
    """The unpacked source of a Go module that one of ours needs (for the files in it)."""
    words = ["go", "list", "-m", "-f", "{{.Dir}}", package]
    found = subprocess.run(words, cwd=HERE / module, capture_output=True, text=True, check=True)
    return Path(found.stdout.strip())


def build() -> None:
    """Build what is missing, and remove what older versions have left."""
    for module in MODULES:
        if not _target(module).exists():
            _build(module)
    wanted = {_target(module).name for module in MODULES}
    for path in root().iterdir():
        if path.name not in wanted:
            shutil.rmtree(path, ignore_errors=True)


def _build(module: str) -> None:
    started = time.monotonic()
    root().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root()) as text:
        folder = Path(text) / "bin"
        folder.mkdir()
        subprocess.run(
            _command(module, folder), cwd=HERE / module, check=True,
            env={**os.environ, "CGO_ENABLED": "0"},
        )  # fmt: skip
        folder.rename(_target(module))
    print(f"{module}: built in {time.monotonic() - started:.0f} s", flush=True)


def _command(module: str, folder: Path) -> Sequence[str]:
    flags = ["-trimpath", "-ldflags", _LDFLAGS.get(module, "-s -w")]
    if module in _PACKAGES:
        return ["go", "build", *flags, "-o", str(folder / module), _PACKAGES[module]]
    return ["go", "build", *flags, "-o", f"{folder}/", "tool"]


def _target(module: str) -> Path:
    digest = hashlib.sha256(_LDFLAGS.get(module, "").encode())
    for path in sorted((HERE / module).iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return root() / f"{module}-{digest.hexdigest()[:16]}"


if __name__ == "__main__":
    if shutil.which("go") is None:
        sys.exit("the test cluster is built from source: it needs Go 1.26 or later on the PATH")
    build()
