"""With the shipped Role a job runs, without any one of its verbs an error names that verb."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ffdl_airflow.agent import detached
from ffdl_airflow.core.errors import InfrastructureError
from ffdl_airflow.core.observation import Presence
from ffdl_airflow.engines.base import EndRequest, Granted
from ffdl_airflow.engines.kubernetes import names, render, rights
from ffdl_airflow.engines.kubernetes.client import ApiError
from ffdl_airflow.engines.kubernetes.engine import KubernetesEngine
from ffdl_airflow.testing.contracts import engine as contract
from tests.cluster.bed import Bed
from tests.cluster.installation import Installation, end_all
from tests.cluster.shipped import Shipped


@pytest.fixture
def shipped(bed: Bed, installation: Installation, tmp_path: Path) -> Shipped:
    made = Shipped(bed, installation.namespace, tmp_path / "overlay")
    made.apply()
    return made


@pytest.fixture
def engine(installation: Installation, shipped: Shipped) -> Iterator[KubernetesEngine]:
    made = driver(installation, shipped)
    yield made
    end_all(installation.engine())


def driver(installation: Installation, shipped: Shipped, **more: Any) -> KubernetesEngine:
    """The driver's account, and pods that have the account without rights."""
    credentials = shipped.credentials("ffdl-driver")
    return installation.engine(credentials=credentials, service_account="ffdl-trainer", **more)


def test_a_job_runs_with_exactly_the_shipped_role(
    installation: Installation, shipped: Shipped, engine: KubernetesEngine
) -> None:
    """In a namespace whose API server lets restricted pods in only, under a quota."""
    plan = installation.plan(engine, "role", gpu=0)
    contract.held(engine, plan)
    contract.running(engine, plan)
    pods = f"/api/v1/namespaces/{shipped.namespace}/pods"
    (pod,) = shipped.bed.api("GET", pods)["items"]
    assert pod["spec"]["serviceAccountName"] == "ffdl-trainer"
    contract.ended(engine, plan)
    assert engine.observe(plan.placement_id, 0).presence is not Presence.ALIVE
    contract.until(lambda: shipped.bed.api("GET", pods)["items"] == [], "no pod is left")


def test_without_the_proxy_commands_in_the_pod_do(
    installation: Installation, shipped: Shipped, engine: KubernetesEngine
) -> None:
    """A gang is reserved, started and ended by who may exec, and may not use the pod proxy."""
    shipped.apply("exec")
    rules = [rule for rule in shipped.rules() if rule["resources"] != ["pods/proxy"]]
    shipped.set_rules(rules)
    plan = installation.plan(engine, "exec", gpu=0)
    contract.held(engine, plan)
    contract.running(engine, plan)
    path = f"/api/v1/namespaces/{shipped.namespace}/pods/any:29400/proxy/"
    with pytest.raises(ApiError) as refused:
        engine.cluster.client.get(path)
    assert refused.value.forbidden
    contract.ended(engine, plan)


def test_without_a_verb_the_error_names_it(
    installation: Installation, shipped: Shipped, engine: KubernetesEngine
) -> None:
    """One job's life; each verb is missing just when it is needed, then it goes on."""
    plan = installation.plan(engine, "verbs", gpu=0)
    rules, seen = shipped.rules(), set()

    def missing(resource: str, verb: str, act: Callable[[], Any]) -> None:
        shipped.allow(rules, resource, verb, may=False)
        told = contract.until(lambda: refusal(act), f"an error without {verb} {resource}")
        assert re.search(rf'User "\S+:ffdl-driver" cannot {verb} resource "{resource}"', told)
        assert "Role of docker/kubernetes/" in told
        shipped.allow(rules, resource, verb, may=True)
        seen.add((resource, verb))

    def reserve() -> object:
        return engine.reserve(plan)

    def anew() -> KubernetesEngine:
        return driver(installation, shipped)

    for kind in ("configmaps", "pods"):
        for verb in ("list", "watch"):
            fresh = anew()
            missing(kind, verb, lambda e=fresh: e.observe(plan.placement_id, 0))
    missing("configmaps", "create", reserve)
    missing("configmaps", "get", lambda: engine.cluster.refresh(names.gang_name(plan.placement_id)))
    for verb in ("get", "create", "update"):
        missing("leases", verb, reserve)
    missing("configmaps", "patch", reserve)
    for kind in ("services", "secrets", "pods"):
        missing(kind, "create", reserve)
    missing("services", "patch", reserve)
    contract.granted(engine, plan)
    service = render.service(plan, engine.settings)
    missing("services", "get", lambda: engine.cluster.make("services", service))
    contract.held(engine, plan)
    fresh = anew()
    missing("pods/proxy", "get", lambda: fresh.observe(plan.placement_id, 0))
    missing("pods/proxy", "create", lambda: engine.connect(plan.placement_id).renew(60.0))
    for kind in ("services", "pods", "secrets", "configmaps"):
        missing(kind, "delete", lambda: engine.end(plan.placement_id, EndRequest(why="seen")))
    contract.ended(engine, plan)
    needed = [rule for rule in rights.ROLE if rule.needed]
    assert seen == {(rule.resource, verb) for rule in needed for verb in rule.verbs}


