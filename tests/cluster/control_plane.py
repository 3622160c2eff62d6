"""etcd, API server, controller manager and scheduler: all on addresses of the bed's own.

etcd 3.7 on purpose: with Debian's 3.4 kwok's watches are refused (RequestWatchProgress).
"""

from __future__ import annotations

import httpx

from tests.cluster import tools
from tests.cluster.api_client import Api
from tests.cluster.certs import Authority
from tests.cluster.cleanup import Journal
from tests.cluster.places import (
    DNS_DOMAIN,
    HOST_IP,
    SERVICE_IP,
    SERVICE_RANGE,
    Layout,
    free_port,
)
from tests.cluster.processes import Daemon, answers

GANG_GATE = "--feature-gates=GenericWorkload=true"
"""Beta and off by default in 1.37; PodGroups are served with `scheduling.k8s.io/v1beta1` only."""
NODE_GRACE_S = 12
"""How long a silent node stays Ready; kubelets report each 2 s (no flap seen under load 12)."""


class ControlPlane:
    """Its four programs. ``kubeconfig`` and ``api`` are the administrator's."""

    def __init__(
        self, layout: Layout, journal: Journal, authority: Authority, *, gang_gate: bool
    ) -> None:
        self._layout = layout
        self._journal = journal
        self._authority = authority
        self.gang_gate = gang_gate
        self._etcd_ports = free_port(), free_port()
        self._ports = {name: free_port() for name in ("manager", "scheduler")}
        self.url = f"https://{HOST_IP}:{free_port(HOST_IP)}"
        self.kubeconfig = authority.kubeconfig(
            "admin", self.url, user="admin", groups=["system:masters"]
        )
        pki = authority.folder
        self.api = Api(self.url, authority.ca_file, pki / "admin.crt", pki / "admin.key")
        self._service_keys = authority.key_pair("service-accounts")
        service = "kubernetes.default.svc"
        names = ["localhost", "127.0.0.1", HOST_IP, SERVICE_IP, "kubernetes", "kubernetes.default",
                 service, f"{service}.{DNS_DOMAIN}"]  # fmt: skip
        self._server_pair = authority.issue("apiserver", user="kube-apiserver", hosts=names)
        self._kubelet_pair = authority.issue(
            "apiserver-to-kubelets", user="kube-apiserver", groups=["system:masters"]
        )
        self._configs = {
            name: authority.kubeconfig(name, self.url, user=f"system:{name}")
            for name in ("kube-controller-manager", "kube-scheduler")
        }
        self._etcd = self._daemon("etcd", self._etcd_words())
        self._make_others()

    def start(self) -> None:
        """Start what everything else needs: etcd and the API server."""
        self._etcd.start()
        self._etcd.wait_until(lambda: answers(f"http://127.0.0.1:{self._etcd_ports[0]}/health"))
        self.start_server()

    def start_server(self) -> None:
        """Start the API server on the address it had before, and wait until it is ready."""
        self.server.start()
        self.server.wait_until(self._is_ready)

    def stop_server(self) -> None:
        """Kill it: on SIGTERM it would wait a minute for its watchers; all its state is in etcd."""
        self.server.kill()

    def start_controllers(self) -> None:
        """Start the controller manager and the scheduler; `wait_for_controllers` waits for them."""
        self._manager.start()
        self._scheduler.start()

    def wait_for_controllers(self) -> None:
        for daemon, port in ((self._manager, "manager"), (self._scheduler, "scheduler")):
            url = f"https://127.0.0.1:{self._ports[port]}/healthz"
            daemon.wait_until(lambda url=url: answers(url))

    def set_gang_gate(self, *, on: bool) -> None:
        """Start the three programs that know the gate again, with or without it."""
        for daemon in (self._manager, self._scheduler, self.server):
            daemon.kill()
        self.gang_gate = on
        self._make_others()
        self.start_server()
        self.start_controllers()
        self.wait_for_controllers()

    def kill(self) -> None:
        for daemon in (self._manager, self._scheduler, self.server, self._etcd):
            daemon.kill()

    def _make_others(self) -> None:
        self.server = self._daemon("kube-apiserver", self._server_words())
        self._manager = self._daemon("kube-controller-manager", self._manager_words())
        self._scheduler = self._daemon("kube-scheduler", self._scheduler_words())

    def _daemon(self, name: str, words: list[str]) -> Daemon:
        return Daemon(self._layout, self._journal, name, [tools.path_of(name), *words])

    def _is_ready(self) -> bool:
        try:
            return self.api.raw("GET", "/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _etcd_words(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._etcd_ports)
        return [
            f"--data-dir={self._layout.folder / 'etcd'}", "--name=bed", "--unsafe-no-fsync",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=bed={peer}",
        ]  # fmt: skip

    def _server_words(self) -> list[str]:
        gang = [GANG_GATE, "--runtime-config=scheduling.k8s.io/v1beta1=true"]
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_ports[0]}",
            f"--bind-address={HOST_IP}", f"--secure-port={self.url.rpartition(':')[2]}",
            f"--advertise-address={HOST_IP}", f"--service-cluster-ip-range={SERVICE_RANGE}",
            f"--tls-cert-file={self._server_pair[0]}",
            f"--tls-private-key-file={self._server_pair[1]}",
            f"--client-ca-file={self._authority.ca_file}",
            f"--kubelet-client-certificate={self._kubelet_pair[0]}",
            f"--kubelet-client-key={self._kubelet_pair[1]}",
            f"--kubelet-certificate-authority={self._authority.ca_file}",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={self._service_keys[0]}",
            f"--service-account-key-file={self._service_keys[1]}",
            "--allow-privileged=true", "--enable-aggregator-routing=true",
            *(gang if self.gang_gate else []),
        ]  # fmt: skip

    def _manager_words(self) -> list[str]:
        pki = self._authority.folder
        return [
            *self._config_words("kube-controller-manager", "manager"),
            f"--service-account-private-key-file={self._service_keys[0]}",
            f"--root-ca-file={self._authority.ca_file}",
            f"--client-ca-file={self._authority.ca_file}",
            "--use-service-account-credentials=true", "--allocate-node-cidrs=false",
            f"--cluster-signing-cert-file={pki / 'ca.crt'}",
            f"--cluster-signing-key-file={pki / 'ca.key'}",
            f"--node-monitor-grace-period={NODE_GRACE_S}s", "--node-monitor-period=1s",
        ]  # fmt: skip

    def _scheduler_words(self) -> list[str]:
        return self._config_words("kube-scheduler", "scheduler")

    def _config_words(self, name: str, port: str) -> list[str]:
        config = self._configs[name]
        return [
            f"--kubeconfig={config}", f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}", "--bind-address=127.0.0.1",
            f"--secure-port={self._ports[port]}", "--leader-elect=false",
            "--kube-api-qps=200", "--kube-api-burst=400",
            *([GANG_GATE] if self.gang_gate else []),
        ]  # fmt: skip
