"""The job spec: defaults that bind, documents that come back, an identity."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow.core.errors import SpecError
from ffdl_airflow.core.job import JOB_ID_LENGTH, TrainingJob, job_id_for
from ffdl_airflow.core.manifests.ffdl import read_job
from ffdl_airflow.core.secret_text import looks_secret

MINIMAL: dict[str, Any] = {
    "metadata": {"name": "digits"},
    "spec": {"training": {"framework": "jax", "command": ["python", "train.py"]}},
}
# What is not there is not set: the setting or the framework decides.
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


def refused(**spec: Any) -> tuple[str, str, str]:
    """(path, found, allowed) of the one problem."""
    with pytest.raises(SpecError) as caught:
        with_spec(**spec)
    (problem,) = caught.value.problems
    return problem.path, problem.found, problem.allowed


TRAINING: dict[str, Any] = {"framework": "custom", "command": ["t"]}
UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"args": ["--x", "\0"]}, "spec.training.args[1]"),
    ({"args": ["\ud800"]}, "spec.training.args[0]"),
    ({"command": ["a\0b"]}, "spec.training.command[0]"),
    ({"command": [], "entryPoint": "a\0.py"}, "spec.training.entryPoint"),
    ({"env": {"X": "a\0b"}}, "spec.training.env.X"),
    ({"env": {"X": "\udfff"}}, "spec.training.env.X"),
    ({"env": {"X\0": "a"}}, "spec.training.env"),
    ({"code": "/data\0"}, "spec.training.code"),
]


@pytest.mark.parametrize(("training", "path"), UNFIT, ids=[repr(case[0]) for case in UNFIT])
def test_text_that_no_process_can_be_told(training: dict[str, Any], path: str) -> None:
    found = refused(training=TRAINING | training)
    assert found[0] == path
    assert found[1] in (r"'\x00' in a text", r"'\ud800' in a text", r"'\udfff' in a text")
    assert found[2] == "text without NUL and without halves of characters"


@pytest.mark.parametrize("field", ["labels", "podTemplate", "roles"])
def test_such_text_is_refused_wherever_it_stands(field: str) -> None:
    document = copy.deepcopy(MINIMAL)
    role = {"name": "worker", "args": ["a", {"b": "\0"}]}
    part = {"labels": ("metadata", {"a": "\0"}, "metadata.labels.a"),
            "podTemplate": ("spec", {"spec": {"a": ["\0"]}}, "spec.podTemplate.spec.a[0]"),
            "roles": ("spec", [role], "spec.roles[0].args[1].b")}  # fmt: skip
    inside, value, path = part[field]
    document[inside][field] = value
    with pytest.raises(SpecError) as caught:
        read_job(document)
    assert [problem.path for problem in caught.value.problems] == [path]


@pytest.mark.parametrize("name", ["A=B", "", "="])
def test_a_variable_has_a_name(name: str) -> None:
    roles = [{"name": "worker", "env": {name: "x"}}]
    named = TRAINING | {"env": {name: "x"}}
    for spec in ({"training": named}, {"training": TRAINING, "roles": roles}):
        path, found, allowed = refused(**spec)
        assert path in ("spec.training.env", "spec.roles[0].env")
        assert found == f"the name {name!r}"
        assert allowed == "names of one character or more, without ="


# Made up, in pieces: whoever looks for secrets in this repository finds none.
TOKENS = ["AKIA" + "ABCDEFGHIJKLMNOP", "gh" + "p_" + "a1" * 18, "hf" + "_" + "aB" * 17,
          "xox" + "b-1234567890-abc", "-----BEGIN RSA " + "PRIVATE KEY-----\nMII",
          "postgresql://user:" + "hunter2@db/x", "amqp://:" + "hunter2@mq"]  # fmt: skip
OPTIONS = [["--password=hunter2"], ["--token", "hunter2"], ["--api-key", "hunter2"],
           ["--db_password", "hunter2"], ["--hf-token=hunter2"], ["-c", "t --secret hunter2 -v"],
           ["--AWS-SECRET-ACCESS-KEY=hunter2"], ["--password='hunter2'"]]  # fmt: skip
HARMLESS = [["--token", "$HF_TOKEN"], ["--token=$(TOKEN)"], ["--password", "--verbose"],
            ["--use-token", "true"], ["--token"], ["--token", ""], ["--max-token", "512"],
            ["--pad-token", "<pad>"], ["--password-file", "/run/pw"], ["--api-key", "/run/key"],
            ["--key", "value"], ["--tokenizer", "bert"], ["http://host:8080/a@b"],
            ["s3://bucket/path"], ["user@host:path"], ["hf_model-small"], ["redis://:$PW@host"],
            ["https://user@host/x"]]  # fmt: skip


@pytest.mark.parametrize("text", TOKENS, ids=[f"{text:.6}" for text in TOKENS])
def test_secrets_are_known_by_their_form(text: str) -> None:
    """Wherever they stand: the whole spec is written into the ledger."""
    places: dict[str, dict[str, Any]] = {
        "spec.training.env.X": {"training": TRAINING | {"env": {"X": text}}},
        "spec.training.args[1]": {"training": TRAINING | {"args": ["--url", text]}},
        "spec.training.command[0]": {"training": TRAINING | {"command": [f"run {text}"]}},
        "spec.dataStores[0].path": {
            "training": TRAINING, "dataStores": [{"name": "d", "path": text}]},
    }  # fmt: skip
    for place, spec in places.items():
        path, found, allowed = refused(**spec)
        assert path == place
        assert found.endswith(" in plain text")
        assert "secretName" in allowed
        assert text not in found


@pytest.mark.parametrize("words", OPTIONS, ids=[" ".join(words) for words in OPTIONS])
@pytest.mark.parametrize("field", ["args", "command"])
def test_secrets_are_known_by_their_option(words: list[str], field: str) -> None:
    path, found, allowed = refused(training=TRAINING | {field: words})
    number = next(n for n, word in enumerate(words) if "--" in word)
    assert path == f"spec.training.{field}[{number}]"
    assert "hunter2" not in found
    assert "secretName" in allowed
    path, _, _ = refused(training=TRAINING, roles=[{"name": "worker", field: words}])
    assert path == f"spec.roles[0].{field}[{number}]"


@pytest.mark.parametrize("words", HARMLESS, ids=[" ".join(words) for words in HARMLESS])
def test_what_is_no_secret_may_be_written(words: list[str]) -> None:
    assert with_spec(training=TRAINING | {"args": words, "env": {"X": words[-1]}})


def test_a_secret_is_not_shown_where_another_fault_is_told() -> None:
    _, found, _ = refused(training=TRAINING | {"args": "--password=hunter2"})
    assert found == "a value that is not shown"


def refused_in(template: dict[str, Any]) -> tuple[str, str, str]:
    """(path in the template, found, allowed), the same at both places of a template."""
    of_job = refused(training=TRAINING, podTemplate=template)
    of_role = refused(training=TRAINING, roles=[{"name": "worker", "podTemplate": template}])
    where = [path.partition("podTemplate.") for path, _, _ in (of_job, of_role)]
    assert [place for place, _, _ in where] == ["spec.", "spec.roles[0]."]
    (path,) = {inner for _, _, inner in where}
    assert of_job[1:] == of_role[1:]
    assert "hunter2" not in str(of_job)
    return path, *of_job[1:]


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
@pytest.mark.parametrize("name", SECRETS)
def test_a_template_names_secrets_too(name: str, kind: str) -> None:
    def template(**said: Any) -> dict[str, Any]:
        return {"spec": {kind: [{"name": "c", "env": [{"name": "A", "value": "1"}, said]}]}}

    path, found, allowed = refused_in(template(name=name, value="hunter2"))
    assert path == f"spec.{kind}[0].env[1].value"
    assert found == "a plain value of what looks like a secret"
    assert "secretKeyRef" in allowed
    assert refused_in(template(name=name, value=1234567))[0] == path
    reference = {"secretKeyRef": {"name": "creds", "key": "k"}}
    for said in ({"value": ""}, {"value": None}, {"valueFrom": reference}):
        assert with_spec(training=TRAINING, podTemplate=template(name=name, **said))


@pytest.mark.parametrize("words", OPTIONS, ids=[" ".join(words) for words in OPTIONS])
@pytest.mark.parametrize("field", ["args", "command"])
def test_a_template_has_no_secret_in_an_option(words: list[str], field: str) -> None:
    number = next(n for n, word in enumerate(words) if "--" in word)
    path, found, allowed = refused_in({"spec": {"initContainers": [{field: words}]}})
    assert path == f"spec.initContainers[0].{field}[{number}]"
    assert found.startswith("a plain value of --")
    assert "secretKeyRef" in allowed
    probe = {"livenessProbe": {"exec": {field: words}}}
    path, _, _ = refused_in({"spec": {"initContainers": [probe]}})
    assert path == f"spec.initContainers[0].livenessProbe.exec.{field}[{number}]"


@pytest.mark.parametrize(("container", "path"), [
    ({"env": {"API_TOKEN": "hunter2"}}, "env.API_TOKEN"),
    ({"args": "--password hunter2"}, "args"),
    ({"args": ["--password", 1234567]}, "args[0]"),
    ({"livenessProbe": {"httpGet": {"httpHeaders": [{"name": "token", "value": "hunter2"}]}}},
     "livenessProbe.httpGet.httpHeaders[0].value"),
])  # fmt: skip
def test_a_secret_is_found_where_a_template_is_wrong_too(
    container: dict[str, Any], path: str
) -> None:
    assert refused_in({"spec": {"containers": [container]}})[0] == f"spec.containers[0].{path}"


@pytest.mark.parametrize("text", TOKENS, ids=[f"{text:.6}" for text in TOKENS])
def test_a_template_has_no_token_by_its_form(text: str) -> None:
    template = {"spec": {"containers": [{"env": [{"name": "X", "value": text}]}]}}
    path, found, _ = refused(training=TRAINING, podTemplate=template)
    assert path == "spec.podTemplate.spec.containers[0].env[0].value"
    assert text not in found


@pytest.mark.parametrize("words", HARMLESS, ids=[" ".join(words) for words in HARMLESS])
def test_what_is_no_secret_may_be_written_in_a_template(words: list[str]) -> None:
    container = {"args": words, "env": [{"name": name, "value": words[-1]} for name in PLAIN]}
    assert with_spec(training=TRAINING, podTemplate={"spec": {"initContainers": [container]}})


@pytest.mark.parametrize("names", [["ps"], ["evaluator"], ["ps", "evaluator"]])
def test_somebody_has_to_train(names: list[str]) -> None:
    path, found, allowed = refused(training=TRAINING, roles=[{"name": name} for name in names])
    assert (path, found) == ("spec.roles", f"only {', '.join(names)}")
    assert allowed == "one that trains among them: chief, master, worker, launcher"


def test_the_watchdog_leaves_no_more_gpus_than_there_are() -> None:
    watched = {"watchdog": {"minGpu": 3}}
    found = refused(training=TRAINING, resources={"gpu": 2}, **watched)
    assert found == ("spec.watchdog.minGpu", "3", "at most 2, the GPUs of a replica")
    roles = [{"name": "worker", "resources": {"gpu": 4}}, {"name": "ps"}]
    assert with_spec(training=TRAINING, roles=roles, **watched)


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
texts = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\0"), max_size=10
)
variables = texts.filter(lambda name: name and "=" not in name and not looks_secret(name))
specs = st.fixed_dictionaries(
    {"training": st.fixed_dictionaries(
        {"framework": st.sampled_from(["pytorch", "jax", "custom"]),
         "command": st.lists(texts, min_size=1, max_size=3)},
        optional={"args": st.lists(texts | st.integers() | st.booleans(), max_size=3),
                  "version": texts, "env": st.dictionaries(
                      variables, texts | st.integers(), max_size=2)},
    )},
    optional={
        "replicas": st.integers(1, 9),
        "resources": st.fixed_dictionaries({}, optional={
            "gpu": st.integers(0, 16), "cpu": st.integers(1, 64),
            "memory": st.integers(1, 2**50), "gpuTimeLimit": st.floats(0.1, 3e8)}),
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
