"""Whether a gang is there whose coordinator does not answer: by its pod, and by who let us ask."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ffdl_airflow.core.observation import Presence
from ffdl_airflow.engines.kubernetes.client import AwayError
from ffdl_airflow.engines.kubernetes.engine import KubernetesEngine
from ffdl_airflow.engines.kubernetes.settings import Credentials, KubernetesSettings
from tests.engines.kubernetes.test_losses import PLACEMENT, anchor, pod


class Mute:
    """A gang whose coordinator has not answered for a minute."""

    def __init__(self) -> None:
        self.heard_at = time.monotonic() - 60

    def look(self, after: int, *, doubt: bool) -> tuple[None, Sequence[Any]]:
        return None, ()

    def heed(self, entries: Sequence[Any]) -> None:
        pass


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubernetesEngine:
    """One whose API server refuses connections, with a placed gang that it has seen before."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = f"https://127.0.0.1:{free.getsockname()[1]}"
    named = {"cluster": {"server": server}, "user": {}, "context": {"cluster": "a", "user": "a"}}
    config = {f"{kind}s": [{"name": "a", kind: value}] for kind, value in named.items()}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump({**config, "current-context": "a"}))
    made = KubernetesEngine(
        KubernetesSettings(
            credentials=Credentials(kubeconfig=str(path)), namespace="training",
            installation_key=b"a key", agent_image="agent:1",
        )
    )  # fmt: skip
    placed = anchor()
    placed["data"]["coordinator"] = "worker-0"
    pods = {"worker-0": pod("worker-0", ready="False"), "worker-1": pod("worker-1")}
    monkeypatch.setattr(made.cluster, "anchor", lambda _placement_id: placed)
    monkeypatch.setattr(made.cluster, "pods", lambda _placement_id: pods)
    made._gangs[PLACEMENT] = Mute()  # type: ignore[assignment]
    return made


def test_a_silent_coordinator_that_lets_us_wait_is_gone(engine: KubernetesEngine) -> None:
    assert engine.observe(PLACEMENT, 0).presence is Presence.GONE


def test_nobody_is_gone_because_the_api_server_was_away(engine: KubernetesEngine) -> None:
    """After an outage nodes are called silent before they could say anything."""
    with pytest.raises(AwayError):
        engine.cluster.client.get("/version")
    assert engine.observe(PLACEMENT, 0).presence is Presence.UNKNOWN
    engine.cluster.client.unreachable_at -= 60
    assert engine.observe(PLACEMENT, 0).presence is Presence.GONE
