"""``docker/``: the manifests can be built, and say what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from ffdl_airflow.engines.kubernetes import names, render, rights
from ffdl_airflow.engines.kubernetes.diagnosis import BASE, EXEC, LOOK, PRIORITIES
from tests.architecture.source import ROOT

FOLDER = ROOT / "docker" / "kubernetes"
OF_CLUSTER = {"ClusterRole", "ClusterRoleBinding", "Namespace", "PriorityClass"}


def built(folder: Path) -> list[dict[str, Any]]:
    """The documents of a kustomization's files, as they stand there."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    paths = [folder / name for name in kustomization["resources"] if name.endswith(".yaml")]
    return [one for path in paths for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def the(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in documents if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def as_rules(rules: tuple[rights.Rule, ...]) -> list[dict[str, Any]]:
    return [
        {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)}
        for rule in rules
    ]


def test_the_role_is_the_list_that_the_doctor_reads() -> None:
    assert the(built(FOLDER / "base"), "Role", "ffdl-driver")["rules"] == as_rules(rights.ROLE)
    look = built(FOLDER / "look")
    assert the(look, "ClusterRole", "ffdl-look")["rules"] == as_rules(rights.CLUSTER_ROLE)
    assert the(look, "Role", "ffdl-look")["rules"] == as_rules(rights.LOOK_ROLE)
    assert the(built(FOLDER / "exec"), "Role", "ffdl-exec")["rules"] == as_rules(rights.EXEC_ROLE)


def test_secrets_cannot_be_read() -> None:
    """Nor is there a verb on everything, anywhere."""
    rules = [
        rule
        for folder in ("base", "look", "exec")
        for one in built(FOLDER / folder)
        for rule in one.get("rules", ())
    ]
    for rule in rules:
        assert "*" not in {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}
        if "secrets" in rule["resources"]:
            assert set(rule["verbs"]) == {"create", "delete"}


def test_training_accounts_are_bound_to_nothing() -> None:
    documents = [one for name in ("base", "look", "exec") for one in built(FOLDER / name)]
    assert the(documents, "ServiceAccount", "ffdl-trainer")["automountServiceAccountToken"] is False
    bound = {subject["name"] for one in documents for subject in one.get("subjects", ())}
    assert bound == {"ffdl-driver"}


def test_priority_classes_are_those_that_specs_name() -> None:
    classes = [one for one in built(FOLDER / "base") if one["kind"] == "PriorityClass"]
    found = {one["metadata"]["name"]: one["value"] for one in classes}
    assert found == {"online-high": 1_000_000, "offline-batch": 100_000}
    assert set(found) == set(PRIORITIES)


def test_the_policy_means_our_pods_and_their_port() -> None:
    spec = the(built(FOLDER / "base"), "NetworkPolicy", "gangs")["spec"]
    assert spec["podSelector"]["matchExpressions"] == [{"key": names.JOB, "operator": "Exists"}]
    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    ports = [port["port"] for rule in spec["ingress"] for port in rule.get("ports", ())]
    assert ports == [names.AGENT_PORT]


def test_the_namespace_admits_restricted_pods_only() -> None:
    labels = the(built(FOLDER / "base"), "Namespace", "ffdl-training")["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}


def test_the_doctor_names_folders_that_are_there() -> None:
    assert all((ROOT / folder / "kustomization.yaml").is_file() for folder in (BASE, LOOK, EXEC))


@pytest.mark.parametrize("folder", ["base", "example"])
def test_kubectl_builds_it_for_one_namespace(kubectl: Path, folder: str) -> None:
    """In an overlay everything follows to its namespace, also who is bound."""
    words = [str(kubectl), "kustomize", str(FOLDER / folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    kustomization = yaml.safe_load((FOLDER / folder / "kustomization.yaml").read_text())
    wanted = kustomization["namespace"]
    assert the(documents, "Namespace", wanted)
    spaces = {
        one["metadata"].get("namespace") for one in documents if one["kind"] not in OF_CLUSTER
    }
    spaces |= {subject["namespace"] for one in documents for subject in one.get("subjects", ())}
    assert spaces == {wanted}


@pytest.fixture
def kubectl() -> Path:
    from tests.cluster import tools

    try:
        return tools.path_of("kubectl")
    except tools.ToolsMissingError as error:
        pytest.skip(str(error))


DOCKERFILE = (ROOT / "docker" / "agent" / "Dockerfile").read_text(encoding="utf-8")


def test_the_agent_image_is_what_the_pods_expect(tmp_path: Path) -> None:
    """Its command is run here, and its file is what the init container copies."""
    (packed,) = re.findall(r"^RUN python -m (\S+) (\S+)$", DOCKERFILE, re.MULTILINE)
    target = tmp_path / "agent.pyz"
    subprocess.run([sys.executable, "-m", packed[0], str(target)], cwd=ROOT, check=True)
    assert "__main__.py" in zipfile.ZipFile(target).namelist()
    copies = re.findall(r"^COPY --from=build .*?(\S+) (\S+)$", DOCKERFILE, re.MULTILINE)
    assert copies == [(packed[1], f"/{render.AGENT_FILE}")]
    last = DOCKERFILE.rpartition("FROM ")[2]
    user = re.search(r"^USER (\d+)", last, re.MULTILINE)
    assert user is not None
    assert int(user.group(1)) > 0


def test_the_tests_agent_image_has_the_same_content(tmp_path: Path) -> None:
    """The file, byte for byte, and ``/bin/cp``; the users' rights are the pod's business."""
    from tests.cluster import images, installation

    if not images.BUSYBOX.exists():
        pytest.skip(f"{images.BUSYBOX} is missing")
    found = files_of(installation.agent_image(tmp_path / "made"))
    copies = re.findall(r"^COPY --from=build .*? (/\S+)$", DOCKERFILE, re.MULTILINE)
    assert set(found) == set(copies)
    target = tmp_path / "agent.pyz"
    words = [sys.executable, "-m", "ffdl_airflow.agent.bundle", str(target)]
    subprocess.run(words, cwd=ROOT, check=True)
    assert found["/agent.pyz"] == target.read_bytes()
    below = files_of(images.no_python_image())
    assert {"/bin", "/usr/bin/cp"} <= set(below)  # /bin is a link to /usr/bin


def files_of(image: Path) -> dict[str, bytes]:
    """What the last layer of an image's tar adds: files and links, by their path."""
    found: dict[str, bytes] = {}
    with tarfile.open(image) as outer:
        blobs = [one for one in outer.getmembers() if one.name.startswith("blobs/")]
        for blob in sorted(blobs, key=lambda one: -one.size)[:1]:
            with tarfile.open(fileobj=outer.extractfile(blob)) as layer:
                for one in layer.getmembers():
                    if one.isfile() or one.issym() or one.islnk():
                        content = layer.extractfile(one) if one.isfile() else None
                        found[f"/{one.name.lstrip('./')}"] = content.read() if content else b""
    return found


def test_airflows_image_installs_extras_that_there_are() -> None:
    text = (ROOT / "docker" / "airflow" / "Dockerfile").read_text(encoding="utf-8")
    (extras,) = re.findall(r"\.whl\)\[([\w,]+)\]", text)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert set(extras.split(",")) == {"kubernetes", "postgres"}
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = ", declared, re.MULTILINE)
    (version,) = re.findall(r"^ARG AIRFLOW=apache/airflow:(\S+)$", text, re.MULTILINE)
    assert f'"apache-airflow>={version},' in project
