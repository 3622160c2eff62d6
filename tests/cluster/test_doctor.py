"""``ffdl doctor --cluster`` on a cluster that is fit, and on one that is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_airflow.core.errors import UserError
from ffdl_airflow.core.findings import Finding, Level
from ffdl_airflow.engines.kubernetes import names
from ffdl_airflow.engines.kubernetes.engine import KubernetesEngine
from ffdl_airflow.engines.kubernetes.settings import Volume
from ffdl_airflow.testing import builders
from ffdl_airflow.testing.contracts import engine as contract
from tests.cluster import images
from tests.cluster.bed import Bed
from tests.cluster.installation import CLAIM, Installation, end_all
from tests.cluster.shipped import Shipped

TRAINING = {"framework": "custom", "command": ["true"], "image": images.PYTHON}
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture
def shipped(bed: Bed, installation: Installation, tmp_path: Path) -> Shipped:
    return Shipped(bed, installation.namespace, tmp_path / "overlay")


@pytest.fixture
def gpus(bed: Bed) -> Iterator[int]:
    bed.set_gpus(bed.real_nodes[0], 2)
    yield 2
    bed.set_gpus(bed.real_nodes[0], 0)


def driver(installation: Installation, shipped: Shipped, **changes: object) -> KubernetesEngine:
    return installation.engine(credentials=shipped.credentials("ffdl-driver"), **changes)


def by_check(found: list[Finding]) -> dict[str, Finding]:
    return {line.check: line for line in found}


def test_a_fit_cluster(bed: Bed, installation: Installation, shipped: Shipped, gpus: int) -> None:
    """With what is shipped and its component nothing is missing; a pod of an image is tried."""
    shipped.apply("look")
    engine = driver(installation, shipped)
    home = f"/api/v1/namespaces/{shipped.namespace}"
    counted = f"{home}/resourcequotas/training"
    contract.until(lambda: bed.api("GET", counted)["status"].get("used"), "the quota counts")
    folders = {"checkpoint_root": str(installation.shared / "checkpoints")}
    found = list(engine.examine(folders, image=images.PYTHON))
    assert {line.level for line in found} == {Level.OK}, found
    lines = by_check(found)
    assert "v1.37.2" in lines["version"].found
    assert lines["rights"].found.startswith("all that a driver needs")
    assert lines["priority online-high"].found == "pods are let in, value 1000000"
    assert lines[f"volume {CLAIM}"].found == "Bound, ReadWriteMany"
    assert lines["GPUs"].found == f"{gpus} nvidia.com/gpu"
    assert "requests.nvidia.com/gpu 0 of 64" in lines["quota training"].found
    assert lines["pod proxy"].found == "leads to pods"
    assert lines["DNS"].found.startswith("worker-0.ffdl-doctor-")
    assert "placed by our own turnstile" in lines["gang APIs"].found
    assert "and not used" in lines["exec"].found
    for kind in ("services", "secrets"):
        assert bed.api("GET", f"{home}/{kind}")["items"] == [], "it is taken back"
    (pod,) = bed.api("GET", f"{home}/pods")["items"] or [None]
    assert pod is None or pod["metadata"]["deletionTimestamp"]


def test_a_cluster_that_lacks_things(
    bed: Bed, installation: Installation, shipped: Shipped
) -> None:
    """Verbs, a priority class, a claim, a folder on a volume; each line says what to do."""
    shipped.apply()
    rules = shipped.rules()
    shipped.allow(rules, "secrets", "create", may=False)
    missing = Volume(claim="nowhere", path="/mnt/nowhere")
    engine = driver(installation, shipped, volumes=(missing,))
    before = bed.api("GET", f"{CLASSES}/online-high")
    bed.api("DELETE", f"{CLASSES}/online-high")
    try:
        found = list(engine.examine({"checkpoint_root": "/var/lib"}, image=images.PYTHON))
        admin = installation.engine(volumes=(missing,))
        known = by_check(list(admin.examine({}, image=None)))
        plan = replace(installation.plan(admin, "high", gpu=0), priority="online-high")
        with pytest.raises(UserError, match=r"spec\.priority: found 'online-high'"):
            contract.granted(admin, plan)
        problems = admin.check(builders.job(priority="online-high", training=TRAINING))
        end_all(admin)
    finally:
        kept = {key: before[key] for key in ("value", "description") if key in before}
        bed.api("POST", CLASSES, {"metadata": {"name": "online-high"}, **kept})
    lines = by_check(found)
    assert "may not create secrets" in lines["rights"].found
    assert lines["rights"].level is Level.PROBLEM
    assert lines["capacity"].level is Level.WARNING
    assert "no PriorityClass with name online-high" in lines["priority online-high"].found
    assert lines["priority offline-batch"].level is Level.OK
    assert "claims may not be read" in lines["volume nowhere"].found
    assert lines["checkpoint_root"].level is Level.PROBLEM
    assert "not allowed to create secrets" in lines["trial"].found
    assert all(line.do for line in found if line.level is not Level.OK)
    assert known["priority online-high"].found == "there is no such PriorityClass"
    assert known["volume nowhere"].found == "there is no such claim"
    (problem,) = problems
    assert str(problem) == (
        "spec.priority: found 'online-high', allowed: a PriorityClass of the cluster "
        "(offline-batch)"
    )
    assert admin.check(builders.job(training=TRAINING)) == []


def test_a_namespace_that_is_not_there(installation: Installation) -> None:
    found = list(installation.engine(namespace="nowhere").examine({}, image=images.PYTHON))
    assert (found[-1].check, found[-1].level) == ("namespace", Level.PROBLEM)
    assert found[-1].found == "there is no namespace nowhere"


def test_a_node_that_serves_by_day(bed: Bed, installation: Installation) -> None:
    """Its kubelet is asked, where one may, whether it pins CPUs."""
    path = f"/api/v1/nodes/{bed.real_nodes[0]}"
    bed.api("PATCH", path, {"metadata": {"labels": {names.NODE_ROLE: "mixed"}}})
    try:
        found = installation.engine().examine({}, image=None)
    finally:
        bed.api("PATCH", path, {"metadata": {"labels": {names.NODE_ROLE: None}}})
    told = [line.found for line in found if line.check == "online nodes"]
    assert any("CPUs are not pinned (cpuManagerPolicy none)" in text for text in told), told
