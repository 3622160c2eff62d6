"""What tests of the Kubernetes engine take for granted about the cluster they run on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.cluster import cleanup, images, pods
from tests.cluster.api_client import ApiError
from tests.cluster.bed import GPU, Bed
from tests.cluster.fake_nodes import DELAY, EXIT
from tests.cluster.fake_pods import Request
from tests.cluster.places import RUN
from tests.cluster.processes import wait_for
from tests.cluster.real_node import is_ready

PORT = 8080
SERVE = ["python", "-m", "http.server", str(PORT)]
ASK_API = """
import os, ssl, urllib.error, urllib.request
secrets = "/var/run/secrets/kubernetes.io/serviceaccount/"
context = ssl.create_default_context(cafile=secrets + "ca.crt")
headers = {"Authorization": "Bearer " + open(secrets + "token").read()}
for path in ("/version", "/api/v1/namespaces/default/pods"):
    url = "https://" + os.environ["KUBERNETES_SERVICE_HOST"] + path
    question = urllib.request.Request(url, headers=headers)
    try:
        print(urllib.request.urlopen(question, context=context).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


@pytest.fixture
def crashed_bed() -> dict[str, Any]:
    """What a bed had whose process was killed while a pod ran. It is there still."""
    folder = tempfile.mkdtemp(prefix="ffdl-bed-")
    words = [sys.executable, "-m", "tests.cluster.crashing", folder]
    root = Path(__file__).parents[2]
    with subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
    assert line, "the bed that was to crash has not started"
    return {**json.loads(line), "state": json.loads(cleanup.STATE.read_text())}


def test_a_killed_run_leaves_nothing_to_the_next(
    crashed_bed: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    state = crashed_bed["state"]
    assert all(map(lives, crashed_bed["container_pids"]))
    bed = request.getfixturevalue("bed")
    assert not [pid for pid in crashed_bed["container_pids"] if lives(pid)]
    assert not [pid for pid, started in state["processes"] if cleanup.start_time(pid) == started]
    assert not [name for name in state["links"] if Path("/sys/class/net", name).exists()]
    assert not [x for x in state["cgroups"] if any((y / x).exists() for y in cleanup.hierarchies())]
    assert not Path(state["folder"]).exists()
    assert not Path(state["run"]).exists()
    assert [path for path in RUN.iterdir() if path.is_dir()] == [bed._layout.run]
    assert not cleanup.mounts_below([bed.folder, RUN])


def lives(pid: int) -> bool:
    return cleanup.start_time(pid) is not None


def test_two_real_nodes_are_ready(bed: Bed) -> None:
    nodes = {x["metadata"]["name"]: x for x in bed.api("GET", "/api/v1/nodes")["items"]}
    assert len(bed.real_nodes) == 2
    assert all(is_ready(nodes[name]) for name in bed.real_nodes)
    assert "v1.37.2" in bed.kubectl("version")


def test_a_pod_runs_python_and_its_log_and_exit_code_come_back(bed: Bed, namespace: str) -> None:
    code = "import sys, os; print(sys.version_info[:3], os.getuid()); sys.exit(7)"
    context = {"runAsUser": 1000}
    pod = pods.manifest("seven", ["python3", "-c", code], securityContext=context)
    pods.create(bed, namespace, pod)
    assert pods.exit_code(pods.wait_until(bed, namespace, "seven", pods.ended)) == 7
    expected = f"{sys.version_info[:3]} 1000\n"
    assert bed.kubectl("logs", "-n", namespace, "seven") == expected
    assert bed.api("GET", f"{pods.path_of(namespace, 'seven')}/log") == expected


def test_a_missing_image_is_missed_at_once(bed: Bed, namespace: str) -> None:
    pod = pods.manifest("none", ["true"], image="registry.ffdl.test/none:1")
    pods.create(bed, namespace, pod)

    def refused(pod: Any) -> bool:
        states = [x["state"] for x in pod["status"].get("containerStatuses", [])]
        return any("Pull" in state.get("waiting", {}).get("reason", "") for state in states)

    pods.wait_until(bed, namespace, "none", refused, timeout_s=10)


@pytest.fixture(scope="module")
def web(bed: Bed) -> Iterator[str]:
    """A namespace with the pod ``server`` on the first node, behind a headless Service ``web``."""
    namespace = bed.make_namespace("web")
    spec = {"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"port": PORT}]}
    body = {"metadata": {"name": "web"}, "spec": spec}
    bed.api("POST", f"/api/v1/namespaces/{namespace}/services", body)
    place = {"nodeName": bed.real_nodes[0], "hostname": "server", "subdomain": "web"}
    probe = {"readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1}}
    pod = pods.manifest("server", SERVE, container=probe, **place)
    pod["metadata"]["labels"] = {"app": "web"}
    pods.create(bed, namespace, pod)
    pods.wait_until(bed, namespace, "server", pods.ready)
    yield namespace
    bed.delete_namespace(namespace)


def test_names_of_a_headless_service_lead_to_the_other_node(bed: Bed, web: str) -> None:
    code = (
        "import time, urllib.request as r\n"
        "for _ in range(300):\n"
        "    try:\n"
        f"        print(r.urlopen('http://server.web:{PORT}').status); break\n"
        "    except OSError: time.sleep(0.1)\n"
    )
    pod = pods.manifest("client", ["python", "-c", code], nodeName=bed.real_nodes[1])
    pods.create(bed, web, pod)
    pods.wait_until(bed, web, "client", pods.ended)
    assert bed.kubectl("logs", "-n", web, "client") == "200\n"


def test_the_api_server_leads_to_a_pod_and_back_after_a_restart(bed: Bed, web: str) -> None:
    path = f"/api/v1/namespaces/{web}/pods/server:{PORT}/proxy/etc/group"
    assert "root:x:0" in bed.api("GET", path)
    uid = bed.api("GET", pods.path_of(web, "server"))["metadata"]["uid"]
    bed.stop_api_server()
    with pytest.raises(httpx.TransportError):
        bed.api("GET", "/version")
    bed.start_api_server()
    assert bed.api("GET", pods.path_of(web, "server"))["metadata"]["uid"] == uid
    assert "root:x:0" in bed.api("GET", path)


def test_a_pods_token_may_not_read_pods(bed: Bed, namespace: str) -> None:
    pods.create(bed, namespace, pods.manifest("asks", ["python", "-c", ASK_API]))
    pods.wait_until(bed, namespace, "asks", pods.ended)
    assert bed.kubectl("logs", "-n", namespace, "asks") == "200\n403\n"


@pytest.fixture
def fake_nodes(bed: Bed) -> Iterator[list[str]]:
    yield bed.add_fake_nodes(3, labels={"zone": "a"})
    bed.remove_fake_nodes()


def test_pods_on_fake_nodes_run_and_end_as_they_are_told(
    bed: Bed, namespace: str, fake_nodes: list[str]
) -> None:
    for code in ("0", "3"):
        annotations = {EXIT: code, DELAY: "100ms"}
        pods.create(bed, namespace, pods.fake_manifest(f"ends-{code}", annotations=annotations))
    for code in ("0", "3"):
        pod = pods.wait_until(bed, namespace, f"ends-{code}", pods.ended)
        assert pods.exit_code(pod) == int(code)
        assert pod["spec"]["nodeName"] in fake_nodes


def test_a_fake_pod_answers_through_the_api_server(
    bed: Bed, namespace: str, fake_nodes: list[str]
) -> None:
    def answer(request: Request) -> Any:
        return 202, {"ip": request.pod_ip, "path": request.path, "body": request.body.decode()}

    for name in ("a", "b"):
        pods.create(bed, namespace, pods.fake_manifest(name))
    with bed.fake_pods(PORT, answer):
        for name in ("a", "b"):
            pod = pods.wait_until(bed, namespace, name, pods.ready)
            path = f"{pods.path_of(namespace, name)}:{PORT}/proxy/x?y=1"
            found = bed.api.raw("POST", path, {"z": 2})
            assert found.status_code == 202
            body = {"ip": pod["status"]["podIP"], "path": "/x?y=1", "body": '{"z":2}'}
            assert found.json() == body


def test_gpus_of_a_real_node_are_given_once(bed: Bed, namespace: str) -> None:
    node = bed.real_nodes[0]
    bed.set_gpus(node, 2)
    container = {"resources": {"limits": {GPU: "2"}}}
    for name in ("first", "second"):
        pods.create(bed, namespace, pods.manifest(name, ["sleep", "100"], container=container))

    def refused(pod: Any) -> bool:
        text = " ".join(x.get("message", "") for x in pod["status"].get("conditions", []))
        return f"Insufficient {GPU}" in text

    assert pods.wait_until(bed, namespace, "first", pods.ready)["spec"]["nodeName"] == node
    pods.wait_until(bed, namespace, "second", refused)
    bed.api("DELETE", pods.path_of(namespace, "first"))
    assert pods.wait_until(bed, namespace, "second", pods.ready)["spec"]["nodeName"] == node
    bed.set_gpus(node, 0)


def test_processes_of_a_container_are_found_on_the_machine(bed: Bed, namespace: str) -> None:
    command = ["sh", "-c", "sleep 1001 & exec sleep 1002"]
    uid = pods.create(bed, namespace, pods.manifest("two", command))["metadata"]["uid"]
    pods.wait_until(bed, namespace, "two", pods.ready)
    for pod in (uid, f"{namespace}/two"):
        found = [psutil.Process(pid).cmdline() for pid in bed.container_pids(pod, "main")]
        assert sorted(found) == [["sleep", "1001"], ["sleep", "1002"]]
    os.kill(bed.container_pids(uid, "main")[0], signal.SIGKILL)
    assert pods.exit_code(pods.wait_until(bed, namespace, "two", pods.ended)) == 137


def test_an_image_of_a_tests_own_stands_on_the_python_image(bed: Bed, namespace: str) -> None:
    ref = "registry.ffdl.test/own:1"
    files = {"/app/main.py": "import os, part\nprint(part.NAME, os.environ['COLOUR'])\n",
             "/app/part.py": b"NAME = 'own'\n"}  # fmt: skip
    env = {"COLOUR": "red"}
    bed.load_image(images.build_image(ref, files, entrypoint=["python", "/app/main.py"], env=env))
    for node in bed.real_nodes:
        pod = pods.manifest(node, [], image=ref, nodeName=node)
        del pod["spec"]["containers"][0]["command"]
        pods.create(bed, namespace, pod)
    for node in bed.real_nodes:
        pods.wait_until(bed, namespace, node, pods.ended)
        assert bed.kubectl("logs", "-n", namespace, node) == "own red\n"


def test_the_name_server_can_be_stopped(bed: Bed, web: str) -> None:
    def resolves() -> bool:
        name = f"web.{web}.svc.cluster.local"
        code = f"import socket\ntry: print(socket.gethostbyname('{name}'))\nexcept OSError: pass"
        words = ["exec", "-n", web, "server", "--", "python", "-c", code]
        return bool(bed.kubectl(*words))

    wait_for(resolves, "the name is not there")
    bed.stop_dns()
    assert not resolves()
    bed.start_dns()
    wait_for(resolves, "the name does not come back")


def test_a_node_without_its_cable_is_lost_and_comes_back(bed: Bed, namespace: str) -> None:
    """The other node crashes meanwhile: a cluster takes as long to notice that."""
    crashing, cut = bed.real_nodes
    pods.create(bed, namespace, pods.manifest("gone", ["sleep", "100"], nodeName=crashing))
    pods.wait_until(bed, namespace, "gone", pods.ready)
    pids = bed.container_pids(f"{namespace}/gone", "main")
    bed.cut_link(cut)
    bed.crash_node(crashing)
    assert not [pid for pid in pids if lives(pid)]
    for node in (cut, crashing):
        bed.wait_for_node(node, ready=False)
    bed.mend_link(cut)
    bed.boot_node(crashing)
    bed.wait_for_node(cut, ready=True)
    # Its container may be unknown to the node by then: a phase, not always an exit code.
    assert pods.wait_until(bed, namespace, "gone", pods.ended)["status"]["phase"] == "Failed"


def test_a_kubelet_that_was_killed_finds_its_pods_again(bed: Bed, namespace: str) -> None:
    node = bed.real_nodes[1]
    pods.create(bed, namespace, pods.manifest("stays", ["sleep", "100"], nodeName=node))
    pods.wait_until(bed, namespace, "stays", pods.ready)
    pids = bed.container_pids(f"{namespace}/stays", "main")
    bed.stop_kubelet(node)
    assert all(map(lives, pids))
    bed.start_kubelet(node)
    assert bed.container_pids(f"{namespace}/stays", "main") == pids
    assert "bin" in bed.kubectl("exec", "-n", namespace, "stays", "--", "ls", "/")


def test_pod_groups_are_scheduled_whole(bed: Bed, namespace: str, fake_nodes: list[str]) -> None:
    """Last, since the control plane starts twice: with the gate and, for the others, without."""
    groups = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{namespace}/podgroups"
    with pytest.raises(ApiError):
        bed.api("GET", groups)
    bed.set_gang_gate(on=True)
    try:
        policy = {"schedulingPolicy": {"gang": {"minCount": 2}}}
        bed.api("POST", groups, {"metadata": {"name": "pair"}, "spec": policy})
        group = {"schedulingGroup": {"podGroupName": "pair"}}
        pods.create(bed, namespace, pods.fake_manifest("one", **group))
        pods.create(bed, namespace, pods.fake_manifest("alone"))
        pods.wait_until(bed, namespace, "alone", pods.ready)
        one = bed.api("GET", pods.path_of(namespace, "one"))
        assert "nodeName" not in one["spec"]
        pods.create(bed, namespace, pods.fake_manifest("two", **group))
        for name in ("one", "two"):
            pods.wait_until(bed, namespace, name, pods.ready)
    finally:
        bed.set_gang_gate(on=False)
