"""``render`` and ``doctor``: they look ahead, say what to do, and leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import ROOT, Ffdl

POD = {"training": {"framework": "custom", "command": ["true"], "image": "reg.example/t:1"}}
KUBERNETES = {"FFDL_ENGINE": "kubernetes", "FFDL_AGENT_IMAGE": "reg.example/agent:1"}
NO_CLIENT = """
import sys
sys.modules["kubernetes"] = None
from ffdl_airflow.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def manifest(ffdl: Ffdl) -> Path:
    stores = [{"name": "numbers", "path": "numbers"}]
    return ffdl.manifest("count", **POD, dataStores=stores)


def test_render_shows_what_kubernetes_would_get(ffdl: Ffdl, manifest: Path) -> None:
    result = ffdl("render", "-f", manifest, **KUBERNETES, FFDL_NAMESPACE="training")
    assert result.code == 0, result
    documents = list(yaml.safe_load_all(result.out))
    assert [one["kind"] for one in documents] == ["ConfigMap", "Service", "Secret", "Pod", "Pod"]
    assert {one["metadata"]["namespace"] for one in documents} == {"training"}
    plan = documents[2]["stringData"]["plan.json"]
    assert f"{ffdl.home}/cache/numbers/(generation)/data" in plan
    assert not (ffdl.home / "state").exists()
    as_json = ffdl("render", "-f", manifest, "-o", "json", **KUBERNETES)
    assert len(as_json.json) == len(documents)


def test_render_names_the_key_that_jobs_will_have(ffdl: Ffdl, manifest: Path) -> None:
    """Labels carry the installation; a look ahead makes no key, and uses the one that is there."""

    def installation() -> str:
        first = next(yaml.safe_load_all(ffdl("render", "-f", manifest, **KUBERNETES).out))
        return first["metadata"]["labels"]["ffdl.airflow/installation"]

    before = installation()
    (ffdl.home / "state").mkdir()
    (ffdl.home / "state" / "installation_key").write_bytes(b"a key")
    assert installation() != before


def test_render_of_the_local_engine(ffdl: Ffdl) -> None:
    result = ffdl("render", "-f", ffdl.manifest())
    (document,) = yaml.safe_load_all(result.out)
    assert [replica["name"] for replica in document["replicas"]] == ["worker-0", "worker-1"]
    assert not (ffdl.home / "state").exists()


def test_render_of_what_the_engine_cannot_serve(ffdl: Ffdl) -> None:
    result = ffdl("render", "-f", ffdl.manifest(), **KUBERNETES)
    assert result.code == 2
    assert "spec.training.image: found nothing" in result.err
    missing = ffdl("render", "-f", ffdl.manifest(), FFDL_ENGINE="kubernetes")
    assert (missing.code, missing.out) == (2, "")
    assert "agent_image: found nothing" in missing.err


def test_a_missing_client_library_is_one_sentence(ffdl: Ffdl, manifest: Path) -> None:
    """Only what asks the cluster needs it."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", NO_CLIENT, *map(str, words)], cwd=ROOT, text=True,
            env={"PATH": "", **ffdl.env, **KUBERNETES}, capture_output=True, check=False,
        )  # fmt: skip

    refused = run("validate", "-f", manifest)
    assert refused.returncode == 3
    assert "Traceback" not in refused.stderr
    assert "pip install 'ffdl_airflow[kubernetes]'" in refused.stderr
    looked = run("doctor", "--cluster")
    assert looked.returncode == 3
    assert "pip install 'ffdl_airflow[kubernetes]'" in looked.stdout
    assert run("render", "-f", manifest).returncode == 0


def test_doctor_of_an_empty_installation(ffdl: Ffdl) -> None:
    result = ffdl("doctor", "-o", "json")
    assert result.code == 0, result
    assert {row["state"] for row in result.json} == {"ok"}
    found = {row["check"]: row["found"] for row in result.json}
    assert "not made yet" in found["state_dir"]
    assert found["engine"].startswith("local, 4 slots")
    assert not (ffdl.home / "state").exists()


def test_doctor_reads_the_ledger(ffdl: Ffdl) -> None:
    assert ffdl("run", "-f", ffdl.manifest(), "--until", "prefetch").code == 0
    found = {row["check"]: row["found"] for row in ffdl("doctor", "-o", "json").json}
    assert found["ledger"] == "sqlite, 1 job"
    assert found["installation key"] == "there"


def test_doctor_says_what_to_do(ffdl: Ffdl) -> None:
    (ffdl.home / "models").write_text("in the way")
    result = ffdl("doctor", FFDL_SLOTS="9", FFDL_GPUS="2")
    assert result.code == 3
    rows = {line.split()[1]: line for line in result.out.splitlines()}
    assert rows["model_root"].startswith("problem")
    assert "set [ffdl] model_root to a folder" in rows["model_root"]
    assert rows["engine"].startswith("problem")
    assert "at most 2" in rows["engine"]


def test_doctor_of_a_cluster_that_is_away(ffdl: Ffdl) -> None:
    config = ffdl.home / "kubeconfig"
    config.write_text(
        yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": "https://127.0.0.1:9"}}],
            "users": [{"name": "me", "user": {"token": "none"}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        })
    )  # fmt: skip
    result = ffdl("doctor", "--cluster", **KUBERNETES, FFDL_KUBECONFIG=str(config))
    assert result.code == 3
    last = result.out.splitlines()[-1]
    assert last.startswith("problem  cluster")
    assert "cannot be reached" in last


def test_doctor_without_credentials(ffdl: Ffdl) -> None:
    result = ffdl("doctor", "--cluster", **KUBERNETES, FFDL_KUBECONFIG="/nowhere")
    assert result.code == 3
    assert "name a kubeconfig" in result.out.splitlines()[-1]


def test_doctor_of_a_cluster_that_the_engine_does_not_have(ffdl: Ffdl) -> None:
    result = ffdl("doctor", "--cluster")
    assert (result.code, result.out) == (2, "")
    assert "--cluster: found engine local" in result.err
    alone = ffdl("doctor", "--image", "reg.example/t:1")
    assert (alone.code, "--image: found without --cluster" in alone.err) == (2, True)
