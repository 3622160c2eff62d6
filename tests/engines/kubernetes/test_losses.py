"""Which replicas of a gang are lost: from plain pods, and a cluster that says what a test wants."""

from __future__ import annotations

from typing import Any

import pytest

from ffdl_airflow.engines.kubernetes import losses, names
from ffdl_airflow.engines.kubernetes.losses import Losses
from ffdl_airflow.engines.kubernetes.pod_end import end_of
from ffdl_airflow.engines.kubernetes.pod_state import PodState

PLACEMENT = "bert-base-0123456789/1"
GANG = names.gang_name(PLACEMENT)
Pod = dict[str, Any]


class Cluster:
    """What the engine's cluster is asked by `Losses`."""

    def __init__(self) -> None:
        self.gone: dict[str, Pod] = {}
        self.late: dict[str, Pod] = {}
        self.events: list[Pod] = []

    def departed(self, placement_id: str, replica: str) -> Pod | None:
        return self.gone.get(replica)

    def confirmed(self, placement_id: str, replica: str) -> Pod | None:
        return self.late.get(replica)

    def pods(self, placement_id: str) -> dict[str, Pod]:
        return {}

    def events_of(self, pods: object) -> list[Pod]:
        return self.events


def anchor(stage: str = "placed") -> Pod:
    data = {"placement": PLACEMENT, "names": "worker-0 worker-1", "placement-s": "60"}
    return {"metadata": {"name": GANG, "annotations": {names.STAGE: stage}}, "data": data}


def pod(replica: str, *, phase: str = "Running", ready: str = "True", containers: str = "True",
        deleted: bool = False, waiting: dict[str, str] | None = None) -> Pod:  # fmt: skip
    labels = {names.REPLICA: replica, names.JOB: "bert-base-0123456789", names.PLACEMENT: "1"}
    metadata: Pod = {"name": f"{GANG}-{replica}", "uid": replica, "labels": labels}
    if deleted:
        metadata |= {"deletionTimestamp": "2026-03-01T22:00:30Z", "deletionGracePeriodSeconds": 30}
    state = {"waiting": waiting} if waiting else {"running": {"startedAt": "2026-03-01T21:00:00Z"}}
    at = "2026-03-01T22:00:00Z"
    return {
        "metadata": metadata,
        "spec": {"nodeName": "gpu-7", "containers": [{"name": "trainer", "image": "train:1"}]},
        "status": {
            "phase": phase, "startTime": "2026-03-01T21:00:00Z",
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": at},
                           {"type": "ContainersReady", "status": containers}],
            "containerStatuses": [{"name": "trainer", "state": state}],
        },
    }  # fmt: skip


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def found(cluster: Cluster) -> Losses:
    return Losses(cluster)  # type: ignore[arg-type]


def whats(bodies: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(body["replica"], body["what"]) for body in bodies]


WELL = pod("worker-0")
SILENT = pod("worker-1", ready="False")


def test_the_mark_of_the_nodes_controller_is_a_silent_node() -> None:
    assert PodState(SILENT).silent
    assert not PodState(WELL).silent
    assert not PodState(pod("worker-1", ready="False", containers="False")).silent
    assert not PodState(pod("worker-1", phase="Failed", ready="False")).silent
    gated = pod("worker-1", ready="False")
    gated["spec"]["readinessGates"] = [{"conditionType": "example.com/checked"}]
    assert not PodState(gated).silent
    end = end_of(SILENT)
    assert end is not None
    assert (end.what, end.node, end.ran) == ("node-lost", "gpu-7", True)
    assert end.at is not None
    assert end.at.hour == 22


def test_a_replica_on_a_silent_node_is_lost_unless_its_coordinator_hears_it(found: Losses) -> None:
    pods = {"worker-0": WELL, "worker-1": SILENT}
    assert whats(found.of(anchor(), pods, heard=())) == [("worker-1", "node-lost")]
    assert found.of(anchor(), pods, heard=("worker-0", "worker-1")) == []


def test_a_pod_that_our_watch_has_not_heard_of_is_not_lost(cluster: Cluster, found: Losses) -> None:
    """Another driver has just made it."""
    cluster.late = {"worker-1": pod("worker-1")}
    assert found.of(anchor(), {"worker-0": WELL}, heard=()) == []
    cluster.late = {}
    (body,) = found.of(anchor(), {"worker-0": WELL}, heard=())
    assert (body["what"], body["reason"]) == ("deleted", "NotFound")


@pytest.mark.parametrize("stage", ["waiting", "ended"])
def test_what_is_not_placed_has_lost_nothing(stage: str, found: Losses) -> None:
    assert found.of(anchor(stage), {}, heard=()) == []


def test_a_round_that_is_given_up_has_lost_nothing(found: Losses) -> None:
    leaving = pod("worker-1", deleted=True)
    assert found.of(anchor("placing"), {"worker-1": leaving}, heard=()) == []


BAD_NAME = {"reason": "InvalidImageName", "message": "couldn't parse image name"}


@pytest.mark.parametrize("stage", ["placing", "placed"])
def test_what_will_never_start_is_lost_at_once(stage: str, found: Losses) -> None:
    pods = {"worker-0": WELL, "worker-1": pod("worker-1", phase="Pending", waiting=BAD_NAME)}
    assert whats(found.of(anchor(stage), pods, heard=())) == [("worker-1", "image")]


def test_what_does_not_start_has_the_time_of_a_placement(
    found: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(losses.time, "monotonic", lambda: now[0])
    waiting = {"reason": "ErrImagePull", "message": "dial tcp 203.0.113.7:443: i/o timeout"}
    slow = pod("worker-1", phase="Pending", waiting=waiting)
    pods = {"worker-0": WELL, "worker-1": slow}
    assert found.of(anchor(), pods, heard=()) == []
    assert found.waiting(anchor(), pods) is None, "it may start any moment"
    now[0] += 10
    assert found.of(anchor(), pods, heard=()) == []
    told = found.waiting(anchor(), pods)
    assert told == f"worker-1: image train:1 cannot be pulled yet: {waiting['message']}"
    now[0] += 60
    (body,) = found.of(anchor(), pods, heard=())
    assert (body["what"], body["ran"]) == ("not-started", False)
    assert body["message"].startswith("it has not started within 60 s: image train:1 cannot be")


def test_our_own_secret_that_is_missing_is_nobodys_mistake(
    cluster: Cluster, found: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(losses.time, "monotonic", lambda: now[0])
    starts = pod("worker-1", phase="Pending", waiting={"reason": "ContainerCreating"})
    message = f'MountVolume.SetUp failed for volume "placement" : secret "{GANG}" not found'
    involved = {"uid": "worker-1", "name": starts["metadata"]["name"]}
    cluster.events = [{"involvedObject": involved, "reason": "FailedMount", "message": message}]
    pods = {"worker-0": WELL, "worker-1": starts}
    for _ in range(6):
        bodies = found.of(anchor(), pods, heard=())
        now[0] += 11
    (body,) = bodies
    assert body["what"] == "deleted"
    assert (
        body["message"]
        == f"secret {GANG}, which was made for it, has been removed before it started"
    )
