"""A real Kubernetes cluster on this machine, for tests: ``with Bed.start(folder) as bed: ...``.

etcd, API server (RBAC on), controller manager, scheduler, CoreDNS, two real nodes that run
containers, and kwok for as many fake nodes as a test wants. One bed runs at a time; what an earlier
one has left is removed first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

from tests.cluster import cleanup, images, network, tools
from tests.cluster.api_client import Api
from tests.cluster.certs import Authority
from tests.cluster.cleanup import Journal
from tests.cluster.control_plane import ControlPlane
from tests.cluster.dns import Dns
from tests.cluster.fake_nodes import FakeNodes
from tests.cluster.fake_pods import FakePodNetwork, FakePods, Handler
from tests.cluster.machine import check_machine
from tests.cluster.places import HOST_IP, BedError, Layout, NodePlaces
from tests.cluster.processes import all_at_once, run, wait_for
from tests.cluster.real_node import RealNode, is_ready

GPU = "nvidia.com/gpu"


class Bed:
    """The running cluster. Make one with `start`, end it with `stop` or as a context manager."""

    host_ip = HOST_IP
    """This machine's address for pods: a server that listens there is reached from each pod."""

    def __init__(
        self, layout: Layout, journal: Journal, *, gang_gate: bool, real_nodes: int
    ) -> None:
        self.folder = layout.folder
        self._layout = layout
        self._held = contextlib.ExitStack()
        authority = Authority(layout.pki)
        self.ca_file = authority.ca_file
        self._control = ControlPlane(layout, journal, authority, gang_gate=gang_gate)
        self.kubeconfig = self._control.kubeconfig
        self.server_url = self._control.url
        self.api: Api = self._control.api
        self._dns = Dns(layout, journal, self.kubeconfig)
        self._fakes = FakeNodes(layout, journal, self.kubeconfig, self.api)
        self._fake_pods = FakePodNetwork(layout, journal)
        places = [NodePlaces(layout, number + 1) for number in range(real_nodes)]
        self._nodes = {x.name: RealNode(x, journal, authority, url=self.server_url) for x in places}
        self._gpus: dict[str, int] = {}

    @classmethod
    def start(cls, folder: Path, *, gang_gate: bool = False, real_nodes: int = 2) -> Self:
        """Start all parts and wait until they work. Raises BedError.

        ``folder`` is the bed's own: `stop` leaves only the logs in it. ``gang_gate`` turns on
        Kubernetes' own gang scheduling (PodGroups).
        """
        check_machine()
        with contextlib.ExitStack() as stack:
            stack.enter_context(cleanup.only_bed())
            cleanup.remove_leftovers()
            layout = Layout.make(folder)
            layout.make_folders()
            journal = Journal(layout.folder, layout.run)
            stack.callback(cleanup.remove_leftovers, keep_logs=True)
            network.make_bridge(layout, journal)
            bed = cls(layout, journal, gang_gate=gang_gate, real_nodes=real_nodes)
            stack.callback(bed._kill_all)
            bed._start_all()
            bed._held = stack.pop_all()
        return bed

    def stop(self) -> None:
        """End everything and remove the data; the logs stay in the folder."""
        self._held.close()
        self.api.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self.stop()

    # What tests ask for.

    @property
    def real_nodes(self) -> list[str]:
        """Names of the nodes that run containers."""
        return list(self._nodes)

    @property
    def logs_folder(self) -> Path:
        """One file for each program of the bed."""
        return self._layout.logs

    def logs(self) -> str:
        """The ends of all logs, for the message of a test that has failed."""
        paths = sorted(self.logs_folder.iterdir())
        return "\n".join(f"--- {x.name}\n{x.read_text(errors='replace')[-2000:]}" for x in paths)

    def kubectl(self, *words: str, text: str = "") -> str:
        """Run kubectl as the administrator; ``text`` is its standard input. Raises BedError."""
        program, cache = tools.path_of("kubectl"), self.folder / "kubectl"
        options = ("--kubeconfig", self.kubeconfig, "--cache-dir", cache)
        return run(program, *options, *words, text=text)

    def make_namespace(self, prefix: str) -> str:
        """Make a namespace that pods can be made in: it has its default ServiceAccount."""
        body = {"metadata": {"generateName": f"{prefix}-"}}
        name: str = self.api("POST", "/api/v1/namespaces", body)["metadata"]["name"]
        path = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_for(lambda: self.api.find(path), f"{path} is not made")
        return name

    def delete_namespace(self, name: str) -> None:
        """Begin to delete a namespace; its containers are killed without their grace period."""
        params = {"gracePeriodSeconds": 0}
        self.api("DELETE", f"/api/v1/namespaces/{name}/pods", params=params)
        self.api("DELETE", f"/api/v1/namespaces/{name}")

    def set_gpus(self, node: str, count: int) -> None:
        """Let a real node claim GPUs, which nothing checks; they stay until they are set anew."""
        self._gpus[node] = count
        path = f"/api/v1/nodes/{node}"
        amount = {GPU: str(count)}

        def taken() -> bool:
            """Once the kubelet has seen it, it says so itself."""
            status = self.api("GET", path)["status"]
            fields = ("capacity", "allocatable")
            return all(status[field].get(GPU) == str(count) for field in fields)

        self.api("PATCH", f"{path}/status", {"status": {"capacity": amount}})
        wait_for(taken, f"{node} does not take its GPUs")

    def add_fake_nodes(
        self, count: int, *, gpus: int = 8, cpu: str = "64", memory: str = "512Gi",
        labels: Mapping[str, str] | None = None, prefix: str = "fake",
    ) -> list[str]:  # fmt: skip
        """Add nodes that only claim to run pods; return their names.

        A pod goes there with `fake_nodes.TOLERATION` and the nodeSelector `fake_nodes.SELECTOR`.
        """
        capacity = {"cpu": cpu, "memory": memory, "pods": "256", "ephemeral-storage": "1Ti"}
        if gpus:
            capacity[GPU] = str(gpus)
        return self._fakes.add(prefix, count, capacity=capacity, labels=dict(labels or {}))

    def remove_fake_nodes(self) -> None:
        """Remove all fake nodes and the pods on them."""
        self._fakes.remove()

    def fake_pods(self, port: int, handler: Handler) -> FakePods:
        """Answer HTTP on a port of each fake pod, while the context lasts or until `close`."""
        return FakePods(self._fake_pods, port, handler)

    def load_image(self, image: Path) -> None:
        """Import an image of `images.build_image` into all real nodes."""
        with ThreadPoolExecutor(len(self._nodes) or 1) as pool:
            list(pool.map(lambda node: node.load(image), self._nodes.values()))

    def container_pids(self, pod: str, container: str) -> list[int]:
        """Pids, on this machine, of all processes of a running container.

        ``pod`` is ``namespace/name`` or the pod's UID.
        """
        found = self._pod(pod)
        for status in found["status"].get("containerStatuses", []):
            if status["name"] == container and "containerID" in status:
                name = status["containerID"].rpartition("/")[2]
                node = self._nodes[found["spec"]["nodeName"]]
                return node.container_pids(found["metadata"]["uid"], name)
        raise BedError(f"{pod} has no running container {container}")

    # What tests break.

    def restart_api_server(self) -> None:
        """End the API server and start it again at the same address."""
        self.stop_api_server()
        self.start_api_server()

    def stop_api_server(self) -> None:
        self._control.stop_server()

    def start_api_server(self) -> None:
        self._control.start_server()

    def set_gang_gate(self, *, on: bool) -> None:
        """Restart API server, controller manager and scheduler with or without PodGroups."""
        if on != self._control.gang_gate:
            self._control.set_gang_gate(on=on)

    def stop_kubelet(self, node: str) -> None:
        """Kill a node's kubelet; its containers go on running."""
        self._nodes[node].kubelet.kill()

    def start_kubelet(self, node: str) -> None:
        """Start a node's kubelet and wait until the node is Ready and the kubelet has its pods."""
        self._nodes[node].kubelet.start()
        self._nodes[node].wait_for_kubelet()
        self.wait_for_node(node, ready=True)
        self._nodes[node].kubelet.wait_until(lambda: self._kubelet_has_its_pods(node))
        if node in self._gpus:
            self.set_gpus(node, self._gpus[node])

    def crash_node(self, node: str) -> None:
        """End all processes of a node at once, its containers among them: a power failure."""
        self._nodes[node].crash()

    def boot_node(self, node: str) -> None:
        """Start a node that has crashed; it has its disk, but no container runs."""
        found = self._nodes[node]
        found.boot(self._others(found), images.standard_images())
        found.join()
        self._wait_for_all_of(found)
        if node in self._gpus:
            self.set_gpus(node, self._gpus[node])

    def cut_link(self, node: str) -> None:
        """Pull the network cable of a node."""
        network.set_cable(self._nodes[node].places, up=False)

    def mend_link(self, node: str) -> None:
        network.set_cable(self._nodes[node].places, up=True)

    def stop_dns(self) -> None:
        self._dns.stop()

    def start_dns(self) -> None:
        self._dns.start()

    def wait_for_node(self, node: str, *, ready: bool) -> None:
        """Wait until the API calls a node Ready, or no longer does (12 s after its last word)."""
        path = f"/api/v1/nodes/{node}"
        daemon = self._nodes[node].kubelet if ready and node in self._nodes else None
        wait = daemon.wait_until if daemon else lambda check: wait_for(check, f"{node}: {ready=}")
        wait(lambda: is_ready(self.api.find(path)) == ready)

    # How it starts and ends.

    def _start_all(self) -> None:
        with all_at_once() as start:
            start(self._control.start)
            start(self._fake_pods.start, [x.places for x in self._nodes.values()])
            standard = images.standard_images() if self._nodes else []
            for node in self._nodes.values():
                start(node.boot, self._others(node), standard)
        self._control.start_controllers()
        for node in self._nodes.values():
            node.join()
        with all_at_once() as start:
            start(self._control.wait_for_controllers)
            start(self._dns.start)
            start(self._fakes.start)
            for node in self._nodes.values():
                start(self._wait_for_all_of, node)

    def _others(self, node: RealNode) -> list[NodePlaces]:
        return [x.places for x in self._nodes.values() if x is not node]

    def _wait_for_all_of(self, node: RealNode) -> None:
        node.wait_for_kubelet()
        node.wait_for_proxy()
        self.wait_for_node(node.name, ready=True)

    def _kill_all(self) -> None:
        for node in self._nodes.values():
            node.crash()
        for part in (self._fake_pods, self._fakes, self._dns):
            part.daemon.kill()
        self._control.kill()

    def _kubelet_has_its_pods(self, node: str) -> bool:
        params = {"fieldSelector": f"spec.nodeName={node}"}
        wanted = self.api("GET", "/api/v1/pods", params=params)["items"]
        answer = self.api.raw("GET", f"/api/v1/nodes/{node}/proxy/pods")
        found = answer.json().get("items") or [] if answer.is_success else []
        return {x["metadata"]["uid"] for x in wanted} <= {x["metadata"]["uid"] for x in found}

    def _pod(self, pod: str) -> dict[str, Any]:
        namespace, _, name = pod.rpartition("/")
        for item in self.api("GET", "/api/v1/pods")["items"]:
            meta = item["metadata"]
            if meta["uid"] == name or (meta["namespace"], meta["name"]) == (namespace, name):
                return dict(item)
        raise BedError(f"there is no pod {pod}")
