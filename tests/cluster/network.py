"""The bed's wire: a bridge, on which the machine has an address and each node a cable."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.cluster.cleanup import Journal
from tests.cluster.places import (
    FAKE_POD_RANGE,
    FAKE_PODS_IP,
    HOST_IP,
    POD_RANGE,
    SERVICE_RANGE,
    BedError,
    Layout,
    NodePlaces,
)
from tests.cluster.processes import run

MAC = "02:ff:d1:00:00:01"
"""Said, because a bridge without one changes its address with each new cable."""
NODE_SCRIPT = """\
ip link set lo up
ip addr add {ip}/24 dev eth0
ip link set eth0 up
ip route add unreachable default
ip route add {services} via {host}
ip route add {pods} via {host}
ip route add {fakes} via {fake_pods}
{routes}
echo 1 > /proc/sys/net/ipv4/ip_forward
"""
"""Inside a node. The way out is closed: what is not of the bed is refused at once, not lost."""


def make_bridge(layout: Layout, journal: Journal) -> None:
    """The machine's end of the wire; everything of the control plane listens there."""
    journal.link(layout.bridge)
    run("ip", "link", "add", "name", layout.bridge, "address", MAC, "type", "bridge")
    run("ip", "addr", "add", f"{HOST_IP}/24", "dev", layout.bridge)
    run("ip", "link", "set", layout.bridge, "up")


def plug(layout: Layout, journal: Journal, link: str, *, pid: str) -> None:
    """Put a cable between the bridge and a namespace, given by a process in it: its ``eth0``."""
    journal.link(link)
    if Path("/sys/class/net", link).exists():  # of a node that has crashed, and is not quite gone
        with contextlib.suppress(BedError):
            run("ip", "link", "del", link)
    run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", pid)
    run("ip", "link", "set", link, "master", layout.bridge, "up")


def connect(
    node: NodePlaces, inside: list[str], *, others: list[NodePlaces], journal: Journal
) -> None:
    """Give a node its cable, address and routes; ``inside`` are the words that enter the node.

    Nodes reach one another's pods directly, so this machine need not forward anything.
    """
    pid = inside[inside.index("-t") + 1]
    plug(node.layout, journal, node.link, pid=pid)
    routes = "\n".join(f"ip route add {other.pod_range} via {other.ip}" for other in others)
    script = NODE_SCRIPT.format(
        ip=node.ip, host=HOST_IP, services=SERVICE_RANGE, pods=POD_RANGE, routes=routes,
        fakes=FAKE_POD_RANGE, fake_pods=FAKE_PODS_IP,
    )  # fmt: skip
    run(*inside, "sh", "-e", text=script)
    run("ip", "route", "replace", node.pod_range, "via", node.ip)


def set_cable(node: NodePlaces, *, up: bool) -> None:
    """Pull or push the node's cable."""
    run("ip", "link", "set", node.link, "up" if up else "down")
