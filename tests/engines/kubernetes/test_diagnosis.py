"""What the answers of a cluster mean: one line each, with what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ffdl_airflow.core.findings import Finding, Level
from ffdl_airflow.engines.kubernetes import rights
from ffdl_airflow.engines.kubernetes.diagnosis import GangApi, Refused, Seen, Trial, findings
from ffdl_airflow.engines.kubernetes.settings import KubernetesSettings, from_values
from tests.engines.kubernetes.objects import node, quota, taint

FOLDERS = {"checkpoint_root": "/mnt/shared/checkpoints", "cache_dir": "/mnt/data/cache"}
BOUND = {"spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}}
VALUES = {"namespace": "ml", "agent_image": "reg.example/agent:1",
          "volumes": "shared:/mnt/shared,data:/mnt/data:ro"}  # fmt: skip
GOOD = Seen(
    host="https://10.0.0.1:6443", version="v1.37.2", gang_apis=(), may_not=(),
    nodes=[node("a"), node("b", gpu=0)], quotas=[],
    priorities={"offline-batch": 100_000, "online-high": 1_000_000},
    admission={"offline-batch": None, "online-high": None},
    claims={"shared": BOUND, "data": BOUND},
)  # fmt: skip


def settings(**values: str) -> KubernetesSettings:
    return from_values({**VALUES, **values}, installation_key=b"k")


def told(seen: Seen = GOOD, *, tried: Trial | None = None, folders: Any = None,
         **values: str) -> list[Finding]:  # fmt: skip
    return findings(seen, settings(**values), folders=folders or FOLDERS, tried=tried)


def of(check: str, found: list[Finding]) -> Finding:
    (one,) = [line for line in found if line.check == check]
    return one


def without(resource: str, verb: str, *, namespaced: bool = True) -> rights.Right:
    (found,) = [
        right for right in rights.rights()
        if (right.rule.resource, right.verb, right.namespaced) == (resource, verb, namespaced)
    ]  # fmt: skip
    return found


NO_EXEC = tuple(right for right in rights.rights() if right.rule in rights.EXEC_ROLE)


def test_a_right_on_leases_is_missed_where_the_turnstile_is() -> None:
    lacking = replace(GOOD, may_not=(without("leases", "update"), without("pods", "list")))
    found = [line.found for line in told(lacking, turnstile_namespace="infra")]
    assert any(text.startswith("may not update leases.coordination.k8s.io in infra:")
               for text in found)  # fmt: skip
    assert any(text.startswith("may not list pods in ml:") for text in found)
    good = of("rights", told(turnstile_namespace="infra"))
    assert good.found == "all that a driver needs in ml and infra"


def test_a_good_cluster() -> None:
    found = told()
    assert {line.level for line in found} == {Level.OK}
    assert of("GPUs", found).found == "8 nvidia.com/gpu"
    assert of("priority offline-batch", found).found == "pods are let in, value 100000"
    assert "were not tried" in of("trial", found).found


def test_every_line_that_is_not_ok_says_what_to_do() -> None:
    bad = replace(
        GOOD, version="v1.29.0", may_not=tuple(rights.rights()), nodes=None, priorities=None,
        admission=dict.fromkeys(GOOD.admission, Refused(text="no", no_right=True)),
        claims={"shared": Refused(text="no", no_right=True), "data": {**BOUND, "status": {}}},
        quotas=[quota("q", {"pods": "4"}, {"pods": "4"})],
    )  # fmt: skip
    found = told(bad, tried=Trial(image="i", start="the image cannot be pulled"))
    assert all(line.do for line in found if line.level is not Level.OK)
    named = " ".join(line.found for line in found)
    assert all(str(right) in named for right in rights.rights() if right.rule.needed)


@pytest.mark.parametrize(
    "right", [one for one in rights.rights() if one.rule in rights.ROLE], ids=str
)
def test_a_missing_right_is_named(right: rights.Right) -> None:
    seen = replace(GOOD, may_not=(right, *NO_EXEC))
    found = told(seen, mover_image="reg.example/airflow:1")
    (line,) = [line for line in found if line.check == "rights" and str(right) in line.found]
    needed = right.rule.needed or right.rule.resource == "jobs"
    assert line.level is (Level.PROBLEM if needed else Level.WARNING)


def test_without_the_cluster_role_capacity_is_not_known() -> None:
    missing = tuple(right for right in rights.rights() if not right.namespaced)
    found = told(replace(GOOD, may_not=missing, nodes=None, priorities=None))
    line = of("capacity", found)
    assert line.level is Level.WARNING
    assert "list nodes, list pods, list priorityclasses.scheduling.k8s.io" in line.found
    assert not [one for one in found if one.check == "GPUs"]


def test_a_namespace_that_is_not_there_ends_it() -> None:
    gone = Refused(text='namespaces "ml" not found', not_found=True, no_namespace=True)
    found = told(replace(GOOD, admission={"offline-batch": gone}))
    assert found[-1].check == "namespace"
    assert found[-1].level is Level.PROBLEM


@pytest.mark.parametrize(
    ("seen", "level", "text"),
    [
        ({"priorities": {"online-high": 1}}, Level.PROBLEM, "there is no such PriorityClass"),
        ({"priorities": None}, Level.PROBLEM, "no PriorityClass with name"),
        ({}, Level.PROBLEM, "no PriorityClass with name"),
    ],
)
def test_a_pod_that_is_not_admitted(seen: dict[str, Any], level: Level, text: str) -> None:
    refused = Refused(text='pods "x" is forbidden: no PriorityClass with name offline-batch')
    found = told(replace(GOOD, admission={"offline-batch": refused}, **seen))
    line = of("priority offline-batch", found)
    assert (line.level, text in line.found) == (level, True)


def test_a_full_quota_is_waited_for() -> None:
    refused = Refused(text="exceeded quota: q", over_quota=True)
    full = [quota("q", {"pods": "4", "requests.cpu": "8"}, {"pods": "4", "requests.cpu": "2"})]
    found = told(replace(GOOD, admission={"offline-batch": refused}, quotas=full))
    assert of("priority offline-batch", found).level is Level.WARNING
    line = of("quota q", found)
    assert line.found == "pods 4 of 4, requests.cpu 2 of 8"
    assert line.do == "jobs wait until there is less of: pods"


@pytest.mark.parametrize(
    ("answer", "level", "text"),
    [
        (Refused(text="x", not_found=True), Level.PROBLEM, "there is no such claim"),
        (Refused(text="x", no_right=True), Level.WARNING, "may not be read"),
        ({**BOUND, "status": {"phase": "Pending"}}, Level.WARNING, "Pending, not bound"),
        ({**BOUND, "status": {"phase": "Lost"}}, Level.PROBLEM, "lost"),
        ({**BOUND, "spec": {"accessModes": ["ReadWriteOnce"]}}, Level.WARNING, "ReadWriteOnce"),
        (BOUND, Level.OK, "Bound, ReadWriteMany"),
    ],
)
def test_claims(answer: Any, level: Level, text: str) -> None:
    line = of("volume shared", told(replace(GOOD, claims={"shared": answer, "data": BOUND})))
    assert (line.level, text in line.found) == (level, True)


@pytest.mark.parametrize(
    ("folders", "level"),
    [
        ({"checkpoint_root": "/mnt/shared"}, Level.OK),
        ({"checkpoint_root": "/mnt/shared/a/b"}, Level.OK),
        ({"checkpoint_root": "/mnt/shared-too"}, Level.PROBLEM),
        ({"checkpoint_root": "/var/lib"}, Level.PROBLEM),
        ({"checkpoint_root": "/mnt/data/here"}, Level.PROBLEM),
        ({"cache_dir": "/mnt/data/here"}, Level.OK),
    ],
)
def test_folders_lie_on_volumes(folders: dict[str, str], level: Level) -> None:
    (setting,) = folders
    assert of(setting, told(folders=folders)).level is level


def test_the_deepest_mount_counts() -> None:
    found = told(volumes="shared:/mnt,data:/mnt/data:ro", folders={"checkpoint_root": "/mnt/data"})
    assert of("checkpoint_root", found).level is Level.PROBLEM


def test_gpus_behind_a_taint() -> None:
    kept = node("a", taints=[taint("train", "true")])
    line = of("GPUs", told(replace(GOOD, nodes=[kept])))
    assert (line.level, "all 8" in line.found) == (Level.WARNING, True)
    found = told(replace(GOOD, nodes=[kept, node("b")]), tolerations="train=true:NoSchedule")
    assert of("GPUs", found).found == "16 nvidia.com/gpu"
    none = of("GPUs", told(replace(GOOD, nodes=[node("a", gpu=0)])))
    assert none.level is Level.WARNING


OWN = GangApi(name="Kubernetes", resource="podgroups.scheduling.k8s.io", version="v1beta1")
VOLCANO = GangApi(name="Volcano", resource="podgroups.scheduling.volcano.sh", version="v1beta1")


@pytest.mark.parametrize(
    ("apis", "tried", "text"),
    [
        ([], None, "served: none; gangs are placed by our own turnstile"),
        ([VOLCANO], None, "Volcano (podgroups.scheduling.volcano.sh v1beta1); gangs are placed by"),
        ([OWN, VOLCANO], None, "if the scheduler knows them, which was not tried"),
        ([OWN], Trial(image="i", groups=True), "v1beta1); pod groups place gangs"),
        ([OWN], Trial(image="i", groups=False), "the scheduler knows no groups: gangs are placed"),
    ],
)
def test_gang_apis(apis: list[GangApi], tried: Trial | None, text: str) -> None:
    assert text in of("gang APIs", told(replace(GOOD, gang_apis=apis), tried=tried)).found


@pytest.mark.parametrize(
    ("tried", "last"),
    [
        (Trial(image="i", start="no node"), ("trial", Level.PROBLEM)),
        (Trial(image="i", proxy="403", command="403"), ("pod proxy", Level.PROBLEM)),
        (Trial(image="i", proxy="403"), ("pod proxy", Level.WARNING)),
        (Trial(image="i", names="no address"), ("DNS", Level.PROBLEM)),
        (Trial(image="i", host="w.g", addresses=["10.1.0.7"]), ("DNS", Level.OK)),
    ],
)
def test_a_trial(tried: Trial, last: tuple[str, Level]) -> None:
    lines = [one for one in told(tried=tried) if one.check in ("trial", "pod proxy", "DNS")]
    assert (lines[-1].check, lines[-1].level) == last
    assert all(one.level is Level.OK for one in lines[:-1])


def online(name: str, role: str = "mixed", *, reserved: bool = True, **spec: Any) -> Any:
    found = node(name, labels={"ffdl.airflow/node-role": role}, **spec)
    more = {"cpu": "66", "memory": "520Gi"} if reserved else {}
    found["status"]["capacity"] = {**found["status"]["allocatable"], **more}
    return found


def test_nodes_that_serve_online_keep_something_for_themselves() -> None:
    tainted = online("serves", "online", taints=[taint("ffdl.airflow/online", "true")])
    good = replace(GOOD, nodes=[tainted, online("both")])
    assert of("online nodes", told(good)).found == "2, with reserves for the system"
    pinned = replace(good, kubelets={"both": {"cpuManagerPolicy": "static"}})
    assert of("online nodes", told(pinned)).found.endswith("CPUs are pinned on 1")
    names = "abcde"
    bad = replace(
        GOOD, nodes=[*(online(name, reserved=False) for name in names), online("open", "online")],
        kubelets={name: {"cpuManagerPolicy": "none"} for name in names},
    )  # fmt: skip
    lines = [line for line in told(bad) if line.check == "online nodes"]
    assert [(line.found, line.level) for line in lines] == [
        ("a, b, c and 2 more: all of their cpu and memory may be given to pods", Level.WARNING),
        ("a, b, c and 2 more: CPUs are not pinned (cpuManagerPolicy none)", Level.WARNING),
        ("open: they are for serving only, and have no taint", Level.WARNING),
    ]
    assert not [line for line in told() if line.check == "online nodes"]


def test_movers_need_their_right_only_where_there_is_an_image_for_them() -> None:
    missing = replace(GOOD, may_not=(without("jobs", "create"),))
    assert of("rights", told(missing)).level is Level.OK
    line = of("rights", told(missing, mover_image="reg.example/airflow:1"))
    assert (line.level, "may not create jobs.batch" in line.found) == (Level.PROBLEM, True)


NO_PROXY = (without("pods/proxy", "get"), without("pods/proxy", "create"))
OPEN = Trial(image="i", host="w.g", addresses=["10.1.0.7"])
PROXY_SHUT = Trial(image="i", proxy="dial tcp: i/o timeout")
BOTH_SHUT = replace(PROXY_SHUT, command="403 Forbidden")
"""What a trial says of the two ways to a pod."""


@pytest.mark.parametrize(
    ("may_not", "tried", "level", "text"),
    [
        (NO_EXEC, None, Level.OK, "not allowed, and not used: gangs are asked through the pod p"),
        ((), None, Level.OK, "allowed, and not used: gangs are asked through the pod proxy"),
        (NO_PROXY, None, Level.OK, "allowed, and used: the pod proxy cannot be"),
        ((), OPEN, Level.OK, "allowed, and not used: gangs are asked through the pod proxy"),
        ((), PROXY_SHUT, Level.OK, "allowed, and used: the pod proxy cannot be"),
        (NO_EXEC[1:], PROXY_SHUT, Level.OK, "allowed, and used: the pod proxy cannot be"),
        ((), BOTH_SHUT, Level.WARNING, "allowed, and a command in a pod fails: 403 Forbidden"),
        (NO_EXEC, BOTH_SHUT, Level.OK, "not allowed, and not used: the pod proxy cannot be"),
        ((), replace(OPEN, command="500"), Level.WARNING, "a command in a pod fails: 500"),
        ((), Trial(image="i", start="no node"), Level.OK, "allowed, and not used"),
    ],
)
def test_which_way_to_gangs_is_used(
    may_not: tuple[rights.Right, ...], tried: Trial | None, level: Level, text: str
) -> None:
    line = of("exec", told(replace(GOOD, may_not=may_not), tried=tried))
    assert (line.level, text in line.found) == (level, True), line


def test_without_the_proxys_right_commands_are_enough() -> None:
    """Jobs run, so it is a warning; without both it is a problem for each verb."""
    found = told(replace(GOOD, may_not=NO_PROXY))
    lines = [line for line in found if line.check == "rights"]
    assert {line.level for line in lines} == {Level.OK, Level.WARNING}
    assert any("may not get pods/proxy: commands in pods are used" in line.found for line in lines)
    both = told(replace(GOOD, may_not=NO_PROXY + NO_EXEC))
    assert [line.level for line in both if line.check == "rights"] == [Level.PROBLEM] * 2
