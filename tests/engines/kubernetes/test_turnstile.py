"""Gangs of two namespaces take turns by one Lease, and what was left half-placed is taken back."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from ffdl_airflow.core.errors import InfrastructureError, SpecError
from ffdl_airflow.core.plan import GangPlan
from ffdl_airflow.engines.base import EndRequest, Evidence, Granted, Over, Waiting
from ffdl_airflow.engines.kubernetes import names, render, turnstile
from ffdl_airflow.engines.kubernetes.cluster import Cluster
from ffdl_airflow.engines.kubernetes.engine import KubernetesEngine
from ffdl_airflow.engines.kubernetes.settings import from_values
from ffdl_airflow.engines.kubernetes.turnstile import Busy, Entered, Turnstile
from tests.engines.kubernetes import fake_api, objects
from tests.engines.kubernetes.fake_api import FakeApi
from tests.engines.kubernetes.rendered import plan_of

PLAN = replace(plan_of("pytorch"), gang="turnstile")
GANG = names.gang_name(PLAN.placement_id)
OTHER = replace(PLAN, job_id="tail-0123456789")
TAIL = names.gang_name(OTHER.placement_id)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api.serving() as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_TRY_S", (0.0, 0.0)), ("_LOOK_S", 0.2), ("_BACKOFF_S", (0.0, 0.0))):
        monkeypatch.setattr(f"ffdl_airflow.engines.kubernetes.placing.{name}", value)


@pytest.fixture
def expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnstile, "LEASE_S", -1)
    monkeypatch.setattr(turnstile, "RENEW_S", 0.0)


def line(api: FakeApi, namespace: str, **fields: Any) -> Turnstile:
    return Turnstile(Cluster(api.settings(namespace=namespace, **fields)))


def until(ask: Callable[[], Any], enough: type) -> Any:
    deadline = time.monotonic() + 10
    while True:
        found = ask()
        if isinstance(found, enough) or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def test_two_namespaces_share_one_lease(api: FakeApi) -> None:
    ml = line(api, "ml", turnstile_namespace="infra")
    nlp = line(api, "nlp", turnstile_namespace="infra")
    assert ml.enter("ffdl-a-1") == Entered()
    assert nlp.enter("ffdl-b-1") == Busy("ffdl-a-1", "ml")
    assert nlp.enter("ffdl-a-1") == Busy("ffdl-a-1", "ml"), "the name alone is not the holder"
    nlp.leave("ffdl-a-1")
    assert nlp.enter("ffdl-b-1") == Busy("ffdl-a-1", "ml"), "nor does it give the Lease back"
    ml.leave("ffdl-a-1")
    assert nlp.enter("ffdl-b-1") == Entered()
    assert set(api.named("leases", namespace="infra")) == {turnstile.NAME}
    assert not api.named("leases", namespace="ml")


def test_without_the_setting_each_namespace_has_its_own(api: FakeApi) -> None:
    assert line(api, "ml").enter("ffdl-a-1") == Entered()
    assert line(api, "nlp").enter("ffdl-b-1") == Entered()
    assert line(api, "infra", turnstile_namespace="ml").enter("ffdl-c-1") == Busy("ffdl-a-1", "ml")


def test_an_error_names_the_leases_namespace(api: FakeApi) -> None:
    api.forbidden.add(("get", "leases"))
    with pytest.raises(InfrastructureError, match="lease in namespace infra"):
        line(api, "ml", turnstile_namespace="infra").enter("ffdl-a-1")


def test_who_waits_is_told_of_a_gang_that_it_cannot_see(api: FakeApi) -> None:
    line(api, "nlp", turnstile_namespace="ml").enter("ffdl-bert-1")
    answer = KubernetesEngine(api.settings()).reserve(PLAN)
    assert isinstance(answer, Waiting)
    assert answer.reason == "ffdl-bert-1 in namespace nlp is being placed"
    assert not api.named("pods")


def test_what_is_half_placed_is_cleared_whoever_held_the_lease_last(
    api: FakeApi, expired: None
) -> None:
    """Its driver died; a gang of another namespace has had the Lease since."""
    api.binds = lambda pod: "tail" not in pod["metadata"]["name"]
    assert isinstance(KubernetesEngine(api.settings()).reserve(OTHER), Waiting)
    assert len(api.named("pods")) == len(OTHER.replicas)
    foreign = line(api, "nlp", turnstile_namespace="ml")
    foreign.enter("ffdl-bert-1")
    foreign.leave("ffdl-bert-1")
    engine = KubernetesEngine(api.settings())
    assert until(lambda: engine.reserve(PLAN), Granted) == Granted()
    assert all(name.startswith(GANG) for name in api.named("pods"))
    left = api.named("configmaps")[TAIL]
    assert left["metadata"]["annotations"][names.STAGE] == "waiting"


def test_a_gang_that_was_placed_just_now_is_left_alone(api: FakeApi, expired: None) -> None:
    """Also where the watch has not told yet."""
    first, second = KubernetesEngine(api.settings()), KubernetesEngine(api.settings())
    api.binds = lambda pod: False
    first.reserve(OTHER)
    assert TAIL in second.cluster.anchors()
    old = dict(second.cluster.anchors()[TAIL])
    path = first.cluster.path("configmaps", TAIL)
    first.cluster.client.patch(path, {"metadata": {"annotations": {names.STAGE: "placed"}}})
    old["metadata"] = {**old["metadata"], "resourceVersion": "999999"}
    second.cluster._anchors.put(old)
    api.binds = lambda pod: True
    until(lambda: second.reserve(PLAN), Granted)
    assert sum(name.startswith(TAIL) for name in api.named("pods")) == len(OTHER.replicas)


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_all_drivers_of_a_process_share_one_engine(api: FakeApi, hurried: None) -> None:
    """Each gets the pods of its own gang, and what one forgets is not in another's way."""
    placer = KubernetesEngine(api.settings())._placer
    plans = [replace(PLAN, job_id=f"gang{n}-0123456789") for n in range(4)]

    def ask(plan: GangPlan) -> None:
        gang = names.gang_name(plan.placement_id)
        for number in range(300):
            assert {pod["metadata"]["name"].startswith(gang) for pod in placer._pods(plan)} == {
                True
            }
            anchor = {"metadata": {"uid": f"{gang}{number}", "annotations": {}}}
            placer._line.age_s(anchor, names.STAGE)
            placer._line._forget_all_but({gang})

    with ThreadPoolExecutor(len(plans)) as pool:
        for asked in [pool.submit(ask, plan) for plan in plans]:
            asked.result()


