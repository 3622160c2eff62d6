"""CoreDNS: a process on the machine, not a pod, on the address that the nodes know it by."""

from __future__ import annotations

from pathlib import Path

from tests.cluster import tools
from tests.cluster.cleanup import Journal
from tests.cluster.places import DNS_DOMAIN, HOST_IP, Layout, free_port
from tests.cluster.processes import Daemon, answers

COREFILE = """\
.:53 {{
  bind {ip}
  errors
  ready {ip}:{port}
  kubernetes {domain} in-addr.arpa {{
    kubeconfig {kubeconfig} bed
    pods insecure
    ttl 1
  }}
  cache 1
}}
"""
"""Answers live for a second: tests wait for a name to come and to go."""


class Dns:
    """The cluster's name server. Its port is 53, because a pod cannot be told another one."""

    def __init__(self, layout: Layout, journal: Journal, kubeconfig: Path) -> None:
        self._ready = f"http://{HOST_IP}:{(port := free_port(HOST_IP))}/ready"
        path = layout.folder / "Corefile"
        path.write_text(
            COREFILE.format(ip=HOST_IP, port=port, domain=DNS_DOMAIN, kubeconfig=kubeconfig)
        )
        words = [tools.path_of("coredns"), "-conf", path]
        self.daemon = Daemon(layout, journal, "coredns", words)

    def start(self) -> None:
        self.daemon.start()
        self.daemon.wait_until(lambda: answers(self._ready))

    def stop(self) -> None:
        self.daemon.kill()
