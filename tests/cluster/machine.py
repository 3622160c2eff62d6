"""What a machine needs to have, so that a bed can run on it."""

from __future__ import annotations

import os
import shutil

from tests.cluster import tools
from tests.cluster.places import CNI_PLUGINS, BedError

PROGRAMS = {
    "containerd": "containerd", "ctr": "containerd", "runc": "runc", "iptables": "iptables",
    "conntrack": "conntrack", "ip": "iproute2", "busybox": "busybox-static",
    "host-local": "containernetworking-plugins", "mount": "mount", "unshare": "util-linux",
    "nsenter": "util-linux",
}  # fmt: skip
"""What a bed finds on the PATH or among the CNI plugins, and the Debian package that has it."""


def check_machine() -> None:
    """Raise BedError with what to do, if a bed cannot run here."""
    if os.geteuid() != 0:
        raise BedError("the test cluster needs root: it makes network namespaces and containers")
    path = ":".join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", *CNI_PLUGINS])
    missing = {package for name, package in PROGRAMS.items() if not shutil.which(name, path=path)}
    if missing:
        raise BedError(f"Debian packages are missing: apt-get install {' '.join(sorted(missing))}")
    for programs in tools.MODULES.values():
        for program in programs:
            tools.path_of(program)
