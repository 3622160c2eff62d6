"""An Airflow on this machine whose jobs run as pods of the test cluster."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from ffdl_airflow.examples import prepare_examples
from tests.cluster import images
from tests.cluster.bed import Bed
from tests.cluster.installation import CLAIM, Installation
from tests.integration.conftest import World

HERE = Path(__file__).parent
COUNTING_JOB = HERE.parent / "integration" / "dags" / "counting_job.py"
ENVIRONMENT_CLAIM = "environment"
"""What a user's image would have installed; mounted here, because it has some gigabytes."""


def install(bed: Bed, shared: Path) -> Installation:
    """An installation in a namespace of its own, with what the examples import."""
    made = Installation(bed, bed.make_namespace("airflow"), shared)
    made.make_volume()
    made.make_volume_of(ENVIRONMENT_CLAIM, Path(sys.prefix))
    made.share_volume()
    return made


def start_world(installation: Installation, home: Path) -> World:
    """A real Airflow with the DAGs of `dags/`."""

    def dags(folder: Path) -> None:
        prepare_examples(folder)
        for path in folder.glob("*.py"):
            path.unlink()
        for path in (*(HERE / "dags").glob("*.py"), COUNTING_JOB):
            shutil.copy(path, folder / path.name)

    values = installation.values(
        pod_python=sys.executable,
        volumes=f"{CLAIM}:{installation.shared},{ENVIRONMENT_CLAIM}:{sys.prefix}:ro",
    )
    environ = {f"AIRFLOW__FFDL__{key.upper()}": value for key, value in values.items()}
    environ |= {
        "FFDL_TEST_IMAGE": images.PYTHON, "FFDL_TEST_NAMESPACE": installation.namespace,
        "AIRFLOW_CONN_KUBERNETES_DEFAULT":
            f"kubernetes://?kube_config_path={installation.bed.kubeconfig}",
    }  # fmt: skip
    world = World(home, prepare=dags, environ=environ, hidden=values)
    world.server.start()
    return world
