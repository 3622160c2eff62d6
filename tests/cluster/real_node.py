"""A real node: containerd, kubelet, kube-proxy; pid, mount and network namespaces of its own.

The first process of the node holds the namespaces. Kill it, and the kernel ends every daemon and
container of the node and drops their mounts and links: that is how a node is removed, and a crash.
"""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path

from tests.cluster import images, network, tools
from tests.cluster.certs import Authority
from tests.cluster.cleanup import Journal, hierarchies
from tests.cluster.places import CNI_PLUGINS, DNS_DOMAIN, HOST_IP, POD_RANGE, BedError, NodePlaces
from tests.cluster.processes import Daemon, answers, run

CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "{run}/state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{folder}/registries"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""
"""``restrict_oom_score_adj``: root of a small virtual machine may not lower that score."""
NO_REGISTRY = 'server = "http://127.0.0.1:9"\n'
"""Each registry is a port that refuses: an image that is not there is missed at once."""
KUBELET_PORT = 10250
IMAGE_STORE = "mode=0711,size=4g"
"""Images and containers' own layers are in memory: thousands of files that go with the node."""
PRIVATE_FOLDERS = {"kubelet-var": "/var/lib/kubelet", "log-containers": "/var/log/containers"}
"""Places that a kubelet uses whatever its flags say; each node sees one of its own there."""


