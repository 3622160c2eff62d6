"""The newest checkpoint is damaged: the next older one is used, and what was lost is an event."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installation import Installation, job_id_of, show

from ffdl_airflow.core.events import Kind
from ffdl_airflow.stages import wishes
from tests.trainers.counting import weights_after

STEPS, EVERY = 150, 10


def truncate(folder: Path) -> None:
    file = folder / "weights.txt"
    file.write_bytes(file.read_bytes()[:-1])


def flip_a_bit(folder: Path) -> None:
    file = folder / "weights.txt"
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)


def remove_a_file(folder: Path) -> None:
    (folder / "weights.txt").unlink()


def remove_the_manifest(folder: Path) -> None:
    (folder / "MANIFEST.json").unlink()


def remove_all(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


DAMAGES = {
    truncate: "bytes, not",
    flip_a_bit: "another SHA-256",
    remove_a_file: "is missing",
    remove_the_manifest: "MANIFEST.json",
    remove_all: "the directory is gone",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_the_next_older_one_is_used(
    installation: Installation, wait_until: Callable[..., Any], damage: Callable[[Path], None]
) -> None:
    options = {"steps": STEPS, "every": EVERY, "step-delay": 0.03}
    process = installation.start(
        "run", "-f", installation.manifest("damage", replicas=1, options=options)
    )
    job_id = job_id_of(process)
    sealed = wait_until(
        lambda: [e.body for e in installation.events(job_id, Kind.CHECKPOINT_SEALED)][2:],
        message="three checkpoints",
    )
    assert sealed
    wishes.stop(installation.deps(), job_id, mode="now", by="test")
    process.communicate(timeout=60)
    assert process.returncode == 1
    newest = installation.events(job_id, Kind.CHECKPOINT_SEALED)[-1].body
    damage(Path(newest["path"]))
    done = installation.run("run", "--job", job_id)
    story = show(installation.events(job_id))
    assert done.returncode == 0, done.stdout + story
    (refused,) = installation.events(job_id, Kind.CHECKPOINT_REFUSED)
    assert refused.body["step"] == newest["step"], story
    assert DAMAGES[damage] in refused.body["reason"], story
    assert refused.body["lost_steps"] == EVERY, story
    resume = installation.events(job_id, Kind.GO_INTENDED)[-1].body["resume"]
    assert resume["step"] == newest["step"] - EVERY, story
    again = [step for attempt, step in installation.steps(job_id) if attempt == 2]
    assert again[0] == resume["step"] + 1
    assert installation.weights(job_id) == weights_after(STEPS)
