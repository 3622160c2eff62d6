"""An installation of ours on the test cluster: a shared volume, the agent's image, an engine."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ffdl_airflow
from ffdl_airflow.agent.bundle import build_zipapp
from ffdl_airflow.core.plan import GangPlan, Places, Timing, build
from ffdl_airflow.engines.base import Ending, EndRequest
from ffdl_airflow.engines.kubernetes.engine import KubernetesEngine
from ffdl_airflow.engines.kubernetes.settings import Credentials, KubernetesSettings, Volume
from ffdl_airflow.testing import builders
from ffdl_airflow.testing.contracts.engine import until
from tests.cluster import images
from tests.cluster.bed import Bed

AGENT_IMAGE = "registry.ffdl.test/ffdl-agent:1"
MOVER_IMAGE = "registry.ffdl.test/ffdl-mover:1"
STEADY = "import time; time.sleep(600)"
KEY = b"a key of this test"
CLAIM = "shared"
GROUP = 1000
"""Under which the replicas run, as the engine has it."""


def load_agent_image(bed: Bed, folder: Path) -> None:
    bed.load_image(agent_image(folder))


def agent_image(folder: Path) -> Path:
    """What docker/agent/ describes: a small system with ``cp``, and the agent."""
    folder.mkdir(parents=True, exist_ok=True)
    agent = Path(build_zipapp(str(folder / "agent.pyz")))
    return images.build_image(AGENT_IMAGE, {"/agent.pyz": agent}, base=images.no_python_image())


def mover_image() -> Path:
    """This package, and the packages of the tests where their volume is mounted."""
    package = Path(ffdl_airflow.__file__).parent
    paths = f"/opt/ffdl:{sysconfig.get_path('purelib')}"
    return images.build_image(MOVER_IMAGE, {"/opt/ffdl/ffdl_airflow": package},
                              env={"PYTHONPATH": paths})  # fmt: skip


@dataclass(frozen=True)
class Installation:
    """One namespace, and a folder that this host and all pods see under the same path."""

    bed: Bed
    namespace: str
    shared: Path

    def make_volume(self) -> None:
        """The shared folder as a volume, and the namespace's claim on it."""
        self.shared.mkdir(parents=True, exist_ok=True)
        self.shared.chmod(0o777)
        self.make_volume_of(CLAIM, self.shared)

    def make_volume_of(self, claim: str, folder: Path) -> None:
        """A volume that stands for a shared file system."""
        name = f"{self.namespace}-{claim}"
        self.bed.api("POST", "/api/v1/persistentvolumes", {
            "metadata": {"name": name},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"],
                     "hostPath": {"path": str(folder)}, "storageClassName": "",
                     "claimRef": {"namespace": self.namespace, "name": claim}},
        })  # fmt: skip
        self.bed.api("POST", f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims", {
            "metadata": {"name": claim},
            "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": name,
                     "resources": {"requests": {"storage": "1Gi"}}},
        })  # fmt: skip

    def share_volume(self) -> None:
        """Let drivers and pods write there, as Kubernetes makes a volume for its ``fsGroup``."""
        for folder in (self.shared, self.shared / "checkpoints"):
            folder.mkdir(exist_ok=True)
            os.chown(folder, -1, GROUP)
            folder.chmod(0o2775)

    def values(self, **changes: str) -> dict[str, str]:
        """Settings of ``[ffdl]``, as text."""
        shared = self.shared
        return {
            "engine": "kubernetes", "namespace": self.namespace, "agent_image": AGENT_IMAGE,
            "kubeconfig": str(self.bed.kubeconfig), "volumes": f"{CLAIM}:{shared}",
            "checkpoint_root": str(shared / "checkpoints"), "cache_dir": str(shared / "cache"),
            "model_root": str(shared / "models"), **changes,
        }  # fmt: skip

    def settings(self, **changes: Any) -> KubernetesSettings:
        """Settings of an engine as the cluster's administrator."""
        usual: dict[str, Any] = {
            "credentials": Credentials(kubeconfig=str(self.bed.kubeconfig)),
            "namespace": self.namespace, "installation_key": KEY, "agent_image": AGENT_IMAGE,
            "volumes": (Volume(claim=CLAIM, path=str(self.shared)),),
        }  # fmt: skip
        return KubernetesSettings(**{**usual, **changes})

    def engine(self, **changes: Any) -> KubernetesEngine:
        """An engine of its own, as another process has it."""
        return KubernetesEngine(self.settings(**changes))

    def plan(  # noqa: PLR0913 - one for each thing that a test wants otherwise
        self, engine: KubernetesEngine, name: str, *, replicas: int = 1, placement: int = 1,
        hold_s: float = 60.0, gpu: int = 1, program: str = STEADY,
    ) -> GangPlan:  # fmt: skip
        """A gang that goes on until it is ended, with a GPU for each replica unless it is said."""
        command = ["python3", "-S", "-c", program]
        training = {"framework": "custom", "command": command, "image": images.PYTHON}
        root = self.shared / name
        job_id = f"{name}-0123456789"
        places = Places(
            checkpoint_dir=str(root), output_dir=str(root / "output"), python="python3",
            log_dir=str(root / "output"), host=engine.host(f"{job_id}/{placement}"),
        )  # fmt: skip
        timing = Timing(heartbeat_s=0.5, silent_s=4.0, hold_s=hold_s, placement_s=60.0, grace_s=1.0)
        job = builders.job(
            training=training, replicas=replicas, resources={"gpu": gpu, "cpu": "200m"},
        )  # fmt: skip
        return build(job, job_id=job_id, placement=placement, places=places, timing=timing,
                     generations={})  # fmt: skip


def end_all(engine: KubernetesEngine) -> None:
    """End whatever is left of an engine's placements."""
    for placement_id in engine.placements():
        request = EndRequest(why="the test is over")
        until(lambda p=placement_id, r=request: not isinstance(engine.end(p, r), Ending),
              f"{placement_id} is ended")  # fmt: skip
