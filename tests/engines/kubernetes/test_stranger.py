"""A server that is no Kubernetes API server answers: that is said, and is no fault of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ffdl_airflow.core.findings import Level
from ffdl_airflow.engines.kubernetes.client import AwayError, KubeClient
from ffdl_airflow.engines.kubernetes.cluster import Cluster
from ffdl_airflow.engines.kubernetes.doctor import examine
from ffdl_airflow.engines.kubernetes.hub import Hub
from tests.engines.kubernetes import fake_api
from tests.engines.kubernetes.fake_api import FakeApi

JSON, HTML = "application/json", "text/html"
STRANGERS = [
    (200, HTML, b"<html>hello</html>"), (200, HTML, b""), (200, JSON, b"{}"), (200, JSON, b"[]"),
    (200, JSON, b"null"), (200, JSON, b'{"hello": "world"}'), (200, JSON, b'{"kind": 5}'),
    (200, JSON, b"\xff\xfe"), (302, HTML, b""), (200, JSON, b'{"items": []}'),
]  # fmt: skip
PODS = "/api/v1/namespaces/ml/pods"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api.serving() as made:
        yield made


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_is_named(api: FakeApi, stranger: tuple[int, str, bytes]) -> None:
    client, api.stranger = KubeClient(api.credentials), stranger
    said = f"what answers at {api.url} is no Kubernetes API server: status {stranger[0]}, "
    for ask in (client.get, client.list, lambda path: client.create(path, {})):
        with pytest.raises(AwayError) as caught:
            ask(PODS)
        assert str(caught.value).endswith(said + stranger[1])
    with pytest.raises(AwayError, match="is no Kubernetes API server"):
        client.version()
    with pytest.raises(AwayError, match="is no Kubernetes API server"):
        Hub(client, PODS, "app").read(wait_s=5)
    (finding,) = examine(Cluster(api.settings()), {}, image=None)
    assert finding.level == Level.PROBLEM
    assert said in finding.found
    client.get(f"{PODS}/p/proxy/")  # there somebody else answers, whatever it is


LISTS = [b'{"kind": "PodList", "metadata": {}}', b'{"kind": "PodList", "items": []}',
         b'{"metadata": {}, "items": 5}', b'{"metadata": {}, "items": [5]}']  # fmt: skip


@pytest.mark.parametrize("body", LISTS)
def test_a_list_has_items(api: FakeApi, body: bytes) -> None:
    client, api.stranger = KubeClient(api.credentials), (200, JSON, body)
    with pytest.raises(AwayError, match="no Kubernetes API server: a list without items"):
        client.list(PODS)
    with pytest.raises(AwayError, match="no Kubernetes API server: no gitVersion"):
        client.version()


def test_an_empty_list_may_be_null(api: FakeApi) -> None:
    client = KubeClient(api.credentials)
    api.stranger = (200, JSON, b'{"metadata": {}, "items": null}')
    assert client.list(PODS)["items"] == []
    with pytest.raises(AwayError, match="a list without a version"):
        Hub(client, PODS, "app").read(wait_s=5)


@pytest.mark.parametrize("stranger", [(302, HTML, b""), (200, JSON, b"[]\n"), (200, HTML, b"hi\n")])
def test_a_watch_has_events(api: FakeApi, stranger: tuple[int, str, bytes]) -> None:
    client, api.stranger = KubeClient(api.credentials), stranger
    with pytest.raises(AwayError, match="is no Kubernetes API server"):
        next(client.watch(PODS, read_s=5))


@pytest.mark.parametrize("code", [401, 403, 404, 429, 500, 503])
def test_a_refusal_is_told_with_status_and_address(api: FakeApi, code: int) -> None:
    api.stranger = (code, JSON, b'{"kind": "Status", "message": "server says no", "details": 5}')
    (finding,) = examine(Cluster(api.settings()), {}, image=None)
    assert f"server says no ({api.url}, {code} " in finding.found
    assert "tried again" not in finding.do


def test_a_page_is_not_shown(api: FakeApi) -> None:
    api.stranger = (502, HTML, b"<html>\n<p>Bad\nGateway</p>\n</html>")
    (finding,) = examine(Cluster(api.settings()), {}, image=None)
    assert finding.found == f"cannot look: an HTML page ({api.url}, 502 Bad Gateway)"
