"""The copy of a namespace's pods: by gang, as fresh as what the watch has told."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ffdl_airflow.engines.kubernetes.client import ApiError
from ffdl_airflow.engines.kubernetes.hub import Hub

Pod = dict[str, Any]


class Api:
    """A list that is given once, and events as the test sends them."""

    def __init__(self, *listed: Pod) -> None:
        self.listed = list(listed)
        self.events: queue.Queue[Any] = queue.Queue()

    def list(self, path: str, **query: Any) -> Pod:
        return {"items": list(self.listed), "metadata": {"resourceVersion": "1"}}

    def watch(self, path: str, **query: Any) -> Iterator[Pod]:
        while True:
            event = self.events.get()
            if isinstance(event, Exception):
                raise event
            yield event

    def say(self, kind: str, found: Pod) -> None:
        self.events.put({"type": kind, "object": found})


def pod(name: str, version: int, *, gang: str = "", node: str | None = None) -> Pod:
    gang = gang or name.partition("-")[0]
    metadata = {"name": name, "uid": name, "resourceVersion": str(version), "labels": {"g": gang}}
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}}


def gang_of(found: Pod) -> str:
    return str(found["metadata"]["labels"]["g"])


def hub_of(api: Api) -> Hub:
    return Hub(api, "/api/v1/namespaces/n/pods", "g", group=gang_of)  # type: ignore[arg-type]


@pytest.fixture
def api() -> Api:
    return Api(pod("a-0", 1), pod("a-1", 1), pod("b-0", 1))


@pytest.fixture
def hub(api: Api) -> Hub:
    return hub_of(api)


def names(hub: Hub, key: str) -> set[str]:
    return set(hub.group(key))


def until(hub: Hub, name: str, version: int) -> None:
    """What was sent has been heard."""
    assert hub.wait(lambda found: _version(found.get(name)) == version, 5)


def _version(found: Pod | None) -> int:
    return int(found["metadata"]["resourceVersion"]) if found else 0


def test_a_look_has_one_gang(hub: Hub) -> None:
    assert names(hub, "a") == {"a-0", "a-1"}
    assert names(hub, "b") == {"b-0"}
    assert names(hub, "c") == set()
    assert set(hub.read()) == {"a-0", "a-1", "b-0"}
    assert hub.get("b-0") == pod("b-0", 1)
    assert hub.get("b-1") is None


def test_who_wrote_which_field_is_not_kept() -> None:
    listed, said = pod("a-0", 1), pod("a-1", 2)
    for found in (listed, said):
        found["metadata"]["managedFields"] = [{"manager": "kubelet", "fieldsV1": {"f:spec": {}}}]
    api = Api(listed)
    hub = hub_of(api)
    api.say("ADDED", said)
    until(hub, "a-1", 2)
    kept = hub.read()
    assert set(kept) == {"a-0", "a-1"}
    assert not any("managedFields" in found["metadata"] for found in kept.values())


def test_groups_follow_the_watch(hub: Hub, api: Api) -> None:
    names(hub, "a")
    api.say("ADDED", pod("c-0", 2))
    api.say("MODIFIED", pod("a-0", 3, node="n1"))
    api.say("DELETED", pod("b-0", 4))
    api.say("ADDED", pod("c-1", 5))
    until(hub, "c-1", 5)
    assert names(hub, "c") == {"c-0", "c-1"}
    assert hub.group("a")["a-0"]["spec"] == {"nodeName": "n1"}
    assert names(hub, "b") == set()
    assert hub.departed("b-0") == pod("b-0", 4)


def test_an_object_is_in_one_group_only(hub: Hub, api: Api) -> None:
    names(hub, "a")
    api.say("MODIFIED", pod("a-0", 2, gang="b"))
    until(hub, "a-0", 2)
    assert names(hub, "a") == {"a-1"}
    assert names(hub, "b") == {"b-0", "a-0"}
    hub.forget(pod("a-0", 3, gang="a"))
    assert names(hub, "b") == {"b-0"}


def test_what_a_new_list_does_not_have_is_in_no_group(hub: Hub, api: Api) -> None:
    names(hub, "a")
    api.listed = [pod("a-1", 9)]
    api.events.put(ApiError(410, {}, "WATCH pods"))
    until(hub, "a-1", 9)
    assert (names(hub, "a"), names(hub, "b")) == ({"a-1"}, set())


def test_what_is_made_here_is_there_at_once_and_nothing_older_replaces_it(
    hub: Hub, api: Api
) -> None:
    names(hub, "a")
    hub.put(pod("a-2", 7, node="n1"))
    hub.put(pod("a-2", 6))
    assert hub.group("a")["a-2"]["spec"] == {"nodeName": "n1"}
    hub.forget(pod("a-2", 8))
    api.say("MODIFIED", pod("a-2", 7))
    api.say("ADDED", pod("b-1", 9))
    until(hub, "b-1", 9)
    assert names(hub, "a") == {"a-0", "a-1"}


def test_who_waits_for_a_gang_looks_at_its_pods_only(hub: Hub, api: Api) -> None:
    seen: list[set[str]] = []

    def bound(pods: Any) -> bool:
        seen.append(set(pods))
        return any(found["spec"] for found in pods.values())

    api.say("MODIFIED", pod("b-0", 2, node="n1"))
    api.say("MODIFIED", pod("a-1", 3, node="n1"))
    assert hub.wait(bound, 5, key="a")
    assert {name for found in seen for name in found} <= {"a-0", "a-1"}
    assert not hub.wait(bound, 0.01, key="c")


def test_looks_and_changes_go_on_at_once(hub: Hub) -> None:
    """A copy is whole, whatever is written meanwhile."""
    names(hub, "a")

    def write() -> None:
        for version in range(2, 400):
            hub.put(pod(f"a-{version % 7}", version))
            hub.forget(pod(f"a-{(version + 3) % 7}", version))

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert all(name.startswith("a-") for name, _ in hub.group("a").items())
    assert dict(hub.group("a")) == {k: v for k, v in hub.read().items() if k.startswith("a-")}
