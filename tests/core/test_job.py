"""The job spec: defaults that bind, documents that come back, an identity."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow.core.errors import SpecError
from ffdl_airflow.core.job import JOB_ID_LENGTH, TrainingJob, job_id_for, looks_secret
from ffdl_airflow.core.manifests.ffdl import read_job

MINIMAL: dict[str, Any] = {
    "metadata": {"name": "digits"},
    "spec": {"training": {"framework": "jax", "command": ["python", "train.py"]}},
}
# CONTRACT, section 1. What is not there is not set: the setting or the framework decides.
CANONICAL: dict[str, Any] = {
    "apiVersion": "ffdl.cloud.ibm.com/v1",
    "kind": "TrainingJob",
    "metadata": {"name": "digits", "namespace": "default", "labels": {}},
    "spec": {
        "training": {
            "framework": "jax", "command": ["python", "train.py"], "args": [], "env": {},
        },
        "roles": [],
        "replicas": 1,
        "minReplicas": 1,
        "maxReplicas": 1,
        "evaluatorGrace": 600.0,
        "resources": {"gpu": 0, "cpu": 1.0, "minGpuUtilization": 30.0},
        "watchdog": {
            "window": 60.0, "aggregate": "mean", "action": "downgrade", "cooldown": 600.0,
            "maxActionsPerDay": 4, "hangFactor": 10.0, "hangFloor": 60.0, "firstStep": 1800.0,
        },
        "dataStores": [],
        "checkpoint": {"every": 1000, "keep": 3, "onClear": "resume"},
        "slo": {},
        "backoffLimit": 3,
        "noAdvanceLimit": 5,
        "reservation": {"minHold": "none", "queue": "default", "gang": "auto"},
        "priority": "offline-batch",
        "progress": {"metrics": []},
        "deadlines": {},
        "network": {"hostNetwork": False, "masterPort": 29500},
        "podTemplate": {},
    },
}  # fmt: skip
# Every field, said otherwise than its default.
FULL: dict[str, Any] = {
    "apiVersion": "ffdl.cloud.ibm.com/v1",
    "kind": "TrainingJob",
    "metadata": {"name": "bert", "namespace": "nlp", "labels": {"team": "a", "project": "b"}},
    "spec": {
        "training": {
            "framework": "tensorflow", "version": "2.16", "entryPoint": "train/main.py",
            "command": [], "args": ["--epochs", "3"], "code": "store://code/bert.zip",
            "image": "tf:2.16", "globalBatch": 512,
            "env": {"SEED": "7", "HF_TOKEN": {"secretName": "hub", "key": "token"}},
        },
        "roles": [
            {"name": "chief", "replicas": 1, "processesPerReplica": 2, "command": [], "args": [],
             "env": {"ROLE": "chief"}, "image": "tf:2.16-gpu", "podTemplate": {"a": None},
             "resources": {"gpu": 2, "cpu": 8.0, "memory": 2**33, "minGpuUtilization": 30.0}},
            {"name": "ps", "replicas": 2, "processesPerReplica": "auto", "command": ["ps"],
             "args": ["-v"], "env": {}, "podTemplate": {}},
        ],
        "successPolicy": "chief",
        "evaluatorGrace": 5.0,
        "resources": {
            "gpu": 1, "cpu": 0.5, "memory": 10**9, "gpuMemory": 2**34, "gpuType": "h200",
            "gpuTopology": "nvlink", "sharedMemory": 2**30, "gpuTimeLimit": 60.0,
            "minGpuUtilization": 0.0,
        },
        "watchdog": {
            "window": 1.0, "aggregate": "min", "action": "stop", "minGpu": 1, "cooldown": 2.0,
            "maxActionsPerDay": 0, "hangFactor": 3.0, "hangFloor": 4.0, "firstStep": 5.0,
        },
        "dataStores": [{"name": "corpus", "mountPath": "/data", "readOnly": False, "path": "/c"}],
        "checkpoint": {"every": 5, "keep": 1, "path": "/ckpt", "onClear": "fresh"},
        "model": {"name": "bert", "version": 3},
        "slo": {"latency": "20ms"},
        "backoffLimit": 0,
        "noAdvanceLimit": 1,
        "reservation": {"minHold": "soft", "hold": 10.0, "placement": 20.0, "queue": "big",
                        "gang": "podgroup"},
        "priority": "interactive",
        "gracePeriod": 7.0,
        "progress": {"regex": "step=(?P<step>[0-9]+)", "metrics": ["loss"]},
        "deadlines": {"prefetch": 1.0, "reserve": 2.0, "launch": 3.0, "register": 4.0},
        "network": {"hostNetwork": True, "interface": "eth1", "masterPort": 1},
        "podTemplate": {"spec": {"tolerations": []}},
    },
}  # fmt: skip


def test_a_minimal_job_gets_every_default() -> None:
    assert read_job(MINIMAL).document() == CANONICAL


def test_a_document_comes_back_as_it_is() -> None:
    assert read_job(FULL).document() == FULL
    assert read_job(CANONICAL) == read_job(MINIMAL)


def test_the_full_example_has_every_field() -> None:
    def fields(model: Any) -> set[str]:
        return {field.alias or name for name, field in model.model_fields.items()}

    job = read_job(FULL)
    spec, document = job.spec, FULL["spec"]
    replicas = {"replicas", "minReplicas", "maxReplicas"}  # beside roles there are none
    assert fields(type(spec)) - replicas == set(document)
    for name in ("training", "resources", "watchdog", "checkpoint", "model", "slo", "reservation",
                 "progress", "deadlines", "network"):  # fmt: skip
        assert fields(type(getattr(spec, name))) == set(document[name]), name
    assert fields(type(spec.roles[0])) == set(document["roles"][0])
    assert fields(type(spec.dataStores[0])) == set(document["dataStores"][0])


def test_a_job_is_read_once() -> None:
    job = read_job(MINIMAL)
    assert read_job(job) is job


def with_spec(**spec: Any) -> TrainingJob:
    return read_job({**MINIMAL, "spec": {**MINIMAL["spec"], **spec}})


def test_the_content_has_an_identity() -> None:
    assert read_job(MINIMAL).sha256 == read_job(CANONICAL).sha256
    assert read_job(MINIMAL).sha256 != with_spec(backoffLimit=4).sha256
    assert re.fullmatch("[0-9a-f]{64}", read_job(FULL).sha256)


def test_replicas_bound_themselves_unless_said_otherwise() -> None:
    def bounds(job: TrainingJob) -> tuple[Any, ...]:
        return job.spec.replicas, job.spec.minReplicas, job.spec.maxReplicas

    assert bounds(with_spec(replicas=4)) == (4, 4, 4)
    assert bounds(with_spec(replicas=4, minReplicas=2)) == (4, 2, 4)
    assert bounds(with_spec(replicas=4, maxReplicas=8)) == (4, 4, 8)
    assert bounds(with_spec(roles=[{"name": "worker", "replicas": 2}])) == (None, None, None)
    assert with_spec(replicas="4").spec.replicas == 4  # a template renders to text


def test_roles_and_gang() -> None:
    spec = with_spec(replicas=3, resources={"gpu": 2}).spec
    assert [(role.name, role.replicas) for role in spec.all_roles] == [("worker", 3)]
    assert (spec.gang_size, spec.total_gpus) == (3, 6)
    spec = with_spec(
        resources={"gpu": 1},
        roles=[{"name": "worker", "replicas": 2}, {"name": "ps", "resources": {"gpu": 0}}],
    ).spec
    assert (spec.gang_size, spec.total_gpus) == (3, 2)
    assert spec.resources_of(spec.roles[0]).gpu == 1
    assert spec.resources_of(spec.roles[1]).gpu == 0


@pytest.mark.parametrize(
    ("resources", "limit_s"),
    [({}, None), ({"gpu": 1}, 3600.0), ({"gpu": 1, "gpuTimeLimit": 60}, 60.0),
     ({"gpuTimeLimit": 90}, 90.0)],
)  # fmt: skip
def test_the_time_limit_is_for_gpus_or_who_asks(resources: Any, limit_s: float | None) -> None:
    assert with_spec(resources=resources).spec.time_limit_s == limit_s


def test_gpu_count_is_gpu() -> None:
    assert with_spec(resources={"gpuCount": 4}) == with_spec(resources={"gpu": 4})


def test_quantities_become_numbers() -> None:
    resources = with_spec(
        resources={"cpu": "1500m", "memory": "8Gi", "gpuMemory": "2Gb", "sharedMemory": 64}
    ).spec.resources
    assert (resources.cpu, resources.memory) == (1.5, 8 * 2**30)
    assert (resources.gpuMemory, resources.sharedMemory) == (2 * 10**9, 64)


def test_numbers_in_arguments_are_texts() -> None:
    training = with_spec(
        training={"framework": "jax", "command": ["train", 5], "args": ["--lr", 0.5, True],
                  "env": {"SEED": 7, "AMP": False}},
        roles=[{"name": "worker", "args": [1], "env": {"N": 2}}],
    ).spec  # fmt: skip
    assert training.training.command == ("train", "5")
    assert training.training.args == ("--lr", "0.5", "true")
    assert training.training.env == {"SEED": "7", "AMP": "false"}
    assert (training.roles[0].args, training.roles[0].env) == (("1",), {"N": "2"})


def test_a_job_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        read_job(MINIMAL).spec.replicas = 5  # type: ignore[misc]


def test_what_is_given_is_not_touched() -> None:
    given_ = copy.deepcopy(FULL)
    read_job(given_)
    assert given_ == FULL


SECRETS = ["PASSWORD", "DB_PASSWORD", "hf_token", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY",
           "AWS_ACCESS_KEY_ID", "OPENAI_API_KEY", "APIKEY", "SSH_PRIVATE_KEY", "CLIENT_SECRET",
           "GOOGLE_CREDENTIALS"]  # fmt: skip
PLAIN = ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "TOKENIZER", "SECRETARY", "PASSWORD_FILE",
         "KEYS", "NCCL_DEBUG", "MONKEY"]  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_named_not_written(name: str) -> None:
    assert looks_secret(name)
    reference = {"secretName": "creds", "key": "k"}
    for place in ("training", "roles"):
        for value in ("hunter2", reference):
            training = {"framework": "jax", "command": ["t"]}
            spec: dict[str, Any] = {"training": training}
            if place == "training":
                training["env"] = {name: value}  # type: ignore[assignment]
            else:
                spec["roles"] = [{"name": "worker", "env": {name: value}}]
            if value is reference:
                assert with_spec(**spec)
                continue
            with pytest.raises(SpecError) as caught:
                with_spec(**spec)
            (problem,) = caught.value.problems
            assert problem.path.endswith(f"env.{name}")
            assert "secretName" in problem.allowed
            assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", PLAIN)
def test_other_variables_may_be_written(name: str) -> None:
    assert not looks_secret(name)
    assert with_spec(training={"framework": "jax", "command": ["t"], "env": {name: "x"}})


def test_an_empty_secret_is_none() -> None:
    assert with_spec(training={"framework": "jax", "command": ["t"], "env": {"HF_TOKEN": ""}})


@given(st.text(max_size=80), st.text(max_size=20))
def test_a_job_id_is_a_dns_label(name: str, scope: str) -> None:
    job_id = job_id_for(name, scope)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", job_id)
    assert len(job_id) <= JOB_ID_LENGTH
    assert job_id == job_id_for(name, scope)
    assert job_id != job_id_for(name, f"{scope}x")


def test_a_job_id_shows_the_name() -> None:
    assert job_id_for("Digits v2!", "x").startswith("digits-v2-")
    assert job_id_for("…", "x").startswith("job-")


names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=10)
specs = st.fixed_dictionaries(
    {"training": st.fixed_dictionaries(
        {"framework": st.sampled_from(["pytorch", "jax", "custom"]),
         "command": st.lists(texts, min_size=1, max_size=3)},
        optional={"args": st.lists(texts | st.integers() | st.booleans(), max_size=3),
                  "version": texts, "env": st.dictionaries(texts.filter(
                      lambda name: not looks_secret(name)), texts | st.integers(), max_size=2)},
    )},
    optional={
        "replicas": st.integers(1, 9),
        "resources": st.fixed_dictionaries({}, optional={
            "gpu": st.integers(0, 16), "cpu": st.integers(1, 64),
            "memory": st.integers(1, 2**50), "gpuTimeLimit": st.floats(0.1, 1e9)}),
        "model": st.fixed_dictionaries({"name": names}),
        "checkpoint": st.fixed_dictionaries({}, optional={
            "every": st.integers(1, 10**12), "onClear": st.sampled_from(["resume", "fresh"])}),
        "deadlines": st.fixed_dictionaries({}, optional={"register": st.integers(1, 9)}),
        "podTemplate": st.dictionaries(texts, st.none() | texts | st.integers(), max_size=3),
    },
)  # fmt: skip


@given(specs)
def test_documents_come_back(spec: dict[str, Any]) -> None:
    job = read_job({"metadata": {"name": "x"}, "spec": spec})
    again = read_job(job.document())
    assert again == job
    assert again.document() == job.document()
    assert again.sha256 == job.sha256
