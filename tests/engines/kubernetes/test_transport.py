"""Two ways to a pod: which one is taken when, and that orders arrive by both. With a real agent."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.agent import protocol
from ffdl_airflow.agent.bundle import build_zipapp
from ffdl_airflow.core.errors import InfrastructureError
from ffdl_airflow.engines.base import AgentAway, AgentRefused, Granted
from ffdl_airflow.engines.client import HttpAgentClient
from ffdl_airflow.engines.kubernetes import client, names, transport
from ffdl_airflow.engines.kubernetes.client import ApiError, AwayError, KubeClient
from ffdl_airflow.engines.kubernetes.engine import KubernetesEngine
from ffdl_airflow.engines.kubernetes.refusals import no_way_to_pods
from ffdl_airflow.engines.kubernetes.transport import Pod, PodTransport
from tests.agent.placement import TOKEN, Placement
from tests.engines.kubernetes import fake_api
from tests.engines.kubernetes.fake_api import FakeApi, status
from tests.engines.kubernetes.rendered import plan_of

POD = "/api/v1/namespaces/ml/pods/ffdl-digits-1-worker-0"
WAITS = "import time\ntime.sleep(60)\n"
NO_ROUTE = status(503, "error trying to reach service: dial tcp 10.244.1.5:29400: i/o timeout")
REFUSED = status(503, "error trying to reach service: dial tcp 10.244.1.5:29400: connect: "
                 "connection refused")  # fmt: skip


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api.serving() as made:
        yield made


@pytest.fixture
def placement(tmp_path: Path, api: FakeApi) -> Iterator[Placement]:
    """A real gang of one; the API server's proxy and its exec lead to it."""
    made = Placement(tmp_path, Path(build_zipapp(str(tmp_path / "agent.pyz")))).prepare(WAITS)

    def proxied(method: str, path: str, headers: Any, body: bytes) -> tuple[int, Any]:
        token = headers[protocol.TOKEN_HEADER]
        return made.request(method, path, json.loads(body) if body else None, token=token)

    def executed(container: str, words: list[str]) -> tuple[str, str, int]:
        assert container == "trainer"
        assert words[:4] == ["python3", "-E", "-S", "/ffdl/agent/agent.pyz"]
        assert TOKEN not in " ".join(words)
        here = {"/ffdl/placement": str(made.dir)}
        line = [sys.executable, *words[1:3], str(made.bundle), *(here.get(w, w) for w in words[4:])]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        return done.stdout, done.stderr, done.returncode

    api.proxied, api.executed = proxied, executed
    made.up()
    yield made
    made.clean()


def agent(api: FakeApi) -> HttpAgentClient:
    kube = KubeClient(api.credentials)
    made = PodTransport(kube, Pod(path=POD, port=29400, python="python3"))
    return HttpAgentClient(made, TOKEN)


def ways(api: FakeApi) -> list[str]:
    """Of the requests until now, in their order; forgets them."""
    found = ["exec" if "/exec?" in path else "proxy" for _, path in api.requests]
    api.requests.clear()
    return found


def test_the_proxy_is_the_way_as_long_as_it_works(api: FakeApi, placement: Placement) -> None:
    gang = agent(api)
    assert gang.status()["state"] == protocol.HOLDING
    gang.renew(30.0)
    assert ways(api) == ["proxy", "proxy"]


def test_where_the_proxy_is_forbidden_commands_ask_and_tell(
    api: FakeApi, placement: Placement
) -> None:
    api.forbidden.add(("get", "pods/proxy"))
    gang = agent(api)
    assert gang.status()["state"] == protocol.HOLDING
    assert ways(api) == ["proxy", "exec"]
    gang.go(
        {"attempt": 1, "resume_from": None, "resume_step": None, "time_left_s": None, "env": {}}
    )
    placement.wait_state(protocol.RUNNING)
    document = gang.news(journal=0)
    assert document["journal"]
    with pytest.raises(AgentRefused, match="bad-request"):
        gang.stop(mode="later", why="test", then="hold")
    gang.stop(mode="now", why="gute Gründe & „Zeichen“ ?+%\n", then="leave")
    placement.wait_gone()
    assert set(ways(api)) == {"exec"}, "for the rest of its life"
    with pytest.raises(AgentAway):
        gang.status()
    assert ways(api) == ["exec"]


@pytest.mark.parametrize("told", [(503, NO_ROUTE), (502, status(502, "Bad Gateway")), (504, {}),
                                  (500, status(500, "dial tcp: no route to host"))])  # fmt: skip
