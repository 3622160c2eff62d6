"""The engine contract on real pods, each of which has one of four GPUs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from ffdl_airflow.core.plan import GangPlan
from ffdl_airflow.engines.kubernetes import names
from ffdl_airflow.engines.kubernetes.engine import KubernetesEngine
from ffdl_airflow.testing.contracts.engine import SLOTS, EngineContract, Spoil
from tests.cluster.bed import Bed
from tests.cluster.installation import Installation, end_all

Plan = Callable[..., GangPlan]


@pytest.fixture(scope="module", autouse=True)
def four_gpus(bed: Bed) -> Iterator[None]:
    first, second = bed.real_nodes
    bed.set_gpus(first, SLOTS // 2)
    bed.set_gpus(second, SLOTS - SLOTS // 2)
    yield
    for node in bed.real_nodes:
        bed.set_gpus(node, 0)


class TestKubernetes(EngineContract):
    """Real agents in real pods on two nodes."""

    def has_its_places(self, placed: Mapping[str, Any], gang: GangPlan) -> None:
        assert set(placed["nodes"]) == {replica.name for replica in gang.replicas}
        assert None not in placed["nodes"].values()

    @pytest.fixture
    def engine(self, installation: Installation) -> Iterator[KubernetesEngine]:
        made = installation.engine()
        yield made
        end_all(made)

    @pytest.fixture
    def reopened(self, installation: Installation) -> KubernetesEngine:
        return installation.engine()

    @pytest.fixture
    def plan(self, installation: Installation, engine: KubernetesEngine) -> Plan:
        return lambda name, **how: installation.plan(engine, name, **how)

    @pytest.fixture
    def lose(self, installation: Installation, engine: KubernetesEngine) -> Spoil:
        def kill_agents(placement_id: str) -> None:
            for pod in engine.cluster.pods(placement_id):
                name = names.pod_name(placement_id, pod)
                where = f"{installation.namespace}/{name}"
                for pid in installation.bed.container_pids(where, "trainer"):
                    os.kill(pid, signal.SIGKILL)

        return kill_agents

    @pytest.fixture
    def expire(self) -> Spoil:
        return lambda placement_id: None
