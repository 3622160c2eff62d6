"""GPU use through the real ``pynvml``; a library stands in for the driver's (gpu_stub)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.agent import protocol
from ffdl_airflow.agent.sampler import visible_gpus
from tests.conftest import wait_for
from tests.gpu_stub.driver import Gpus

SAMPLE = """
import json, sys
from ffdl_airflow.agent.sampler import GpuSampler
sampler = GpuSampler(sys.argv[1])
for line in sys.stdin:
    print(json.dumps(sampler.percents()), flush=True)
"""


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    made = Gpus(tmp_path / "driver")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(made.folder))
    return made


class Sampling:
    """A sampler in a process that sees the library, as an agent does."""

    def __init__(self, visible: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SAMPLE, visible], stdin=subprocess.PIPE, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        self.said: list[str] = []

    def percents(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        while not (line := self._process.stdout.readline()).startswith("{"):
            self.said.append(line)
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()


def test_each_gpu_is_read_by_index_and_by_uuid(gpus: Gpus) -> None:
    gpus.use(97, 3, 55)
    sampling = Sampling("0,GPU-stub-2")
    assert sampling.percents() == {"0": 97.0, "GPU-stub-2": 55.0}
    gpus.use(0, 3, 100)
    assert sampling.percents() == {"0": 0.0, "GPU-stub-2": 100.0}
    sampling.close()


def test_all_are_those_that_the_driver_knows(gpus: Gpus) -> None:
    gpus.use(10, 20, 30)
    sampling = Sampling("all")
    assert sampling.percents() == {"0": 10.0, "1": 20.0, "2": 30.0}
    sampling.close()


def test_what_cannot_be_read_is_unknown_and_said_once(gpus: Gpus) -> None:
    """cases.md B45: the eyes may get lost; D06: no reading looks like a huge one."""
    gpus.use(90, "lost", 4294967294)
    sampling = Sampling("0,1,2,7")
    for _ in range(3):
        assert sampling.percents() == {"0": 90.0, "1": None, "2": None, "7": None}
    gpus.use(90, 40, 50)
    assert sampling.percents() == {"0": 90.0, "1": 40.0, "2": 50.0, "7": None}
    told = "".join(sampling.said)
    assert told.count("GPU 1 cannot be read") == told.count("GPU 7 is not known") == 1, told
    sampling.close()


def test_without_a_driver_it_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    sampling = Sampling("0")
    assert sampling.percents() == {"0": None}
    assert "GPU utilization is unknown" in "".join(sampling.said)
    sampling.close()


@pytest.mark.parametrize(
    ("given", "outside", "visible"),
    [
        ("0,1", "all", "0,1"),
        ("", "all", ""),
        (None, "all", "all"),
        (None, "GPU-stub-1", "GPU-stub-1"),
        (None, "void", ""),
        (None, "none", ""),
        (None, None, ""),
    ],
)
def test_what_a_replica_sees(
    monkeypatch: pytest.MonkeyPatch, given: str | None, outside: str | None, visible: str
) -> None:
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    if outside is not None:
        monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", outside)
    assert visible_gpus({} if given is None else {"CUDA_VISIBLE_DEVICES": given}) == visible


STEPS = """
import time, ffdl
for step in range(1, 10_000):
    ffdl.progress(step)
    time.sleep(0.05)
"""


def test_a_driver_that_is_stuck_makes_no_agent_silent(gpus: Gpus, make_placement: Any) -> None:
    """While devices are opened, and while they are read: the ranks train on, GPUs are unknown."""
    gpus.use(95, 90)
    gpus.stick(stuck=True)
    placement = make_placement(STEPS, replicas=2, silent_s=1.5)
    for number, replica in enumerate(placement.plan["replicas"]):
        replica["env"]["CUDA_VISIBLE_DEVICES"] = str(number)
    placement.write_plan()
    placement.up()
    placement.go()

    def steps(more: int) -> None:
        step = placement.status()["step"] or 0
        wait_for(lambda: (placement.status()["step"] or 0) >= step + more, 30, placement.story)

    def known(*percents: float | None) -> None:
        def found() -> bool:
            return [rank["gpu_percent"] for rank in placement.status()["ranks"]] == [*percents]

        wait_for(found, 20, placement.story)

    steps(60)  # 3 s, twice as long as a silence that counts
    assert [rank["gpus"] for rank in placement.status()["ranks"]] == [{}, {}]
    gpus.stick(stuck=False)
    known(95.0, 90.0)
    gpus.stick(stuck=True)
    known(None, None)
    steps(60)
    gpus.stick(stuck=False)
    gpus.use(70, 60)
    known(70.0, 60.0)
    assert placement.status()["state"] == protocol.RUNNING
    assert placement.status()["attempt"] == 1


def test_a_gang_tells_the_use_of_every_gpu(gpus: Gpus, make_placement: Any) -> None:
    gpus.use(95, 90, 85, 80)
    watched = {f"worker-{n}": {"min_percent": 30, "cores": 1} for n in range(2)}
    watch = {"resource": "gpu", "window_s": 0.6, "aggregate": "max", "replicas": watched}
    placement = make_placement(STEPS, replicas=2, watch=watch)
    for number, replica in enumerate(placement.plan["replicas"]):
        replica["env"]["CUDA_VISIBLE_DEVICES"] = f"{2 * number},{2 * number + 1}"
    placement.write_plan()
    placement.up()
    placement.go()

    def use(**wanted: Any) -> dict[str, Any] | None:
        found = placement.status().get("utilization") or {}
        return found if all(found.get(key) == value for key, value in wanted.items()) else None

    wait_for(lambda: use(busy=4, idle=0, unknown=0), 20, placement.story)
    ranks = placement.status()["ranks"]
    assert [rank["gpu_percent"] for rank in ranks] == [92.5, 82.5]
    assert ranks[1]["gpus"] == {"2": 85.0, "3": 80.0}
    gpus.use(95, 90, 2, 80)
    found = wait_for(lambda: use(busy=3, idle=1), 20, placement.story)
    (unit,) = found["units"]
    assert (unit["replica"], unit["unit"], unit["percent"]) == ("worker-1", "gpu 2", 2.0)
    gpus.use(95, 90, "lost", 80)
    wait_for(lambda: use(busy=3, idle=0, unknown=1), 20, placement.story)
    assert placement.status()["state"] == protocol.RUNNING