def test_where_the_api_server_reaches_no_pod_the_proxy_is_tried_again_later(
    api: FakeApi, placement: Placement, told: tuple[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, api.proxied = api.proxied, lambda *call: told
    monkeypatch.setattr(transport, "AGAIN_S", 2.0)
    gang = agent(api)
    assert gang.status()["state"] == protocol.HOLDING
    assert gang.status()["state"] == protocol.HOLDING
    assert ways(api) == ["proxy", "exec", "exec"]
    api.proxied = real
    time.sleep(2.0)
    assert gang.status()["state"] == protocol.HOLDING
    assert ways(api) == ["proxy"]


def test_an_agent_that_does_not_listen_yet_is_no_broken_way(api: FakeApi) -> None:
    api.proxied = lambda *call: (503, REFUSED)
    with pytest.raises(AgentAway):
        agent(api).status()
    assert ways(api) == ["proxy"]


def test_a_proxy_that_never_answers_is_given_up_and_one_that_has_is_not(
    api: FakeApi, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffdl_airflow.engines.client._CALL_S", 0.5)
    real = api.proxied

    def silent(*call: Any) -> tuple[int, Any]:
        time.sleep(1.0)
        return 503, NO_ROUTE

    before = agent(api)
    before.status()
    api.proxied = silent
    with pytest.raises(AgentAway):
        before.status()
    assert ways(api) == ["proxy", "proxy"]
    new = agent(api)
    assert new.status()["state"] == protocol.HOLDING
    assert ways(api) == ["proxy", "exec"]
    api.proxied = real


def test_without_either_right_the_proxys_is_named(api: FakeApi, placement: Placement) -> None:
    """And as soon as there is one of them the gang is reached."""
    api.forbidden |= {("get", "pods/proxy"), ("get", "pods/exec")}
    gang = agent(api)
    for _ in range(2):
        with pytest.raises(InfrastructureError, match='cannot get resource "pods/proxy"'):
            gang.status()
    assert ways(api) == ["proxy", "exec", "proxy"], "a refused command is not repeated at once"
    api.forbidden.discard(("get", "pods/proxy"))
    assert gang.status()["state"] == protocol.HOLDING


def test_an_old_agent_without_the_option_is_no_way(api: FakeApi) -> None:
    api.proxied = lambda *call: (503, NO_ROUTE)
    api.executed = lambda *call: ("", "usage: agent.pyz <placement dir> <role>-<index>", 2)
    with pytest.raises(AgentAway):
        agent(api).status()
    assert ways(api) == ["proxy", "exec"]


def test_a_command_that_does_not_end_is_given_up(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.executed = lambda *call: (time.sleep(2), ("", "", 0))[1]
    began = time.monotonic()
    with pytest.raises(AwayError, match="TimeoutException"):
        KubeClient(api.credentials).execute(POD, ["true"], container="trainer", timeout_s=0.3)
    assert time.monotonic() - began < 1.5


def test_an_execs_refusals_are_errors_of_the_api(api: FakeApi) -> None:
    api.forbidden.add(("get", "pods/exec"))
    kube = KubeClient(api.credentials)
    with pytest.raises(ApiError, match='cannot get resource "pods/exec"') as caught:
        kube.execute(POD, ["true"], container="trainer", timeout_s=5)
    assert caught.value.forbidden
    api.forbidden.clear()
    api.executed = lambda *call: ("out " * 100, "err", 7)
    done = kube.execute(POD, ["true"], container="trainer", timeout_s=5)
    assert (done.stdout, done.stderr) == ("out " * 100, "err")
    assert done.failed == "command terminated with non-zero exit code: exit status 7 err"


def test_nobody_at_the_api_server(api: FakeApi) -> None:
    kube = KubeClient(fake_credentials())
    with pytest.raises(AwayError, match="EXEC"):
        kube.execute(POD, ["true"], container="trainer", timeout_s=1)


def fake_credentials() -> client.Credentials:
    with fake_api.serving() as gone:
        return gone.credentials


@pytest.mark.parametrize(("code", "text", "closed"), [
    (503, "error trying to reach service: dial tcp 10.0.0.1:1: connect: no route to host", True),
    (503, "error trying to reach service: dial tcp 10.0.0.1:1: connect: connection refused", False),
    (500, "error dialing backend: dial tcp 10.0.0.1:10250: i/o timeout", True),
    (504, "Gateway Timeout", True), (502, "", True), (404, "pods not found", False),
    (400, "no such path", False), (500, "internal error", False),
])  # fmt: skip
def test_what_says_that_there_is_no_way(code: int, text: str, closed: bool) -> None:
    assert no_way_to_pods(ApiError(code, {"message": text}, "GET")) is closed


def test_the_engine_has_both_ways_to_its_coordinator(api: FakeApi) -> None:
    api.proxied = lambda *call: (503, NO_ROUTE)
    answer = {"v": 1, "status": 200, "document": {"v": 1, "ok": True}}
    api.executed = lambda container, words: (json.dumps(answer), "", 0)
    engine, plan = KubernetesEngine(api.settings()), replace(plan_of("mpi"), gang="turnstile")
    deadline = time.monotonic() + 10
    while engine.reserve(plan) != Granted() and time.monotonic() < deadline:
        time.sleep(0.05)
    api.requests.clear()
    engine.connect(plan.placement_id).renew(60.0)
    told = [path for method, path in api.requests if "/pods/" in path]
    name = names.pod_name(plan.placement_id, "launcher-0")
    assert told[0] == f"/api/v1/namespaces/ml/pods/{name}:29400/proxy/v1/renew"
    assert told[1].startswith(f"/api/v1/namespaces/ml/pods/{name}/exec?container=trainer&")


@pytest.mark.parametrize(("proxied", "code", "proxy", "commands"), [
    ((200, {"addresses": ["10.1.0.7"]}), 0, "leads to pods", "allowed, and not used"),
    ((503, NO_ROUTE), 0, "gangs are asked by commands in their pods", "allowed, and used"),
    ((503, NO_ROUTE), 126, "i/o timeout", "a command in a pod fails: command terminated with no"),
])  # fmt: skip
def test_the_doctor_tries_both_ways(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, proxied: Any, code: int, proxy: str,
    commands: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("ffdl_airflow.engines.kubernetes.trial.ANSWER_S", 0.5)
    api.forbidden.add(("create", "podgroups"))
    api.proxied = lambda *call: proxied
    api.executed = lambda container, words: ("", "", code)
    found = {one.check: one for one in KubernetesEngine(api.settings()).examine({}, image="i")}
    assert proxy in found["pod proxy"].found
    assert commands in found["exec"].found
    assert not api.named("pods")
