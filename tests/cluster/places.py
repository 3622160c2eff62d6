"""Where the parts of a bed are: addresses, names of kernel objects, folders.

Addresses are fixed, since one bed runs at a time on a machine; names carry the bed's suffix, so
that what a crashed bed has left is never taken for a part of this one.
"""

from __future__ import annotations

import dataclasses
import os
import random
import secrets
import socket
from pathlib import Path

RUN = Path("/run/ffdl-bed")
"""Lock, state file, sockets. A short path: the address of a Unix socket has room for 107 bytes."""

LOGS = "logs"
CNI_PLUGINS = ("/usr/lib/cni", "/opt/cni/bin")

HOST_IP = "10.250.0.1"
"""The machine itself, seen from the nodes: API server, DNS, and what a test serves to pods."""
BRIDGE_RANGE = "10.250.0.0/24"
POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
SERVICE_IP = "10.96.0.1"
DNS_DOMAIN = "cluster.local"
FAKE_POD_RANGE = "10.200.0.0/16"
FAKE_PODS_IP = "10.250.0.2"


class BedError(AssertionError):
    """The bed cannot do what was asked; the text holds what the part in question has logged."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Folders and names of one bed. ``folder`` has the data and the logs, ``run`` the sockets."""

    folder: Path
    suffix: str

    @classmethod
    def make(cls, folder: Path) -> Layout:
        return cls(folder=folder.resolve(), suffix=secrets.token_hex(2))

    @property
    def run(self) -> Path:
        return RUN / self.suffix

    @property
    def logs(self) -> Path:
        return self.folder / LOGS

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def bridge(self) -> str:
        return f"ffdl{self.suffix}br"

    def make_folders(self) -> None:
        for path in (self.folder, self.run, self.logs, self.pki):
            path.mkdir(parents=True, exist_ok=True)


@dataclasses.dataclass(frozen=True)
class NodePlaces:
    """Folders, addresses and names of one real node; ``number`` counts from 1."""

    layout: Layout
    number: int

    @property
    def name(self) -> str:
        return f"real-{self.number}"

    @property
    def ip(self) -> str:
        return f"10.250.0.{10 + self.number}"

    @property
    def pod_range(self) -> str:
        return f"10.244.{self.number}.0/24"

    @property
    def link(self) -> str:
        """Our end of the node's only cable."""
        return f"ffdl{self.layout.suffix}v{self.number}"

    @property
    def cgroup(self) -> str:
        return f"ffdl-bed-{self.layout.suffix}-{self.number}"

    @property
    def folder(self) -> Path:
        return self.layout.folder / self.name

    @property
    def run(self) -> Path:
        return self.layout.run / self.name

    @property
    def socket(self) -> Path:
        return self.run / "containerd.sock"


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody has, below those that the kernel gives to outgoing connections."""
    for port in random.sample(range(20000, 30000), 200):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise BedError(f"no free port on {address}")


def environment() -> dict[str, str]:
    """What the bed's programs get: no proxies, no kubeconfig, none of Python's settings."""
    found = os.environ.get("PATH", "")
    folders = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"PATH": f"{found}:{folders}", "HOME": str(RUN), "LANG": "C.UTF-8"}
