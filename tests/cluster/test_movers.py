"""Data work as Jobs beside the volumes: what they make, what they say, and what is left of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.core.events import Kind
from ffdl_airflow.engines.kubernetes import names
from ffdl_airflow.stages.wishes import stop
from ffdl_airflow.stores.cache import GenerationCache
from tests.cluster.airflow import ENVIRONMENT_CLAIM
from tests.cluster.bed import Bed
from tests.cluster.installation import CLAIM, MOVER_IMAGE, Installation, mover_image
from tests.cluster.jobs import Lab
from tests.cluster.processes import wait_for

LOCAL = "an own ledger's cache"


@pytest.fixture
def lab(bed: Bed, installation: Installation, tmp_path: Path) -> Iterator[Lab]:
    bed.load_image(mover_image())
    installation.make_volume_of(ENVIRONMENT_CLAIM, Path(sys.prefix))
    volumes = f"{CLAIM}:{installation.shared},{ENVIRONMENT_CLAIM}:{sys.prefix}:ro"
    made = Lab(installation, tmp_path / "lab", mover_image=MOVER_IMAGE)
    made.values["volumes"] = volumes
    yield made
    made.close()


def data(lab: Lab, count: int, size: int = 1000) -> Path:
    folder = lab.installation.shared / "source"
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:05d}.bin").write_bytes(number.to_bytes(4, "big") * (size // 4))
    return folder


def stores(folder: Path) -> list[dict[str, Any]]:
    return [{"name": "train", "path": str(folder)}]


def jobs(lab: Lab) -> list[dict[str, Any]]:
    path = f"/apis/batch/v1/namespaces/{lab.namespace}/jobs"
    return list(lab.bed.api("GET", path)["items"])


def pods(lab: Lab) -> list[dict[str, Any]]:
    found = lab.bed.api("GET", f"/api/v1/namespaces/{lab.namespace}/pods",
                        params={"labelSelector": names.MOVER})["items"]  # fmt: skip
    return list(found)


def test_data_and_model_are_moved_by_jobs(lab: Lab, tmp_path: Path) -> None:
    """The generation and the version are those that this host would make, and code stays here."""
    folder = data(lab, 50)
    work = lab.train("moved", steps=20, gpu=0, dataStores=stores(folder), model={"name": "moved"})
    work.require_good_end(steps=20)
    (ready,) = work.events(Kind.DATA_READY)
    here = GenerationCache(tmp_path / "here")
    source = {"kind": "local", "path": str(folder)}
    made = wait_for(lambda: (s := here.ensure("train", source, job="here")).generation and s, LOCAL)
    assert ready.body["stores"]["train"]["generation"] == made.generation
    (registered,) = work.events(Kind.MODEL_REGISTERED)
    assert (Path(registered.body["path"]) / "MODEL.json").is_file()
    wait_for(lambda: [one["status"].get("succeeded") for one in jobs(lab)] == [1, 1], "two Jobs")
    assert {pod["status"]["phase"] for pod in pods(lab)} == {"Succeeded"}
    logs = work.deps.engine.logs(work.job_id)
    assert [(log.label, log.attempt) for log in logs] == [("0", 1), ("1", 1)]
    assert all(Path(log.path).read_text() for log in logs)


def test_a_mover_that_is_killed_goes_on_where_it_was(lab: Lab) -> None:
    folder = data(lab, 4000, 20_000)
    work = lab.train("killed", steps=20, gpu=0, dataStores=stores(folder))
    parts = lab.installation.shared / "cache" / "train" / "tmp"
    work.until(lambda: len(list(parts.glob("*/build/**/*.bin"))) > 50, "it has begun")
    (pod,) = pods(lab)
    lab.bed.api("DELETE", f"/api/v1/namespaces/{lab.namespace}/pods/{pod['metadata']['name']}",
                {"gracePeriodSeconds": 0})  # fmt: skip
    work.require_good_end(steps=20)
    assert not work.events(Kind.PREFETCH_FAILED), work.log()


def test_what_cannot_run_says_why_and_is_taken_back(lab: Lab) -> None:
    """An image without a possible name fails the job; one that does not come is waited for."""
    folder = data(lab, 3)
    wrong = lab.train("wrong", deps=lab.deps(mover_image="No-Name"), gpu=0, backoffLimit=0,
                      dataStores=stores(folder))  # fmt: skip
    wrong.join()
    failed = wrong.events(Kind.PREFETCH_FAILED)
    assert "No-Name is no name of an image" in str(failed[0].body), wrong.log()
    absent = lab.deps(mover_image="registry.ffdl.test/absent:1", cache_dir=f"{folder}-cache")
    waits = lab.train("waits", deps=absent, gpu=0, dataStores=stores(folder))
    says = "image registry.ffdl.test/absent:1 cannot be pulled yet"
    waits.until(lambda: says in waits.waits_for, f"it says {says!r}: {waits.waits_for}")
    stop(waits.deps, waits.job_id, mode="now", why="nobody wants it", by="test")
    waits.join()
    assert waits.state.phase == "Stopped"
    wait_for(lambda: not pods(lab), lambda: f"left: {pods(lab)}")