def test_until_all_are_placed_only_the_coordinator_has_a_name(api: FakeApi) -> None:
    """A name that is denied once is denied for half a minute, and agents look for that one."""
    engine = KubernetesEngine(api.settings())
    names_of_all = render.service(PLAN, engine.settings)["spec"]["selector"]
    api.binds = lambda pod: "worker-0" in pod["metadata"]["name"]
    assert isinstance(engine.reserve(PLAN), Waiting)
    only = {names.REPLICA: PLAN.replicas[0].name}
    assert api.named("services")[GANG]["spec"]["selector"] == {**names_of_all, **only}
    with api.changed:
        for path, pod in list(api.objects.items()):
            if "/pods/" in path:
                pod["spec"]["nodeName"] = "gpu-1"
                api.keep(path, pod, "MODIFIED")
    assert until(lambda: engine.reserve(PLAN), Granted) == Granted()
    assert api.named("services")[GANG]["spec"]["selector"] == names_of_all


def test_who_passes_is_kept_to_the_nodes_that_are_left_by_their_host_names(api: FakeApi) -> None:
    """A node's label need not be its name, and what a template demands still holds."""
    api.forbidden.clear()
    nodes = [
        objects.node("gpu-1", gpu=8),
        objects.node("gpu-2", gpu=8),
        objects.node("cpu-1", gpu=0, labels={"kubernetes.io/hostname": "ip-10-0-0-7"}),
    ]
    busy = objects.pod("busy", objects.container(gpu=8), on="gpu-1")
    with api.changed:
        for kind, found in (*(("nodes", node) for node in nodes), ("pods", busy)):
            api.keep(f"/api/v1/{kind}/{found['metadata']['name']}", found, "ADDED")
    engine = KubernetesEngine(api.settings())
    ahead = replace(plan_of("host-network"), job_id="ahead-0123456789", gang="turnstile")
    assert isinstance(engine.reserve(ahead), Waiting)
    apart = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    plan = replace(plan_of("placed-apart"), gang="turnstile")
    replicas = [replace(replica, templates=({"spec": {"affinity": apart}},))
                for replica in plan.replicas]  # fmt: skip
    plan = replace(plan, replicas=tuple(replicas))
    assert until(lambda: engine.reserve(plan), Granted) == Granted()
    for pod in api.named("pods").values():
        affinity = pod["spec"]["affinity"]
        (required,) = affinity["nodeAffinity"].values()
        (term,) = required["nodeSelectorTerms"]
        assert [one["values"] for one in term["matchExpressions"]] == [["ip-10-0-0-7"]]
        assert affinity.items() >= apart.items()


