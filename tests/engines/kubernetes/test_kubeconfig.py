"""What is wrong with a kubeconfig is one error in words, which quotes nothing of it."""

from __future__ import annotations

import json
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from ffdl_airflow.core.errors import InfrastructureError, UserError
from ffdl_airflow.engines.kubernetes import login_plugin
from ffdl_airflow.engines.kubernetes.client import AwayError, KubeClient
from ffdl_airflow.engines.kubernetes.kubeconfig import configuration
from ffdl_airflow.engines.kubernetes.settings import Credentials
from tests.engines.kubernetes import fake_api
from tests.engines.kubernetes.test_client import CONFIG

QUOTED = "t0ken"


def changed(*, user: Any = None, cluster: Any = None, context: Any = None) -> dict[str, Any]:
    found: dict[str, Any] = deepcopy(CONFIG)
    parts = {"users": ("user", user), "clusters": ("cluster", cluster),
             "contexts": ("context", context)}  # fmt: skip
    for part, (key, value) in parts.items():
        if value is not None:
            found[part][0][key] = value
    return found


def refused(source: str, *, context: str | None = None) -> UserError:
    with pytest.raises(UserError) as caught:
        configuration(Credentials(kubeconfig=source, context=context))
    error = caught.value
    assert error.cause.startswith("[ffdl] kubeconfig: found ")
    assert error.cause.endswith("; allowed: a kubeconfig")
    assert "\n" not in error.message
    assert QUOTED not in error.message
    assert error.__suppress_context__  # no log of Airflow's shows what a parser has quoted
    return error


@pytest.mark.parametrize(
    "text", ['{"users": [{"token": "t0ken"', "token: t0ken\n- a: [", "t0ken\n", "- t0ken\n", "\n"]
)
def test_content_that_cannot_be_read_is_not_quoted(text: str) -> None:
    assert "found its content, which is no YAML or JSON mapping" in refused(text).cause


@pytest.mark.parametrize("data", [b"", b"t0ken", b"- t0ken\n", b"a: [t0ken", b"\xff\x00t0ken"])
def test_a_file_that_is_no_mapping_is_named(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(data)
    assert f"found {path}, which is no YAML or JSON mapping" in refused(str(path)).cause


def test_a_path_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert f"found {missing}, which cannot be read: No such file" in refused(str(missing)).cause
    assert f"found {tmp_path}, which cannot be read: Is a dir" in refused(str(tmp_path)).cause
    assert "found its content, which cannot be read" in refused(QUOTED * 100).cause


BAD = [
    (changed(user={"tokenFile": "/t0ken"}), "names a file that cannot be read"),
    (changed(user={"client-certificate-data": "t0ken"}), "no base64"),
    (changed(user={"client-certificate": "/t0ken"}), "names a file that does not exist"),
    (changed(cluster={"server": "https://lab", "certificate-authority-data": "t0ke"}),
     "certificates or key"),
    (changed(cluster={"server": ""}), "server that is no https:// or http:// URL"),
    (changed(cluster={"server": "lab:6443"}), "server that is no https:// or http:// URL"),
    (changed(cluster={"server": "https://lab:t0ken"}), "server that is no https:// or http:// URL"),
    (changed(cluster={}), "server that is no https:// or http:// URL"),
    (changed(context={"cluster": "lab", "user": "t0ken"}), "a user that is not among its users"),
    (changed(context={"cluster": "t0ken"}), "a cluster that is not among its clusters"),
    (changed(user="t0ken"), "an entry in users without name or user"),
    ({**CONFIG, "users": "t0ken"}, "whose users are no list"),
    ({**CONFIG, "users": ["t0ken"]}, "an entry in users without name or user"),
    ({**CONFIG, "current-context": "t0ken"}, "current-context is not among its contexts"),
    ({"token": "t0ken"}, "names no current-context"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "why"), BAD)
def test_what_is_wrong_in_it_is_said(document: Any, why: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(document))
    assert why in refused(str(path)).cause
    assert why in refused(json.dumps(document)).cause


def test_a_context_that_is_wanted_is_named() -> None:
    assert "whose context 'b' is not among" in refused(json.dumps(CONFIG), context="b").cause


def test_files_beside_a_kubeconfig_are_found(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of a file")
    text = yaml.safe_dump(changed(user={"tokenFile": "token"}))
    (tmp_path / "config").write_text(text)
    found = configuration(Credentials(kubeconfig=f"{tmp_path}/missing:{tmp_path}/config"))
    assert found.api_key["BearerToken"] == "Bearer of a file"


def test_nothing_is_set_and_this_is_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UserError, match=r"found nothing, and this is no pod.*set kubeconfig"):
        configuration(Credentials())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(UserError, match="the pod's service account cannot be used"):
        configuration(Credentials())


def with_plugin(code: str, **spec: Any) -> dict[str, Any]:
    spec = {"command": sys.executable, "args": ["-c", code], "apiVersion": "v1", **spec}
    return changed(user={"exec": spec})


def answering(status: Any, before: str = "") -> dict[str, Any]:
    answer = {"apiVersion": "v1", "kind": "ExecCredential", "status": status}
    return with_plugin(f"{before}\nprint({json.dumps(answer)!r})")


def test_a_plugin_gives_a_token() -> None:
    check = "import json, os; assert json.loads(os.environ['KUBERNETES_EXEC_INFO'])['spec']"
    document = answering({"token": "a", "expirationTimestamp": "soon"}, check)
    found = configuration(Credentials(kubeconfig=json.dumps(document)))
    assert found.api_key["BearerToken"] == "Bearer a"


FAILS = [
    with_plugin("import sys; sys.exit('t0ken')"), with_plugin("print('t0ken')"), answering({}),
    answering("t0ken"), answering({"token": 5}), answering({"clientCertificateData": "t0ken"}),
    with_plugin("", command="/no/such/plugin"), with_plugin("", env="t0ken"),
    changed(user={"exec": "t0ken"}),
]  # fmt: skip


@pytest.mark.parametrize("document", FAILS)
def test_a_plugin_that_fails_is_named_and_not_quoted(
    document: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InfrastructureError) as caught:
        configuration(Credentials(kubeconfig=json.dumps(document)))
    assert caught.value.cause.startswith("kubeconfig: the credentials plugin ")
    assert caught.value.cause.endswith(" failed")
    assert QUOTED not in caught.value.message
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_a_plugin_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it has started, which would hold its output open."""
    monkeypatch.setattr(login_plugin, "LIMIT_S", 0.5)
    document = with_plugin("", command="sh", args=["-c", "sleep 100; true"])
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"plugin sh did not answer within 0\.5 s"):
        configuration(Credentials(kubeconfig=json.dumps(document)))
    assert time.monotonic() - began < 20


def test_who_gets_no_new_credentials_is_away(tmp_path: Path) -> None:
    """A driver at work tries again; what it waits for may come back."""
    flag = tmp_path / "flag"
    once = f"import pathlib; pathlib.Path({str(flag)!r}).touch(exist_ok=False)"
    document = answering({"token": "a", "expirationTimestamp": "2020-01-01T00:00:00Z"}, once)
    with fake_api.serving() as api:
        document["clusters"][0]["cluster"]["server"] = api.url
        client = KubeClient(Credentials(kubeconfig=json.dumps(document)))
        with pytest.raises(AwayError, match=r"the credentials plugin .* failed"):
            client.get("/api/v1/namespaces/ml/pods")
        flag.unlink()
        assert client.get("/api/v1/namespaces/ml/pods")["items"] == []
