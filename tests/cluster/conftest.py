"""One cluster for all tests of this folder, and a namespace for each test.

They run with ``--cluster`` only (`make test-cluster`): they need root, Debian packages and programs
that take a while to build.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.airflow import install, start_world
from tests.cluster.bed import Bed
from tests.cluster.installation import Installation, load_agent_image
from tests.cluster.machine import check_machine
from tests.integration.conftest import World

CLUSTER_FIXTURES = {"bed", "crashed_bed"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Who uses the cluster has the marker, and is left out without ``--cluster``.

    Not by ``-m``: another expression on the command line would bring these tests back.
    """
    items.sort(key=lambda item: "crashed_bed" not in fixtures_of(item))
    using = [item for item in items if CLUSTER_FIXTURES & fixtures_of(item)]
    for item in using:
        item.add_marker("cluster")
    if not config.getoption("--cluster"):
        config.hook.pytest_deselected(items=using)
        items[:] = [item for item in items if not CLUSTER_FIXTURES & fixtures_of(item)]


def fixtures_of(item: pytest.Item) -> set[str]:
    return set(getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """The cluster, with two real nodes and without the gate of gang scheduling.

    Whoever breaks a part of it mends it. If a test fails, pytest's folder keeps the cluster's logs.
    """
    if os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.fail("one test cluster runs at a time: no -n here")
    check_machine()
    folder = Path(tempfile.mkdtemp(prefix="ffdl-bed-"))  # short: sockets lie below it
    running = None
    try:
        with Bed.start(folder) as running:
            yield running
    finally:
        failed = running is None or request.session.testsfailed
        if failed and (folder / "logs").is_dir():
            kept = tmp_path_factory.mktemp("bed") / "logs"
            shutil.copytree(folder / "logs", kept)
            print(f"\nlogs of the test cluster: {kept}")
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def priorities(bed: Bed) -> None:
    """The priority classes of docker/kubernetes/."""
    for name, value in (("online-high", 1_000_000), ("offline-batch", 100_000)):
        body = {"metadata": {"name": name}, "value": value}
        bed.api("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)


@pytest.fixture(scope="session")
def agent_image(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> None:
    load_agent_image(bed, tmp_path_factory.mktemp("agent"))


@pytest.fixture
def installation(
    bed: Bed, namespace: str, tmp_path: Path, priorities: None, agent_image: None
) -> Installation:
    """An installation of the test's own."""
    made = Installation(bed, namespace, tmp_path / "shared")
    made.make_volume()
    return made


@pytest.fixture(scope="module")
def airflow_installation(
    bed: Bed, tmp_path_factory: pytest.TempPathFactory, priorities: None, agent_image: None
) -> Iterator[Installation]:
    """The installation that `world` uses."""
    made = install(bed, tmp_path_factory.mktemp("volumes") / "shared")
    yield made
    bed.delete_namespace(made.namespace)


@pytest.fixture(scope="module")
def world(
    airflow_installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """An Airflow for a test file, whose jobs are pods."""
    made = start_world(airflow_installation, tmp_path_factory.mktemp("airflow"))
    yield made
    made.close()


@pytest.fixture
def namespace(bed: Bed) -> Iterator[str]:
    """A namespace of the test's own; it is deleted in the background."""
    name = bed.make_namespace("test")
    yield name
    bed.delete_namespace(name)