def test_who_is_behind_looks_seldom_and_at_once_when_it_is_next(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before its next look was due."""
    api.forbidden.clear()
    with api.changed:
        api.keep("/api/v1/nodes/gpu-1", objects.node("gpu-1", gpu=8), "ADDED")
        busy = objects.pod("busy", objects.container(gpu=8), on="gpu-1")
        api.keep("/api/v1/pods/busy", busy, "ADDED")
    monkeypatch.setattr("ffdl_airflow.engines.kubernetes.placing._TRY_S", (900.0, 900.0))
    engine = KubernetesEngine(api.settings())
    first = engine.reserve(PLAN)
    assert isinstance(first, Waiting)
    assert first.again_s == 900
    behind = engine.reserve(OTHER)
    assert isinstance(behind, Waiting)
    assert behind.detail == {"ahead": [PLAN.placement_id], "count": 1}
    assert behind.again_s < 1
    assert engine.reserve(OTHER) is behind
    until(lambda: engine.end(PLAN.placement_id, EndRequest(why="test")), Evidence)
    looked = engine.reserve(OTHER)
    assert isinstance(looked, Waiting)
    assert looked.detail["holders"] == {"ml/busy": 8}


def test_an_ended_placement_makes_nothing(api: FakeApi) -> None:
    engine = KubernetesEngine(api.settings(turnstile_namespace="infra"))
    assert until(lambda: engine.reserve(PLAN), Granted) == Granted()
    request = EndRequest(why="test", mode="now", grace_s=0.0)
    assert isinstance(until(lambda: engine.end(PLAN.placement_id, request), Evidence), Evidence)
    assert engine.reserve(PLAN) == Over()


def test_the_doctor_asks_for_rights_where_the_lease_lies(api: FakeApi) -> None:
    api.forbidden.add(("update", "leases"))
    engine = KubernetesEngine(api.settings(turnstile_namespace="infra"))
    found = [finding.found for finding in engine.examine({}, image=None)]
    (told,) = [text for text in found if "leases" in text]
    assert told.startswith("may not update leases.coordination.k8s.io in infra: ")
    asked = {(review["resource"], review.get("namespace")) for review in api.reviews}
    assert {("leases", "infra"), ("configmaps", "ml"), ("nodes", None)} <= asked


def test_the_setting_is_a_namespace() -> None:
    values = {"namespace": "ml", "agent_image": "a"}
    assert from_values(values, installation_key=b"k").lease_namespace == "ml"
    found = from_values({**values, "turnstile_namespace": "infra"}, installation_key=b"k")
    assert found.lease_namespace == "infra"
    with pytest.raises(SpecError, match=r"turnstile_namespace: found 'A b', allowed: a DNS label"):
        from_values({**values, "turnstile_namespace": "A b"}, installation_key=b"k")


@pytest.mark.parametrize("demand", ["no JSON", '[{"names": ["w"], "each": {}, "where": ["x"]}]'])
def test_nobody_waits_for_a_gang_whose_anchor_cannot_be_understood(
    api: FakeApi, demand: str
) -> None:
    """Whoever has written it."""
    api.forbidden.clear()
    with api.changed:
        api.keep("/api/v1/nodes/gpu-1", objects.node("gpu-1", gpu=8), "ADDED")
    api.binds = lambda pod: False
    first = KubernetesEngine(api.settings())
    big = tuple(replace(one, wants=one.wants.model_copy(update={"gpu": 9}))
                for one in OTHER.replicas)  # fmt: skip
    assert isinstance(first.reserve(replace(OTHER, replicas=big)), Waiting)
    path = first.cluster.path("configmaps", TAIL)
    first.cluster.client.patch(path, {"data": {"demand": demand}})
    api.binds = lambda pod: True
    engine = KubernetesEngine(api.settings())
    assert until(lambda: engine.reserve(PLAN), Granted) == Granted()
