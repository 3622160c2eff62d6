"""Credentials as the client reads them: from a file, or from content that nobody gets to see."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ffdl_airflow.engines.kubernetes.client import AwayError, KubeClient
from ffdl_airflow.engines.kubernetes.settings import Credentials
from tests.cluster.certs import Authority
from tests.engines.kubernetes import fake_api
from tests.engines.kubernetes.fake_api import FakeApi

CONFIG = {
    "apiVersion": "v1", "kind": "Config", "current-context": "lab",
    "clusters": [{"name": "lab", "cluster": {"server": "https://lab:6443"}}],
    "users": [{"name": "driver", "user": {"token": "t0ken"}}],
    "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "driver"}}],
}  # fmt: skip


@pytest.mark.parametrize("text", [json.dumps(CONFIG), yaml.safe_dump(CONFIG), ""])
def test_a_kubeconfig_is_a_file_or_its_content(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    client = KubeClient(Credentials(kubeconfig=text or str(file)))
    assert client.host == "https://lab:6443"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def secured(authority: Authority) -> Iterator[FakeApi]:
    """An API server that lets in whoever has a certificate of the authority."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority.issue("server", user="server", hosts=["127.0.0.1"]))
    tls.load_verify_locations(authority.ca_file)
    tls.verify_mode = ssl.CERT_REQUIRED
    with fake_api.serving(tls) as made:
        yield made


def client_of(api: FakeApi, authority: Authority, **cluster: Any) -> KubeClient:
    certificate, key = authority.issue("driver", user="driver")
    here = {"server": f"https://127.0.0.1:{api.server_port}", **cluster}
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    document = {
        **CONFIG, "clusters": [{"name": "lab", "cluster": here}],
        "users": [{"name": "driver", "user": user}],
    }  # fmt: skip
    return KubeClient(Credentials(kubeconfig=json.dumps(document)))


POD = "/api/v1/namespaces/ml/pods/p"


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
@pytest.mark.parametrize("how", ["authority", "insecure", "by another name"])
def test_requests_and_commands_go_over_tls(
    secured: FakeApi, authority: Authority, how: str
) -> None:
    cluster: dict[str, Any] = {"certificate-authority": str(authority.ca_file)}
    if how == "insecure":
        cluster = {"insecure-skip-tls-verify": True}
    elif how == "by another name":
        cluster |= {"tls-server-name": "127.0.0.1"}
    client = client_of(secured, authority, **cluster)
    secured.executed = lambda *call: ("x" * 50_000, "", 0)
    assert client.get("/api/v1/namespaces/ml/pods")["items"] == []
    done = client.execute(POD, ["true"], container="trainer", timeout_s=5)
    assert (done.stdout, done.failed) == ("x" * 50_000, None)


def test_an_api_server_of_another_authority_is_not_believed(
    secured: FakeApi, authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    client = client_of(secured, authority, **{"certificate-authority": str(other.ca_file)})
    with pytest.raises(AwayError, match="certificate verify failed"):
        client.get("/version")
    with pytest.raises(AwayError, match="certificate verify failed"):
        client.execute(POD, ["true"], container="trainer", timeout_s=5)