def test_movers_need_their_verbs(
    installation: Installation, shipped: Shipped, tmp_path: Path
) -> None:
    """An image that is not there is enough: its Job is made, looked at and taken back."""
    engine = driver(installation, shipped, mover_image="registry.ffdl.test/absent:1")
    rules, folder = shipped.rules(), installation.shared / "work"
    runner = engine.mover([str(folder)])
    assert runner is not None
    assert engine.mover([str(folder), str(tmp_path)]) is None, "no pod sees that"
    work = detached.Work(str(folder), runner)
    for verb, act in (("get", work.is_running), ("create", lambda: work.ask("a", "this", {}))):
        folder.mkdir(exist_ok=True)
        shipped.allow(rules, "jobs", verb, may=False)
        assert f'cannot {verb} resource "jobs"' in contract.until(lambda a=act: refusal(a), verb)
        shipped.allow(rules, "jobs", verb, may=True)
        assert contract.until(lambda a=act: refusal(a) is None, f"with {verb}")
    shipped.allow(rules, "jobs", "delete", may=False)
    told = contract.until(lambda: refusal(lambda: runner.abandon(work)), "without delete")
    assert 'cannot delete resource "jobs"' in told
    shipped.allow(rules, "jobs", "delete", may=True)
    work.drop("a")
    contract.until(lambda: not work.is_running(), "its Job is gone")


def refusal(act: Callable[[], Any]) -> str | None:
    """What a person is told, None where nothing was refused."""
    try:
        act()
    except InfrastructureError as error:
        return error.message
    return None


def test_pod_groups_need_their_verbs(
    bed: Bed, installation: Installation, shipped: Shipped
) -> None:
    """With them Kubernetes places the gang itself; who may not make groups takes the turnstile."""
    path = f"/apis/{render.PODGROUPS}/namespaces/{shipped.namespace}/podgroups"
    rules = shipped.rules()

    def reserved(name: str) -> tuple[str, Callable[[], object]]:
        engine = driver(installation, shipped)
        plan = installation.plan(engine, name, gpu=0)
        return names.gang_name(plan.placement_id), lambda: engine.reserve(plan)

    def placed(name: str) -> bool:
        group, reserve = reserved(name)
        answers: list[object] = []

        def granted() -> bool:
            answers[:] = [reserve()]
            return isinstance(answers[0], Granted)

        contract.until(granted, answers)
        return group in [one["metadata"]["name"] for one in bed.api("GET", path)["items"]]

    bed.set_gang_gate(on=True)
    try:
        assert placed("grouped")
        for verb in ("get", "delete"):
            shipped.allow(rules, "podgroups", verb, may=False)
            _, reserve = reserved(f"no-{verb}")
            told = contract.until(lambda act=reserve: refusal(act), f"an error without {verb}")
            assert f'cannot {verb} resource "podgroups"' in told
        shipped.allow(rules, "podgroups", "create", may=False)
        assert not placed("no-create")
        end_all(installation.engine())
    finally:
        bed.set_gang_gate(on=False)


def test_without_what_is_only_known_a_job_is_placed_as_well(
    installation: Installation, shipped: Shipped, engine: KubernetesEngine
) -> None:
    optional = {rule.resource for rule in rights.ROLE if not rule.needed}
    rules = shipped.rules()
    left = [rule for rule in rules if rule["resources"][0] not in optional]
    assert len(left) == len(rules) - len(optional)
    shipped.set_rules(left)
    plan = installation.plan(engine, "less", gpu=0)
    contract.granted(engine, plan)
    examiner = driver(installation, shipped, mover_image="registry.ffdl.test/any:1")
    lines = {line.found for line in examiner.examine({}, image=None) if line.check == "rights"}
    for rule in rights.ROLE:
        for verb in () if rule.needed else rule.verbs:
            assert [text for text in lines if f"may not {verb} {rule.resource}" in text]
    contract.ended(engine, plan)


def test_a_pods_account_may_do_nothing(bed: Bed, shipped: Shipped) -> None:
    """With its token, if somebody had it: none of these calls is answered with anything but no."""
    home = f"/api/v1/namespaces/{shipped.namespace}"
    body = {"metadata": {"name": "stolen"}}
    kinds = ("pods", "secrets", "configmaps", "services", "events")
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{shipped.namespace}/leases"
    calls = [("GET", "/api/v1/secrets"), ("GET", f"{home}/pods/any/log"),
             ("POST", f"{home}/pods/any/exec?command=id"),
             ("GET", f"{home}/pods/any:29400/proxy/"),
             ("POST", f"{home}/serviceaccounts/ffdl-driver/token")]  # fmt: skip
    for path in (*(f"{home}/{kind}" for kind in kinds), leases, "/api/v1/nodes"):
        calls += [(method, path) for method in ("GET", "POST", "DELETE")]
        calls += [(method, f"{path}/any") for method in ("GET", "PATCH", "DELETE")]
    headers = {"Authorization": f"Bearer {shipped.token('ffdl-trainer')}",
               "Content-Type": "application/json"}  # fmt: skip
    verify = ssl.create_default_context(cafile=str(bed.ca_file))
    with httpx.Client(base_url=bed.server_url, verify=verify, headers=headers) as client:
        assert client.get("/version").status_code == httpx.codes.OK, "the token is good"
        for method, path in calls:
            kind = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
            answer = client.request(
                method, path, json=None if method == "GET" else body, headers=kind
            )
            assert answer.status_code == httpx.codes.FORBIDDEN, f"{method} {path}: {answer.text}"
