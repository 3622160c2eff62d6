"""Wrong manifests: each problem has its path, what was found and what is allowed."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from ffdl_airflow.core.errors import SpecError
from ffdl_airflow.core.manifests.ffdl import read_job

BASE: dict[str, Any] = {
    "apiVersion": "ffdl.cloud.ibm.com/v1",
    "kind": "TrainingJob",
    "metadata": {"name": "digits"},
    "spec": {"training": {"framework": "jax", "command": ["train"]}},
}
ROLE = {"name": "worker"}
WHOLE, NUMBER, TEXT = "a whole number", "a number", "a text; a number that is meant as text stands"
NO_BOOL, REQUIRED = "a number, not true or false", "a value, it is required"

# where, what is put there → path of the problem, found, beginning of what is allowed
WRONG: list[tuple[str, Any, str, str, str]] = [
    # unknown fields, and the nearest known name
    ("trainig", {}, "trainig", "an unknown field", "one of apiVersion, kind, metadata, spec"),
    ("spec.replica", 2, "spec.replica", "an unknown field", "replicas is the nearest known field"),
    ("spec.training.entrypoint", "t.py", "spec.training.entrypoint", "an unknown field",
     "entryPoint is the nearest known field"),
    ("spec.resources.gpus", 2, "spec.resources.gpus", "an unknown field", "gpu is the nearest"),
    ("spec.deadlines.regster", 2, "spec.deadlines.regster", "an unknown field", "register is the"),
    ("spec.roles", [{**ROLE, "resources": {"memry": 1}}], "spec.roles[0].resources.memry",
     "an unknown field", "memory is the nearest known field"),
    ("spec.training.env", {"A": {"secretName": "s", "key": "k", "kee": "k"}},
     "spec.training.env.A.kee", "an unknown field", "key is the nearest known field"),
    ("spec.slo.p99", 1, "spec.slo.p99", "an unknown field", "one of latency"),
    # whole numbers
    ("spec.replicas", True, "spec.replicas", "true", NO_BOOL),
    ("spec.replicas", "two", "spec.replicas", "'two'", WHOLE),
    ("spec.replicas", 2.5, "spec.replicas", "2.5", WHOLE),
    ("spec.replicas", None, "spec.replicas", "nothing", "a whole number, or no such field"),
    ("spec.replicas", 0, "spec.replicas", "0", "at least 1"),
    ("spec.replicas", -3, "spec.replicas", "-3", "at least 1"),
    ("spec.replicas", math.nan, "spec.replicas", "nan", "a finite number"),
    ("spec.replicas", "9" * 5000, "spec.replicas", "'" + "9" * 78 + "…", WHOLE),
    ("spec.resources.gpu", -1, "spec.resources.gpu", "-1", "at least 0"),
    ("spec.resources.gpu", "2Gi", "spec.resources.gpu", "'2Gi'", WHOLE),
    ("spec.resources.gpuCount", -1, "spec.resources.gpu", "-1", "at least 0"),
    ("spec.resources", {"gpu": 1, "gpuCount": 1}, "spec.resources.gpuCount",
     "a second number of GPUs", "gpu or gpuCount, not both"),
    ("spec.network.masterPort", 70000, "spec.network.masterPort", "70000", "at most 65535"),
    ("spec.network.masterPort", False, "spec.network.masterPort", "false", NO_BOOL),
    ("spec.backoffLimit", -1, "spec.backoffLimit", "-1", "at least 0"),
    # numbers
    ("spec.resources.gpuTimeLimit", math.inf, "spec.resources.gpuTimeLimit", "inf", "a finite"),
    ("spec.resources.gpuTimeLimit", "1h", "spec.resources.gpuTimeLimit", "'1h'", NUMBER),
    ("spec.resources.gpuTimeLimit", 0, "spec.resources.gpuTimeLimit", "0", "above 0"),
    ("spec.gracePeriod", True, "spec.gracePeriod", "true", NO_BOOL),
    ("spec.watchdog.hangFactor", 1, "spec.watchdog.hangFactor", "1", "above 1"),
    ("spec.watchdog.window", [], "spec.watchdog.window", "[]", NUMBER),
    ("spec.resources.minGpuUtilization", 101, "spec.resources.minGpuUtilization", "101",
     "at most 100"),
    # quantities
    ("spec.resources.memory", "8Gx", "spec.resources.memory", "'8Gx'", "a number of bytes with K"),
    ("spec.resources.memory", -1, "spec.resources.memory", "-1", "a number of bytes with K"),
    ("spec.resources.memory", 0, "spec.resources.memory", "0", "above 0, a number of bytes"),
    ("spec.resources.sharedMemory", True, "spec.resources.sharedMemory", "true", "a number of by"),
    ("spec.resources.cpu", "2Gi", "spec.resources.cpu", "'2Gi'", "cores, for example 2"),
    ("spec.resources.cpu", 0, "spec.resources.cpu", "0", "above 0"),
    ("spec.resources.cpu", math.nan, "spec.resources.cpu", "nan", "cores, for example 2"),
    # texts, truth, lists, mappings
    ("spec.training.version", 2.1, "spec.training.version", "2.1", TEXT),
    ("spec.priority", 5, "spec.priority", "5", TEXT),
    ("metadata.labels", {"team": 5}, "metadata.labels.team", "5", TEXT),
    ("metadata.labels", {5: "x"}, "metadata.labels[5]", "5", TEXT),
    ("spec.network.hostNetwork", "maybe", "spec.network.hostNetwork", "'maybe'", "true or false"),
    ("spec.dataStores", [{"name": "d", "readOnly": []}], "spec.dataStores[0].readOnly", "[]",
     "true or false"),
    ("spec.training.args", "--x", "spec.training.args", "'--x'", "a list"),
    ("spec.training.args", [None], "spec.training.args[0]", "nothing", TEXT),
    ("spec.roles", 3, "spec.roles", "3", "a list"),
    ("spec.resources", 3, "spec.resources", "3", "a mapping"),
    ("spec.training", "train.py", "spec.training", "'train.py'", "a mapping"),
    ("spec.podTemplate", [], "spec.podTemplate", "[]", "a mapping"),
    ("spec", [1], "spec", "[1]", "a mapping"),
    ("metadata", None, "metadata", "nothing", "a mapping"),
    ("spec.resources", {5: "x"}, "spec.resources[5]", "5", "texts as keys"),
    ("spec.training.env", {"A": [1]}, "spec.training.env.A", "[1]", TEXT),
    ("spec.training.env", {"A": None}, "spec.training.env.A", "nothing", TEXT),
    ("spec.training.env", {"A": {"secretName": "s"}}, "spec.training.env.A.key", "nothing",
     REQUIRED),
    ("spec.training.env", {"HF_TOKEN": ["hunter2"]}, "spec.training.env.HF_TOKEN",
     "a value that is not shown", TEXT),
    # choices and names
    ("kind", "Job", "kind", "'Job'", "'TrainingJob'"),
    ("apiVersion", "v1", "apiVersion", "'v1'", "'ffdl.cloud.ibm.com/v1'"),
    ("spec.training.framework", "torch", "spec.training.framework", "'torch'", "'pytorch', 'jax'"),
    ("spec.successPolicy", "all", "spec.successPolicy", "'all'", "'chief' or 'allWorkers'"),
    ("spec.resources.gpuTopology", "pcie", "spec.resources.gpuTopology", "'pcie'", "'nvlink'"),
    ("spec.checkpoint.onClear", "no", "spec.checkpoint.onClear", "'no'", "'resume' or 'fresh'"),
    ("metadata.name", "Digits_1", "metadata.name", "'Digits_1'", "a DNS label: lower-case"),
    ("metadata.name", "x" * 64, "metadata.name", "'" + "x" * 64 + "'", "a DNS label"),
    ("spec.model.name", "a/b", "spec.model.name", "'a/b'", "a DNS label"),
    ("spec.roles", [{"name": "boss"}], "spec.roles[0].name", "'boss'", "'chief', 'master'"),
    ("spec.roles", [{}], "spec.roles[0].name", "nothing", REQUIRED),
    ("spec.roles", [{**ROLE, "processesPerReplica": 0}], "spec.roles[0].processesPerReplica", "0",
     "a whole number from 1 to 1024, or auto"),
    ("spec.roles", [{**ROLE, "processesPerReplica": True}], "spec.roles[0].processesPerReplica",
     "true", "a whole number from 1 to 1024, or auto"),
    # what belongs together
    ("spec.training", {"framework": "jax"}, "spec.training.entryPoint", "nothing",
     "a path in code, or command instead"),
    ("spec.training.entryPoint", "t.py", "spec.training.command", "a command beside entryPoint",
     "one of the two"),
    ("spec.training", {"framework": "jax", "entryPoint": "/t.py"}, "spec.training.entryPoint",
     "'/t.py'", "a relative path that stays inside"),
    ("spec.training", {"framework": "jax", "entryPoint": "a/../../t.py"},
     "spec.training.entryPoint", "'a/../../t.py'", "a relative path that stays inside"),
    ("spec", {**BASE["spec"], "replicas": 2, "roles": [ROLE]}, "spec.replicas", "2 beside roles",
     "one of the two"),
    ("spec.roles", [ROLE, ROLE], "spec.roles[1].name", "'worker' for the second time",
     "each name once"),
    ("spec.dataStores", [{"name": "d"}, {"name": "d"}], "spec.dataStores[1].name",
     "'d' for the second time", "each name once"),
    ("spec.minReplicas", 2, "spec.minReplicas", "2", "at most replicas 1"),
    ("spec", {**BASE["spec"], "replicas": 4, "maxReplicas": 2}, "spec.maxReplicas", "2",
     "at least replicas 4"),
    ("spec.roles", [{"name": "chief", "replicas": 2}], "spec.roles[0].replicas", "2",
     "1: a gang has one chief"),
    ("spec.roles", [{**ROLE, "resources": {"gpuTimeLimit": 60}}],
     "spec.roles[0].resources.gpuTimeLimit", "60", "only spec.resources.gpuTimeLimit"),
    ("spec.progress.regex", "(", "spec.progress.regex", "'(' (missing )", "a regular expression"),
    ("spec.progress.regex", "[0-9]+", "spec.progress.regex", "'[0-9]+'", "a pattern with a group"),
]  # fmt: skip


def put(where: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(BASE)
    *above, last = where.split(".")
    part = document
    for name in above:
        part = part.setdefault(name, {})
    part[last] = value
    return document


@pytest.mark.parametrize(
    ("where", "value", "path", "found", "allowed"),
    WRONG,
    ids=[f"{w[0]}={w[1]!r:.30}" for w in WRONG],
)
def test_a_wrong_field_is_named_once(
    where: str, value: Any, path: str, found: str, allowed: str
) -> None:
    with pytest.raises(SpecError) as caught:
        read_job(put(where, value), source="job.yaml")
    (problem,) = (p for p in caught.value.problems if p.path == path)
    others = {p.path for p in caught.value.problems} - {path}
    assert others <= {"spec.roles[0].name"}
    assert problem.found.startswith(found)
    assert problem.allowed.startswith(allowed)
    message = caught.value.message
    assert message.startswith(f"job.yaml is not valid: {caught.value.problems[0]}")
    assert caught.value.exit_code == 2
    for word in ("PydanticUndefined", "pydantic", "dictionary", "tuple", "constrained", "hunter2"):
        assert word not in message


def test_all_problems_are_told_at_once() -> None:
    document = put("spec.replicas", 0)
    document["spec"]["resources"] = {"memory": "lots", "gpu": -1}
    document["metadata"] = {}
    with pytest.raises(SpecError) as caught:
        read_job(document)
    assert [problem.path for problem in caught.value.problems] == [
        "metadata.name", "spec.replicas", "spec.resources.gpu", "spec.resources.memory",
    ]  # fmt: skip
    assert "nothing was created" in caught.value.message


@pytest.mark.parametrize(
    ("manifest", "found"),
    [(None, "nothing"), ([1], "list [1]"), (5, "int 5"), (b"x", "bytes b'x'"),
     ("- 1", "list [1]"), ("just text", "str 'just text'"), ("5", "int 5"), ("1.5", "float 1.5")],
)  # fmt: skip
def test_what_is_no_mapping_is_no_job(manifest: object, found: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_job(manifest)
    (problem,) = caught.value.problems
    assert (problem.path, problem.found) == ("(document)", found)
    assert problem.allowed == "a mapping with apiVersion, kind, metadata, spec"


def test_an_empty_mapping_lacks_what_is_required() -> None:
    with pytest.raises(SpecError) as caught:
        read_job({})
    assert [problem.path for problem in caught.value.problems] == ["metadata", "spec"]