class RealNode:
    """`boot` needs nothing else of the cluster; `join` needs the API server."""

    def __init__(
        self, places: NodePlaces, journal: Journal, authority: Authority, *, url: str
    ) -> None:
        self.places = places
        self.name = places.name
        self._journal = journal
        self._authority = authority
        self._url = url
        self._daemons: list[Daemon] = []
        self._loaded: list[Path] = []
        self._init = self._daemon("init", [
            "unshare", "--net", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc",
            tools.path_of("pause"),
        ])  # fmt: skip
        self._first_pid = 0

    def boot(self, others: list[NodePlaces], images: list[Path]) -> None:
        """Make the node, start containerd, import images. Also after a `crash`."""
        self._daemons = [self._init]
        self._make_namespaces()
        network.connect(self.places, self._inside, others=others, journal=self._journal)
        self._make_cgroups()
        self._write_configs()
        config = self.places.folder / "containerd.toml"
        self.containerd = self._daemon("containerd", [*self._inside, "containerd", "-c", config])
        self.kubelet = self._daemon("kubelet", self._kubelet_words())
        self.proxy = self._daemon("kube-proxy", self._proxy_words())
        self.containerd.start()
        self.containerd.wait_until(self._containerd_answers)
        for image in [*images, *self._loaded]:
            self._ctr("images", "import", image)

    def join(self) -> None:
        """Start kubelet and kube-proxy; that the node becomes Ready is for the API to say."""
        self.kubelet.start()
        self.proxy.start()

    def wait_for_kubelet(self) -> None:
        """Wait until the kubelet is heard; the API may have called the node Ready all the time."""

        def heard() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(address, 5):
                return True
            return False

        address = (self.places.ip, KUBELET_PORT)
        self.kubelet.wait_until(heard)

    def wait_for_proxy(self) -> None:
        self.proxy.wait_until(lambda: answers(f"http://{self.places.ip}:10256/healthz"))

    def load(self, image: Path) -> None:
        """Import an image; layers that the node has already need not be in the file."""
        self._ctr("images", "import", image)
        self._loaded.append(image)

    def container_pids(self, pod_uid: str, container_id: str) -> list[int]:
        """Pids, as this machine counts them, of a container's processes."""
        for top in hierarchies():
            pods = (top / self.places.cgroup / "kubepods").rglob(f"pod{pod_uid}")
            for file in [pod / container_id / "cgroup.procs" for pod in pods]:
                if file.exists() and (pids := file.read_text().split()):
                    return [int(pid) for pid in pids]
        raise BedError(f"no process of container {container_id} runs on {self.name}")

    def crash(self) -> None:
        """End everything of the node at once, as if its power had failed."""
        self._init.kill()
        for daemon in self._daemons:
            daemon.wait()

    def enter(self, *words: str | Path) -> str:
        """Run a program inside the node and return what it printed."""
        return run(*self._inside, *words)

    @property
    def _inside(self) -> list[str]:
        """Words that enter the node. Not `ip netns exec`: that hides /sys/fs/cgroup."""
        return ["nsenter", "-t", str(self._first_pid), "-m", "-n", "-p"]

    def _containerd_answers(self) -> bool:
        with contextlib.suppress(BedError):
            return self.places.socket.exists() and bool(self._ctr("version"))
        return False

    def _ctr(self, *words: str | Path) -> str:
        return self.enter("ctr", "-a", self.places.socket, "-n", "k8s.io", *words)

    def _daemon(self, name: str, words: list[str | Path]) -> Daemon:
        layout = self.places.layout
        daemon = Daemon(layout, self._journal, f"{self.name}-{name}", words)
        self._daemons.append(daemon)
        return daemon

    def _make_namespaces(self) -> None:
        self._init.start()

        def first() -> int:
            """The node is complete when its first process runs our program."""
            with contextlib.suppress(BedError, OSError):
                pid = self._init.pid
                return pid if Path(f"/proc/{pid}/exe").readlink().name == "pause" else 0
            return 0

        self._first_pid = self._init.wait_until(first)
        self._journal.process(self._first_pid)
        store = self.places.folder / "containerd"
        store.mkdir(parents=True, exist_ok=True)
        mounts = [f"mount -t tmpfs -o {IMAGE_STORE} bed '{store}'"]
        for name, place in PRIVATE_FOLDERS.items():
            own = self.places.folder / name
            own.mkdir(parents=True, exist_ok=True)
            Path(place).mkdir(parents=True, exist_ok=True)
            mounts.append(f"mount --bind '{own}' {place}")
        run(*self._inside, "sh", "-e", text="\n".join(mounts))

    def _make_cgroups(self) -> None:
        """The kubelet wants its root to be there, in each hierarchy of version 1."""
        self._journal.cgroup(self.places.cgroup)
        for top in hierarchies():
            folder = top / self.places.cgroup
            folder.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (folder / name).exists():
                    (folder / name).write_text((top / name).read_text())

    def _write_configs(self) -> None:
        folder, places = self.places.folder, self.places
        for path in (places.run, folder / "cni", folder / "registries" / "_default"):
            path.mkdir(parents=True, exist_ok=True)
        plugins = next(x for x in CNI_PLUGINS if Path(x, "host-local").exists())
        text = CONTAINERD.format(
            folder=folder, run=places.run, socket=places.socket, plugins=plugins, pause=images.PAUSE
        )
        (folder / "containerd.toml").write_text(text)
        (folder / "registries" / "_default" / "hosts.toml").write_text(NO_REGISTRY)
        (folder / "cni" / "bed.conflist").write_text(json.dumps(self._cni()))
        (folder / "resolv.conf").write_text(f"nameserver {HOST_IP}\n")
        (folder / "kubelet.json").write_text(json.dumps(self._kubelet_config(), indent=1))

    def _cni(self) -> dict[str, object]:
        addresses = {
            "type": "host-local", "dataDir": str(self.places.folder / "ipam"),
            "ranges": [[{"subnet": self.places.pod_range}]], "routes": [{"dst": "0.0.0.0/0"}],
        }  # fmt: skip
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False,
                  "hairpinMode": True, "ipam": addresses}  # fmt: skip
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "1.0.0", "name": "bed", "plugins": [bridge, ports]}

    def _kubelet_config(self) -> dict[str, object]:
        certificate, key = self._authority.issue(
            f"{self.name}-kubelet", user=self.name, hosts=[self.places.ip, self.name]
        )
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "failCgroupV1": False, "cgroupDriver": "cgroupfs", "failSwapOn": False,
            "cgroupRoot": f"/{self.places.cgroup}",
            "containerRuntimeEndpoint": f"unix://{self.places.socket}",
            "address": self.places.ip,
            "tlsCertFile": str(certificate), "tlsPrivateKeyFile": str(key),
            "authentication": {
                "anonymous": {"enabled": False}, "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._authority.ca_file)},
            },
            "authorization": {"mode": "Webhook"},
            "clusterDNS": [HOST_IP], "clusterDomain": DNS_DOMAIN,
            "resolvConf": str(self.places.folder / "resolv.conf"),
            "podLogsDir": str(self.places.folder / "pod-logs"),
            "volumePluginDir": str(self.places.folder / "volume-plugins"),
            "nodeStatusUpdateFrequency": "2s", "nodeLeaseDurationSeconds": 8,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1Mi",
                             "imagefs.available": "1Mi"},
        }  # fmt: skip

    def _kubelet_words(self) -> list[str | Path]:
        config = self._authority.kubeconfig(
            f"{self.name}-node", self._url, user=f"system:node:{self.name}", groups=["system:nodes"]
        )
        folder = self.places.folder
        return [
            *self._inside, tools.path_of("kubelet"), f"--config={folder / 'kubelet.json'}",
            f"--kubeconfig={config}", f"--hostname-override={self.name}",
            f"--node-ip={self.places.ip}", f"--root-dir={folder / 'kubelet'}",
            f"--cert-dir={folder / 'kubelet-pki'}",
        ]  # fmt: skip

    def _proxy_words(self) -> list[str | Path]:
        config = self._authority.kubeconfig(
            f"{self.name}-proxy", self._url, user="system:kube-proxy"
        )
        return [
            *self._inside, tools.path_of("kube-proxy"), f"--kubeconfig={config}",
            f"--hostname-override={self.name}", "--proxy-mode=iptables",
            f"--cluster-cidr={POD_RANGE}", "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
            f"--healthz-bind-address={self.places.ip}:10256",
            "--metrics-bind-address=127.0.0.1:10249",
        ]  # fmt: skip


def is_ready(node: dict[str, object] | None) -> bool:
    """What a Node object says about itself."""
    conditions = (node or {}).get("status", {}).get("conditions", [])  # type: ignore[attr-defined]
    return any(x["type"] == "Ready" and x["status"] == "True" for x in conditions)
