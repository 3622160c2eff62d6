"""Airflow's own connection to a cluster: what of it becomes which setting, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ffdl_airflow.core.errors import SpecError, UserError
from ffdl_airflow.engines.kubernetes.client import KubeClient
from ffdl_airflow.engines.kubernetes.settings import from_values
from ffdl_airflow.hooks.ffdl import FfdlHook
from ffdl_airflow.hooks.kubernetes import cluster_settings, read
from ffdl_airflow.settings import Settings

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
HOST: dict[str, str] = {}
SECRET = "bearer-token-of-the-driver"  # noqa: S105 - of no cluster
CONFIG = {
    "apiVersion": "v1", "kind": "Config", "current-context": "lab",
    "clusters": [{"name": n, "cluster": {"server": f"https://{n}:6443"}} for n in ("lab", "prod")],
    "users": [{"name": "driver", "user": {"token": SECRET}}],
    "contexts": [{"name": n, "context": {"cluster": n, "user": "driver"}} for n in ("lab", "prod")],
}  # fmt: skip


def connect(monkeypatch: pytest.MonkeyPatch, *, name: str = "cluster", type_: str = "kubernetes",
            **extra: Any) -> None:  # fmt: skip
    text = json.dumps({"conn_type": type_, "extra": extra})
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", text)


@pytest.fixture(autouse=True)
def section(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for key, value in {
        "engine": "kubernetes",
        "agent_image": "reg/agent:1",
        "state_dir": str(tmp_path),
        "kubernetes_conn_id": "cluster",
    }.items():
        monkeypatch.setenv(f"AIRFLOW__FFDL__{key.upper()}", value)  # fmt: skip


def settings(**fields: Any) -> Settings:
    return FfdlHook(**fields).settings()


@pytest.mark.parametrize(("extra", "where", "kubeconfig"), [
    ({"in_cluster": True}, HOST, None),
    ({"in_cluster": "True"}, HOST, None),
    ({"extra__kubernetes__in_cluster": True}, HOST, None),
    ({"kube_config_path": "/etc/kube/config"}, POD, "/etc/kube/config"),
    ({"kube_config_path": "/etc/kube/config", "in_cluster": False, "kube_config": ""}, POD,
     "/etc/kube/config"),
    ({"extra__kubernetes__kube_config_path": "/c"}, POD, "/c"),
    ({}, POD, None),
    ({}, HOST, "~/.kube/config"),
    ({}, {"KUBECONFIG": "/a:/b"}, "/a:/b"),
    ({"in_cluster": "false"}, HOST, "~/.kube/config"),
])  # fmt: skip
def test_which_cluster(
    extra: dict[str, Any], where: dict[str, str], kubeconfig: str | None
) -> None:
    assert read(extra, where, conn_id="c").get("kubeconfig") == kubeconfig


@pytest.mark.parametrize("content", [CONFIG, json.dumps(CONFIG), yaml.safe_dump(CONFIG)])
def test_a_kubeconfig_in_the_connection_is_what_the_client_reads(content: Any) -> None:
    extra = {"kube_config": content, "cluster_context": "prod", "namespace": "ml"}
    values = read(extra, POD, conn_id="c")
    found = from_values({**values, "agent_image": "a"}, installation_key=b"k")
    assert KubeClient(found.credentials).host == "https://prod:6443"
    assert (found.credentials.context, found.namespace) == ("prod", "ml")


@pytest.mark.parametrize(("extra", "told"), [
    ({"in_cluster": "maybe"}, "extra.in_cluster: found 'maybe', allowed: true or false"),
    ({"kube_config_path": 7}, "extra.kube_config_path: found int, allowed: text"),
    ({"cluster_context": ["a"]}, "extra.cluster_context: found list, allowed: text"),
    ({"namespace": "A b"}, "extra.namespace: found 'A b', allowed: a DNS label"),
    ({"disable_verify_ssl": True}, "extra.disable_verify_ssl: found true, allowed: false"),
    ({"kube_config": f"{{{SECRET}"}, "extra.kube_config: found something else, allowed: a kubec"),
    ({"kube_config": SECRET}, "extra.kube_config: found something else, allowed: a kubeconfig"),
    ({"kube_config": CONFIG, "kube_config_path": "/c"},
     "extra: found kube_config_path and kube_config, allowed: one of them"),
    ({"in_cluster": True, "kube_config_path": "/c"},
     "extra: found in_cluster and kube_config_path, allowed: one of them"),
])  # fmt: skip
def test_what_is_wrong_is_told_by_field_and_without_secrets(
    extra: dict[str, Any], told: str
) -> None:
    with pytest.raises(SpecError) as caught:
        read(extra, POD, conn_id="cluster")
    assert str(caught.value).startswith("connection cluster is not valid: ")
    assert told in str(caught.value)
    assert SECRET not in str(caught.value)
    assert len(caught.value.problems) == 1


def test_the_hook_reads_it_and_what_we_say_ourselves_counts_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(monkeypatch, kube_config=CONFIG, cluster_context="prod", namespace="airflow")
    found = settings().kubernetes
    assert json.loads(found["kubeconfig"]) == CONFIG
    assert (found["kube_context"], found["namespace"]) == ("prod", "airflow")
    assert "kubernetes_conn_id" not in found
    monkeypatch.setenv("AIRFLOW__FFDL__NAMESPACE", "training")
    connect(monkeypatch, name="ffdl_default", type_="ffdl", kube_context="lab")
    found = settings().kubernetes
    assert (found["kube_context"], found["namespace"]) == ("lab", "training")


def test_our_connection_may_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, name="prod", kube_config_path="/etc/prod")
    connect(monkeypatch, name="ffdl_default", type_="ffdl", kubernetes_conn_id="prod")
    assert settings().kubernetes["kubeconfig"] == "/etc/prod"


def test_our_connection_goes_on_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__FFDL__KUBERNETES_CONN_ID")
    connect(monkeypatch, name="ffdl_default", type_="ffdl", kubeconfig="/etc/own", namespace="ml")
    found = settings().kubernetes
    assert (found["kubeconfig"], found["namespace"]) == ("/etc/own", "ml")


def test_two_clusters_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, in_cluster=True)
    connect(monkeypatch, name="ffdl_default", type_="ffdl", kubeconfig="/etc/own")
    with pytest.raises(SpecError, match="kubernetes_conn_id: found 'cluster' beside kubeconfig"):
        settings()


def test_another_engine_does_not_ask_for_it() -> None:
    """Nobody needs the connection of a cluster for a job on this host."""
    assert "kubeconfig" not in settings(engine="local").kubernetes


def test_a_connection_of_another_type_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="found 'cluster', which Airflow does not have, allowed"):
        settings()
    connect(monkeypatch, type_="http")
    with pytest.raises(UserError, match="found 'cluster', of type http, allowed: a connection of"):
        settings()


def test_the_providers_default_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.delenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", raising=False)
    assert cluster_settings("kubernetes_default") == {}


def test_no_secret_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, kube_config=CONFIG)
    made = settings()
    own = from_values(made.kubernetes, installation_key=b"k")
    assert SECRET not in f"{made!r} {made} {own!r}"


def test_the_command_line_has_no_connections() -> None:
    values = {"agent_image": "a", "kubernetes_conn_id": "cluster"}
    with pytest.raises(SpecError, match="kubernetes_conn_id: found 'cluster', allowed: nothing ou"):
        from_values(values, installation_key=b"k")
    given = from_values({**values, "kubeconfig": "/c"}, installation_key=b"k")
    assert given.credentials.kubeconfig == "/c"
