"""The zipapp is built once; each test gets placements of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_airflow.agent.bundle import build_zipapp
from tests.agent.placement import MakePlacement, Placement


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(build_zipapp(str(tmp_path_factory.mktemp("bundle") / "agent.pyz")))


@pytest.fixture
def make_placement(tmp_path: Path, bundle: Path) -> Iterator[MakePlacement]:
    """``make_placement(trainer, replicas=2, …)``: written, not started."""
    made: list[Placement] = []

    def make(trainer: str | Path, **options: object) -> Placement:
        root = tmp_path / str(len(made))
        root.mkdir()
        python = options.pop("python", None)
        placement = Placement(root, bundle, **({"python": python} if python else {}))
        made.append(placement)
        return placement.prepare(trainer, **options)

    yield make
    for placement in made:
        placement.clean()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB. Needs the right to mount."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "ffdl-test", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no right to mount a small tmpfs here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
