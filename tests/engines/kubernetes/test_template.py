"""What a user may add to the pods of his gang, and what he is told where he may not."""

from __future__ import annotations

from typing import Any

import pytest

from ffdl_airflow.engines.kubernetes.template import merged, problems
from ffdl_airflow.testing import builders

POD = {
    "metadata": {"name": "p", "labels": {"ffdl.airflow/job": "j"}},
    "spec": {
        "tolerations": [{"key": "a"}], "securityContext": {"runAsNonRoot": True, "runAsUser": 1000},
        "volumes": [{"name": "run"}],
        "containers": [{"name": "trainer", "env": [{"name": "HOME"}], "command": ["x"]}],
    },
}  # fmt: skip


def test_what_is_added_stands_beside_ours() -> None:
    job = {
        "metadata": {"annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": {"nodeSelector": {"zone": "b"}, "tolerations": [{"key": "b"}],
                 "securityContext": {"runAsUser": 0},
                 "containers": [{"name": "trainer", "env": [{"name": "A", "value": "1"}]}]},
    }  # fmt: skip
    role = {"spec": {"nodeSelector": {"kind": "cpu"}, "volumes": [{"name": "data"}]}}
    found = merged(POD, [job, role])
    assert found["metadata"]["labels"] == {"ffdl.airflow/job": "j"}
    assert found["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
    spec = found["spec"]
    assert spec["nodeSelector"] == {"zone": "b", "kind": "cpu"}
    assert spec["tolerations"] == [{"key": "a"}, {"key": "b"}]
    assert spec["securityContext"] == {"runAsNonRoot": True, "runAsUser": 0}
    assert [volume["name"] for volume in spec["volumes"]] == ["run", "data"]
    (trainer,) = spec["containers"]
    assert [entry["name"] for entry in trainer["env"]] == ["HOME", "A"]
    assert trainer["command"] == ["x"]


def test_nothing_of_ours_is_changed_in_place() -> None:
    before = repr(POD)
    merged(POD, [{"spec": {"tolerations": [{"key": "b"}], "nodeSelector": {"a": "b"}}}])
    assert repr(POD) == before
    assert merged(POD, [{}, {}]) == POD


@pytest.mark.parametrize(("template", "path", "allowed"), [
    ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy", "backoffLimit"),
    ({"spec": {"terminationGracePeriodSeconds": 5}}, "spec.terminationGracePeriodSeconds",
     "spec.gracePeriod"),
    ({"spec": {"hostNetwork": True}}, "spec.hostNetwork", "spec.network.hostNetwork"),
    ({"spec": {"containers": [{"name": "main"}]}}, "spec.containers[0].name", "trainer"),
    ({"spec": {"containers": [{"name": "trainer"}, {"name": "trainer"}]}},
     "spec.containers[1]", "trainer"),
    ({"spec": {"containers": ["trainer"]}}, "spec.containers[0]", "a mapping"),
    ({"spec": {"containers": [{"name": "trainer", "resources": {}}]}},
     "spec.containers[0].resources", "spec.resources"),
    ({"spec": {"containers": [{"name": "trainer", "image": "x"}]}}, "spec.containers[0].image",
     "spec.training.image"),
    ({"spec": {"tolerations": {}}}, "spec.tolerations", "a list"),
    ({"spec": []}, "spec", "a mapping"),
    ({"kind": "Pod"}, "kind", "metadata, spec"),
    ({"metadata": {"name": "x"}}, "metadata.name", "labels, annotations"),
    ({"metadata": {"labels": {"ffdl.airflow/job": "x"}}}, "metadata.labels", "no name with"),
])  # fmt: skip
def test_what_is_not_the_templates_is_refused(
    template: dict[str, Any], path: str, allowed: str
) -> None:
    (problem,) = problems(builders.job(podTemplate=template))
    assert problem.path == f"spec.podTemplate.{path}"
    assert allowed in problem.allowed
    roles = [{"name": "worker", "podTemplate": template}]
    (problem,) = problems(builders.job(replicas=None, roles=roles))
    assert problem.path == f"spec.roles[0].podTemplate.{path}"


LISTS = ["tolerations", "volumes", "topologySpreadConstraints", "imagePullSecrets",
         "initContainers", "hostAliases", "containers"]  # fmt: skip
OF_CONTAINERS = ["env", "envFrom", "volumeMounts", "volumeDevices", "ports"]
TRAINER, INIT = {"name": "trainer"}, {"name": "pull", "image": "i"}


def found_in(spec: Any) -> list[tuple[str, str, str]]:
    """(path below the spec, found, allowed) of each problem."""
    found = problems(builders.job(podTemplate={"spec": spec}))
    return [
        (problem.path.removeprefix("spec.podTemplate.spec."), problem.found, problem.allowed)
        for problem in found
    ]


@pytest.mark.parametrize(("item", "found"), [("hunter2", "text"), (1, "1"), (None, "None"),
                                             ([], "a list")])  # fmt: skip
@pytest.mark.parametrize("field", LISTS)
def test_a_list_has_mappings(field: str, item: Any, found: str) -> None:
    assert found_in({field: [item]}) == [(f"{field}[0]", found, "a mapping")]


@pytest.mark.parametrize(("kind", "container"), [("containers", TRAINER), ("initContainers", INIT)])
@pytest.mark.parametrize("field", OF_CONTAINERS)
def test_so_have_those_of_a_container(field: str, kind: str, container: dict[str, Any]) -> None:
    path = f"{kind}[0].{field}"
    assert found_in({kind: [{**container, field: ["x"]}]}) == [(f"{path}[0]", "text", "a mapping")]
    assert found_in({kind: [{**container, field: "x"}]}) == [(path, "text", "a list")]
    assert found_in({kind: [{**container, field: []}]}) == []


@pytest.mark.parametrize(("spec", "path", "found"), [
    ({"nodeSelector": {"a": 1}}, "nodeSelector.a", "1"),
    ({"nodeSelector": {1: "a"}}, "nodeSelector", "the key 1"),
    ({"tolerations": [{"key": "a", "value": True}]}, "tolerations[0].value", "True"),
    ({"tolerations": [{1: "a"}]}, "tolerations[0]", "the key 1"),
    ({"affinity": {"nodeAffinity": []}}, "affinity.nodeAffinity", "a list"),
    ({"affinity": {"podAffinity": "x"}}, "affinity.podAffinity", "text"),
    ({"affinity": {"podAntiAffinity": None}}, "affinity.podAntiAffinity", "None"),
    ({"volumes": [{"emptyDir": {}}]}, "volumes[0].name", "nothing"),
    ({"initContainers": [{"name": "a"}]}, "initContainers[0].image", "nothing"),
    ({"initContainers": [{"image": "a"}]}, "initContainers[0].name", "nothing"),
    ({"initContainers": [{**INIT, "image": 1}]}, "initContainers[0].image", "1"),
    ({"initContainers": [{**INIT, "args": [1]}]}, "initContainers[0].args[0]", "1"),
    ({"initContainers": [{**INIT, "resources": {"limits": {"cpu": "x"}}}]},
     "initContainers[0].resources.limits.cpu", "'x'"),
    ({"initContainers": [{**INIT, "resources": {"limits": {"cpu": "1e999999999"}}}]},
     "initContainers[0].resources.limits.cpu", "'1e999999999'"),
    ({"containers": [{"env": []}]}, "containers[0].name", "nothing"),
    ({"dnsConfig": {"options": [{"name": {1, 2}}]}}, "dnsConfig.options[0].name", "{1, 2}"),
])  # fmt: skip
def test_what_the_cluster_or_we_could_not_read_is_refused(
    spec: dict[str, Any], path: str, found: str
) -> None:
    ((at, what, allowed),) = found_in(spec)
    assert (at, what) == (path, found)
    assert allowed


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(("required", "path"), [
    ([], ""), ({"nodeSelectorTerms": {}}, ".nodeSelectorTerms"),
    ({"nodeSelectorTerms": ["x"]}, ".nodeSelectorTerms[0]"),
    ({"nodeSelectorTerms": [{"matchExpressions": "x"}]}, ".nodeSelectorTerms[0].matchExpressions"),
    ({"nodeSelectorTerms": [{"matchFields": [1]}]}, ".nodeSelectorTerms[0].matchFields[0]"),
])  # fmt: skip
def test_terms_are_a_list_of_mappings(required: Any, path: str) -> None:
    (problem,) = found_in({"affinity": {"nodeAffinity": {REQUIRED: required}}})
    assert problem[0] == f"affinity.nodeAffinity.{REQUIRED}{path}"


@pytest.mark.parametrize("part", ["labels", "annotations"])
@pytest.mark.parametrize(("value", "path"), [({"a": 1}, ".a"), (5, ""), (["a"], "")])
def test_labels_are_texts(part: str, value: Any, path: str) -> None:
    (problem,) = problems(builders.job(podTemplate={"metadata": {part: value}}))
    assert problem.path == f"spec.podTemplate.metadata.{part}{path}"


def mounted(path: Any) -> dict[str, Any]:
    return {"containers": [{**TRAINER, "volumeMounts": [{"name": "d", "mountPath": path}]}]}


@pytest.mark.parametrize(("spec", "path"), [
    *(({"volumes": [{"name": name}]}, "volumes[0].name")
      for name in ("placement", "run", "agent", "shm", "volume-0", "volume-17", "No Name", 1)),
    *(({"initContainers": [{**INIT, "name": name}]}, "initContainers[0].name")
      for name in ("agent", "trainer", "", None)),
    ({"containers": [{**TRAINER, "ports": [{"name": "agent"}]}]}, "containers[0].ports[0].name"),
    ({"initContainers": [{**INIT, "ports": [{"name": "agent"}]}]},
     "initContainers[0].ports[0].name"),
    *((mounted(path), "containers[0].volumeMounts[0].mountPath")
      for path in ("/", "//", "/ffdl", "/ffdl/run", "//ffdl/x/", "/mnt/../ffdl", "/dev/shm",
                   "/dev/shm/", "", None)),
])  # fmt: skip
def test_what_is_the_engines_own_is_refused(spec: dict[str, Any], path: str) -> None:
    assert [at for at, _, _ in found_in(spec)] == [path]


def test_what_a_cluster_takes_is_taken() -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "zone", "operator": "In", "values": ["a"]}]}]}  # fmt: skip
    pulled = {**INIT, "args": ["-v"], "restartPolicy": "Always", "ports": [{"containerPort": 80}],
              "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
              "volumeMounts": [{"name": "agent", "mountPath": "/ffdl/agent"}]}  # fmt: skip
    assert found_in({
        "affinity": {"nodeAffinity": {REQUIRED: terms}, "podAffinity": {}},
        "volumes": [{"name": "volume-x", "emptyDir": {}}, {"name": "agents", "emptyDir": {}}],
        "initContainers": [pulled], "tolerations": [{"operator": "Exists"}],
        "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
        "securityContext": {"runAsUser": 5, "supplementalGroups": [1, 2]},
        **mounted("/ffdl-data"),
    }) == []  # fmt: skip
