"""The engine contract on real pods, each of which has one of four GPUs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.core.plan import GangPlan
from ffdl_airflow.engines.base import Granted, Over, Waiting
from ffdl_airflow.engines.kubernetes import names
from ffdl_airflow.engines.kubernetes.engine import KubernetesEngine
from ffdl_airflow.testing import builders
from ffdl_airflow.testing.contracts.engine import SLOTS, Count, EngineContract, Spoil
from tests.cluster.api_client import ApiError
from tests.cluster.bed import Bed
from tests.cluster.cleanup import start_time
from tests.cluster.installation import STEADY, Installation, end_all
from tests.cluster.places import BedError

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
        def make(name: str, *, deaf: bool = False, **how: Any) -> GangPlan:
            program = builders.DEAF if deaf else STEADY
            return installation.plan(engine, name, program=program, **how)

        return make

    @pytest.fixture
    def left(self, installation: Installation, engine: KubernetesEngine) -> Count:
        """Also of pods that are gone: what was seen of them before is remembered."""
        seen: dict[int, Any] = {}

        def count(placement_id: str) -> int:
            for replica in engine.cluster.pods(placement_id):
                name = f"{installation.namespace}/{names.pod_name(placement_id, replica)}"
                with suppress(BedError, ApiError):
                    seen.update((pid, start_time(pid)) for pid in
                                installation.bed.container_pids(name, "trainer"))  # fmt: skip
            return sum(began is not None and start_time(pid) == began
                       for pid, began in seen.items())  # fmt: skip

        return count

    @pytest.fixture
    def elsewhere(self, bed: Bed, tmp_path: Path) -> Iterator[KubernetesEngine]:
        """In a namespace of its own with folders of its own, on the same nodes."""
        other = Installation(bed, bed.make_namespace("test"), tmp_path / "elsewhere")
        other.make_volume()

        class Elsewhere(KubernetesEngine):
            """Where a plan's folders lie is the installation's: one job id, two places."""

            def reserve(self, plan: GangPlan) -> Granted | Waiting | Over:
                name = plan.job_id.removesuffix("-0123456789")
                return super().reserve(other.plan(self, name, replicas=len(plan.replicas)))

        made = Elsewhere(other.settings(installation_key=b"another key"))
        yield made
        end_all(made)
        bed.delete_namespace(other.namespace)

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
