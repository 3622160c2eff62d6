"""What would be sent: compared whole with kept files, and against the rules that it has to keep."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.errors import FieldProblem
from ffdl_airflow.core.job import DNS_LABEL, MOST_REPLICAS, ROLES, TrainingJob, job_id_for
from ffdl_airflow.core.manifests.ffdl import read_job
from ffdl_airflow.engines.base import SupportsCheck, SupportsHosts, SupportsRender
from ffdl_airflow.engines.kubernetes import names, render
from ffdl_airflow.engines.kubernetes.node_match import obstacle, where_of
from ffdl_airflow.engines.kubernetes.preview import LEFT_OUT, Preview, everything
from ffdl_airflow.testing import builders
from tests.engines.kubernetes import objects
from tests.engines.kubernetes.rendered import CASES, GOLDEN, KEY, plan_of, settings_of, text_of
from tests.engines.kubernetes.restricted import violations

ROOT = Path(__file__).parents[3]
GPU = "nvidia.com/gpu"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WITHOUT_CLIENT = """
import sys
sys.modules["kubernetes"] = sys.modules["urllib3"] = None
from tests.engines.kubernetes.rendered import text_of
sys.stdout.write(text_of("pytorch"))
"""


def documents(name: str) -> list[dict[str, Any]]:
    return everything(plan_of(name), settings_of(name))


def pods(name: str) -> list[dict[str, Any]]:
    return [found for found in documents(name) if found["kind"] == "Pod"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]


@pytest.mark.parametrize("name", CASES)
def test_what_is_sent(name: str) -> None:
    assert text_of(name) == (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")


def test_each_kept_file_is_compared() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


def test_the_client_library_is_not_needed() -> None:
    words = [sys.executable, "-c", WITHOUT_CLIENT]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (GOLDEN / "pytorch.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_pods_are_restricted_but_for_the_hosts_network(name: str) -> None:
    wanted = ["hostNetwork"] if name == "host-network" else []
    assert all(violations(pod) == wanted for pod in pods(name))


def test_the_rules_find_what_is_not_restricted() -> None:
    pod = pods("placed-apart")[0]
    spec = pod["spec"]
    spec["securityContext"] = {"runAsUser": 0}
    spec["volumes"].append({"name": "host", "hostPath": {"path": "/"}})
    spec["containers"][0]["securityContext"] = {"capabilities": {"add": ["SYS_ADMIN"]}}
    found = violations(pod)
    assert {"volume host", "may run as root", "no seccomp profile", "may gain privileges",
            "keeps capabilities"} == set(found)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_gpus_stand_in_limits_only(name: str) -> None:
    for replica, pod in zip(plan_of(name).replicas, pods(name), strict=True):
        resources = [container["resources"] for container in containers(pod)]
        assert not [one for one in resources if GPU in one.get("requests", {})]
        limits = [one["limits"][GPU] for one in resources if GPU in one["limits"]]
        assert limits == ([str(replica.gpu)] if replica.gpu else [])


@pytest.mark.parametrize("name", CASES)
def test_no_token_of_the_api_is_mounted(name: str) -> None:
    for pod in pods(name):
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert not [volume for volume in pod["spec"]["volumes"] if "projected" in volume]


def test_secrets_are_references() -> None:
    """The only secret that passes through here is the placement's token, which is not shown."""
    token = protocol.token_for(KEY, plan_of("pytorch").placement_id)
    for name in CASES:
        assert token not in text_of(name)
        assert KEY.decode() not in text_of(name)
    for pod in pods("pytorch"):
        env = pod["spec"]["containers"][0]["env"]
        (own,) = [one for one in env if one["name"] == "HF_TOKEN"]
        assert own == {"name": "HF_TOKEN",
                       "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}  # fmt: skip
    (secret,) = [one for one in documents("pytorch") if one["kind"] == "Secret"]
    assert secret["stringData"][protocol.TOKEN_FILE] == LEFT_OUT
    plan = json.loads(secret["stringData"][protocol.PLAN_FILE])
    assert all("HF_TOKEN" not in replica["env"] for replica in plan["replicas"])


@pytest.mark.parametrize("name", CASES)
def test_everything_goes_with_the_anchor(name: str) -> None:
    anchor, service, secret, *made = documents(name)
    assert "ownerReferences" not in anchor["metadata"]
    for owner, owned in ((anchor, [service]), (service, [secret, *made])):
        for one in owned:
            (reference,) = one["metadata"]["ownerReferences"]
            assert (reference["kind"], reference["name"]) == (
                owner["kind"], owner["metadata"]["name"],
            )  # fmt: skip


def test_pod_groups_where_the_spec_says_so() -> None:
    for name in CASES:
        groups = [one for one in documents(name) if one["kind"] == "PodGroup"]
        named = {pod["spec"].get("schedulingGroup", {}).get("podGroupName") for pod in pods(name)}
        if name != "placed-apart":
            assert (groups, named) == ([], {None})
            continue
        (group,) = groups
        assert named == {group["metadata"]["name"]}
        assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == len(pods(name))
        classes = {pod["spec"]["priorityClassName"] for pod in pods(name)}
        assert classes == {group["spec"]["priorityClassName"]}


@pytest.mark.parametrize("name", CASES)
def test_a_selector_finds_the_gangs_pods_and_no_others(name: str) -> None:
    selector = documents(name)[1]["spec"]["selector"]
    assert all(selector.items() <= pod["metadata"]["labels"].items() for pod in pods(name))
    others = everything(plan_of(name, placement=2), settings_of(name))
    strangers = [one for one in others if one["kind"] == "Pod"]
    assert not [one for one in strangers if selector.items() <= one["metadata"]["labels"].items()]


@given(
    name=st.from_regex(DNS_LABEL, fullmatch=True), salt=st.text(), number=st.integers(1, 99_999),
    role=st.sampled_from(ROLES), index=st.integers(0, MOST_REPLICAS - 1),
)  # fmt: skip
def test_names_are_dns_labels(name: str, salt: str, number: int, role: str, index: int) -> None:
    """The longest role, index and job id, and thousands of placements of one job."""
    placement_id = f"{job_id_for(name, salt)}/{number}"
    for found in (names.gang_name(placement_id), names.pod_name(placement_id, f"{role}-{index}")):
        assert len(found) <= 63
        assert re.fullmatch(DNS_LABEL, found)


@given(text=st.text())
def test_what_users_say_becomes_a_label(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", names.label_value(text))


TERM = {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100"]}]}
FIELD = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
TERMS = [None, [TERM], [FIELD], [TERM, FIELD], [{}], [{}, TERM], [{"matchExpressions": []}]]


@pytest.mark.parametrize("terms", TERMS)
def test_a_turn_leaves_of_the_nodes_that_a_template_allows(terms: list[Any] | None) -> None:
    """A node is left exactly where both the template and the turn allow it."""
    affinity = {} if terms is None else {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    free = objects.pod("worker-0", affinity=affinity)
    kept = render.kept_to(free, ["n0", "n1"])
    for name in ("n0", "n1", "n2"):
        for gpu in ("h100", "a100"):
            node = objects.node(name, labels={"gpu": gpu})
            allowed = obstacle(where_of(free), node) is None and name != "n2"
            assert (obstacle(where_of(kept), node) is None) is allowed, (name, gpu)


def test_a_turn_takes_nothing_from_an_affinity() -> None:
    apart = {"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone"}]},
             "podAffinity": {PREFERRED: [{"weight": 1}]}}  # fmt: skip
    liked = {PREFERRED: [{"weight": 5, "preference": TERM}]}
    free = objects.pod("worker-0", affinity={**apart, "nodeAffinity": liked})
    before = repr(free)
    found = render.kept_to(free, ["n0"])["spec"]["affinity"]
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n0"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [here]}]}
    assert found == {**apart, "nodeAffinity": {**liked, REQUIRED: required}}
    assert repr(free) == before


def test_a_preview_is_an_engine_as_far_as_it_goes() -> None:
    preview = Preview(settings_of("pytorch"))
    for ability in (SupportsRender, SupportsHosts, SupportsCheck):
        assert isinstance(preview, ability)
    assert list(preview.render(plan_of("mpi"))) == everything(
        plan_of("mpi"), settings_of("pytorch")
    )


def test_a_replica_without_an_image_is_refused() -> None:
    preview = Preview(settings_of("pytorch"))
    spec = {"training": {"framework": "custom", "command": ["true"]}}
    allowed = "an image that has Python"
    assert list(preview.check(builders.job(**spec))) == [
        FieldProblem("spec.training.image", "nothing", allowed)
    ]
    roles = [{"name": "chief", "image": "a:1"}, {"name": "worker"}]
    document = builders.job_document(**spec, replicas=None, roles=roles)
    assert list(preview.check(read_job(document))) == [
        FieldProblem("spec.roles[1].image", "nothing", allowed)
    ]


@pytest.mark.parametrize("said", [None, "default", "training"])
def test_a_job_is_in_the_namespace_of_the_installation(said: str | None) -> None:
    assert list(Preview(settings_of("pytorch")).check(in_namespace(said))) == []


def test_a_job_of_another_namespace_is_refused() -> None:
    allowed = "training, the installation's ([ffdl] namespace), or nothing"
    assert list(Preview(settings_of("pytorch")).check(in_namespace("ml"))) == [
        FieldProblem("metadata.namespace", "'ml'", allowed)
    ]


def in_namespace(said: str | None) -> TrainingJob:
    document = builders.job_document(**CASES["pytorch"][0])
    if said is not None:
        document["metadata"]["namespace"] = said
    return read_job(document)


def test_kept_files_are_yaml_that_kubectl_would_take() -> None:
    for path in GOLDEN.iterdir():
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            assert {"apiVersion", "kind", "metadata"} <= set(document)
