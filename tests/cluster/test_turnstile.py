"""Gangs that cannot all be placed at once: on ten fake nodes of eight GPUs, all or nothing.

What happened is read from the API server's own history of pods, not from what drivers say.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.core.errors import SpecError
from ffdl_airflow.core.plan import GangPlan
from ffdl_airflow.engines.base import Granted
from ffdl_airflow.engines.kubernetes import names
from ffdl_airflow.engines.kubernetes.engine import KubernetesEngine
from ffdl_airflow.engines.kubernetes.settings import Credentials, Toleration
from ffdl_airflow.testing.contracts.engine import ended
from tests.cluster.bed import Bed
from tests.cluster.fake_nodes import ANNOTATION
from tests.cluster.installation import Installation
from tests.cluster.pods import create, fake_manifest
from tests.cluster.processes import wait_for
from tests.cluster.shipped import Shipped

NODES, GPUS = 10, 8
LIMIT_S = 120.0
"""A round in which not every gang has been placed by then counts as a deadlock."""


@pytest.fixture(scope="module", autouse=True)
def ten_nodes(bed: Bed) -> Iterator[None]:
    bed.add_fake_nodes(NODES, gpus=GPUS)
    yield
    bed.remove_fake_nodes()


@dataclass
class History:
    """Every change of a pod of ours, from a watch of the API server that misses nothing."""

    bed: Bed
    namespace: str
    sizes: dict[str, int] = field(default_factory=dict)
    moments: list[dict[str, int]] = field(default_factory=list)

    def read(self, version: str) -> None:
        """Replay the changes since ``version``: after each one, how many pods hold a node."""
        holding: dict[str, set[str]] = {}
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        params = {"watch": "true", "resourceVersion": version, "timeoutSeconds": 2}
        for line in self.bed.api.raw("GET", path, params=params).text.splitlines():
            event = json.loads(line)
            pod = event["object"]
            gang = pod["metadata"].get("labels", {}).get(names.JOB)
            if gang is None:
                continue  # a probe's
            there = event["type"] != "DELETED" and pod["spec"].get("nodeName")
            pods = holding.setdefault(gang, set())
            (pods.add if there else pods.discard)(pod["metadata"]["name"])
            self.moments.append({name: len(held) for name, held in holding.items() if held})

    def worst(self) -> int:
        """The most gangs that held some of their nodes, but not all, at one moment.

        Only those that grow: a gang that leaves gives its nodes back one by one.
        """
        most, grown = 0, set[str]()
        for moment in self.moments:
            grown |= {name for name, held in moment.items() if held == self.sizes[name]}
            half = [name for name in moment if name not in grown]
            most = max(most, len(half))
        return most


Gang = tuple[KubernetesEngine, GangPlan]


def place_and_leave(engine: KubernetesEngine, plan: GangPlan, deadline: float) -> bool:
    """Ask until the gang has its place, then give it back; False where that takes too long."""
    while not isinstance(engine.reserve(plan), Granted):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    ended(engine, plan)
    return True


def together(gangs: Sequence[Gang]) -> list[bool]:
    """All gangs at once, each with a driver of its own."""
    done: list[bool] = []
    deadline = time.monotonic() + LIMIT_S
    threads = [
        threading.Thread(target=lambda g=gang: done.append(place_and_leave(*g, deadline)))
        for gang in gangs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


@pytest.fixture
def gang(installation: Installation) -> Callable[..., Gang]:
    """``gang(name, replicas, driver=1)``: eight GPUs a replica, on fake nodes.

    Drivers are told apart by their number: each has an engine of its own, as another process has.
    """
    tolerations = (Toleration(key=ANNOTATION, value=None, effect="NoSchedule"),)
    engines: dict[int, KubernetesEngine] = {}

    def make(name: str, replicas: int, how: str = "turnstile", *, driver: int = 0,
             **settings: Any) -> Gang:  # fmt: skip
        if driver not in engines:
            engines[driver] = installation.engine(tolerations=tolerations, **settings)
        engine = engines[driver]
        plan = replace(installation.plan(engine, name, replicas=replicas), gang=how)
        whole = plan.replicas[0].wants.model_copy(update={"gpu": GPUS})
        plan = replace(plan, replicas=tuple(replace(r, wants=whole) for r in plan.replicas))
        return engine, plan

    return make


def version_now(bed: Bed, namespace: str) -> str:
    listed: Any = bed.api("GET", f"/api/v1/namespaces/{namespace}/pods")
    return str(listed["metadata"]["resourceVersion"])


def require_whole(bed: Bed, namespace: str, gangs: Sequence[Gang], version: str) -> None:
    sizes = {plan.job_id: len(plan.replicas) for _, plan in gangs}
    history = History(bed, namespace, sizes)
    history.read(version)
    assert history.moments
    assert history.worst() <= 1


def test_two_gangs_that_do_not_fit_together(
    bed: Bed, namespace: str, gang: Callable[..., Gang], rounds: Callable[..., int]
) -> None:
    for number in range(rounds(3, soak=100)):
        version = version_now(bed, namespace)
        gangs = [gang(f"a{number}", 6), gang(f"b{number}", 6, driver=1)]
        assert together(gangs) == [True, True]
        require_whole(bed, namespace, gangs, version)


def test_five_gangs_of_any_size(
    bed: Bed, namespace: str, gang: Callable[..., Gang], rounds: Callable[..., int]
) -> None:
    chance = random.Random(20261130)
    for number in range(rounds(2, soak=50)):
        version = version_now(bed, namespace)
        sizes = [chance.randrange(1, NODES + 1) for _ in range(5)]
        gangs = [gang(f"g{number}x{n}", size, driver=n) for n, size in enumerate(sizes)]
        assert together(gangs) == [True] * 5, sizes
        require_whole(bed, namespace, gangs, version)


def test_a_driver_that_is_killed_while_it_holds_the_lease(
    bed: Bed, namespace: str, gang: Callable[..., Gang], blind: Credentials
) -> None:
    """What it has left half-placed is cleared away by the next gang, and can be placed later."""
    first, left = gang("first", 6), gang("left", 6, driver=1, credentials=blind)
    version = version_now(bed, namespace)
    wait_for(lambda: isinstance(first[0].reserve(first[1]), Granted), "the first is placed")
    killed = multiprocessing.get_context("fork").Process(
        target=place_and_leave, args=(*left, time.monotonic() + LIMIT_S)
    )
    killed.start()
    wait_for(lambda: len(held(bed, namespace, left[1])) == NODES - 6, "it is half-placed")
    killed.kill()
    killed.join()
    second = gang("second", NODES - 6, driver=2)
    wait_for(lambda: isinstance(second[0].reserve(second[1]), Granted), "the second is placed")
    assert held(bed, namespace, left[1]) == []
    require_whole(bed, namespace, [first, left, second], version)
    for engine, plan in (first, second):
        ended(engine, plan)
    assert place_and_leave(*gang("left", 6, driver=2), time.monotonic() + LIMIT_S)


def held(bed: Bed, namespace: str, plan: GangPlan) -> list[str]:
    """The nodes that a gang's pods have."""
    label = {"labelSelector": f"{names.JOB}={plan.job_id}"}
    pods = bed.api("GET", f"/api/v1/namespaces/{namespace}/pods", params=label)["items"]
    return [pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")]


@pytest.fixture
def blind(bed: Bed, namespace: str, tmp_path: Path) -> Credentials:
    """A driver that may not read nodes: it has to try whether there is room."""
    shipped = Shipped(bed, namespace, tmp_path / "overlay")
    shipped.apply()
    bed.api("DELETE", f"/api/v1/namespaces/{namespace}/resourcequotas/training")
    return shipped.credentials("ffdl-driver")


@pytest.fixture(scope="module")
def gate(bed: Bed, ten_nodes: None) -> Iterator[None]:
    """Kubernetes' own gang scheduling, which is off by default."""
    bed.set_gang_gate(on=True)
    yield
    bed.set_gang_gate(on=False)


def test_a_scheduler_that_does_not_know_groups_is_not_trusted(gang: Callable[..., Gang]) -> None:
    engine, plan = gang("asks", 2, "podgroup")
    with pytest.raises(SpecError, match=r"spec\.reservation\.gang: found podgroup, allowed: turns"):
        engine.reserve(plan)
    engine, plan = gang("auto", 2, "auto")
    assert place_and_leave(engine, plan, time.monotonic() + LIMIT_S)


def test_kubernetes_own_groups_are_used_where_they_work(
    bed: Bed, namespace: str, gang: Callable[..., Gang], gate: None
) -> None:
    version = version_now(bed, namespace)
    gangs = [gang("first", 6, "auto"), gang("second", 6, "podgroup", driver=1)]
    assert together(gangs) == [True, True]
    require_whole(bed, namespace, gangs, version)
    groups = bed.api("GET", f"/apis/scheduling.k8s.io/v1beta1/namespaces/{namespace}/podgroups")
    assert all("deletionTimestamp" in group["metadata"] for group in groups["items"])


def bare(bed: Bed, namespace: str, name: str, replicas: int) -> None:
    """A gang's pods as anybody would make them, one by one."""
    for number in range(replicas):
        pod = fake_manifest(f"{name}-{number}")
        pod["metadata"]["labels"] = {"gang": name}
        pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": str(GPUS)}}
        create(bed, namespace, pod)


@pytest.mark.bench
@pytest.mark.parametrize("how", ["bare", "turnstile", "podgroup"])
def test_how_often_two_gangs_deadlock(
    bed: Bed, namespace: str, gang: Callable[..., Gang], request: pytest.FixtureRequest, how: str,
    rounds: Callable[..., int],
) -> None:  # fmt: skip
    """Two gangs of six on ten nodes. A round of bare pods that stands still for 10 s is stuck."""
    if how == "podgroup":
        request.getfixturevalue("gate")
    stuck, began, count = 0, time.monotonic(), rounds(10, soak=100)
    for number in range(count):
        if how == "bare":
            stuck += is_stuck(bed, namespace, number)
        else:
            pair = [gang(f"{how}{number}x{n}", 6, how, driver=n) for n in range(2)]
            assert all(together(pair))
    took = (time.monotonic() - began) / count
    print(f"{how}: {stuck} of {count} rounds stuck, {took:.1f} s a round")


def is_stuck(bed: Bed, namespace: str, number: int) -> bool:
    """Whether neither of two gangs of bare pods gets all of its nodes; cleans up."""
    names_ = [f"a{number}", f"b{number}"]
    threads = [threading.Thread(target=bare, args=(bed, namespace, name, 6)) for name in names_]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    path, deadline = f"/api/v1/namespaces/{namespace}/pods", time.monotonic() + 10.0
    while time.monotonic() < deadline:
        pods = bed.api("GET", path)["items"]
        held = [sum(p["metadata"]["labels"]["gang"] == name and bool(p["spec"].get("nodeName"))
                    for p in pods) for name in names_]  # fmt: skip
        if 6 in held:
            break
        time.sleep(0.2)
    bed.api("DELETE", path, params={"gracePeriodSeconds": 0})
    wait_for(lambda: not bed.api("GET", path)["items"], "the pods go")
    return 6 not in held
