"""The watchdog on real processes: what is idle is warned of, what hangs is ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from installation import Installation, job_id_of, show

from ffdl_airflow.core.events import Event, Kind
from ffdl_airflow.core.lifecycle import Phase
from tests.gpu_stub.driver import Gpus

QUICK_S, CONTRACT_S = 4.0, 60.0
SAMPLE_S = {QUICK_S: 0.5, CONTRACT_S: 2.0}
"""Window → heartbeat, which is the time between two samples."""
WARNINGS = (Kind.WATCHDOG_WARNED, Kind.WATCHDOG_RECOVERED)


class Watched:
    """A job of the trainer ``using.py`` with one rank, and the command that drives it."""

    def __init__(self, home: Path, *words: str, heartbeat_s: float = 0.5, gpus: int = 0,
                 **spec: Any) -> None:  # fmt: skip
        slots = {"gpus": str(gpus), "slots": str(gpus or 4)}
        self.installation = Installation(home, heartbeat_s=str(heartbeat_s), **slots)
        training = {"framework": "custom", "code": str(home / "code"), "entryPoint": "using.py",
                    "args": list(words)}  # fmt: skip
        manifest = self.installation.manifest(
            "using", replicas=gpus or 1, options={}, training=training, **spec
        )
        self.process = self.installation.start("run", "-f", manifest)
        self.job_id = job_id_of(self.process)

    def events(self, *kinds: Kind) -> list[Event]:
        return self.installation.events(self.job_id, *kinds)

    def warning(self) -> str | None:
        """What stands in the job's row."""
        (row,) = self.installation.deps().ledger.jobs(self.job_id)
        return row.summary.get("warning")

    def told(self, command: str, *options: str) -> str:
        return self.installation.run(command, self.job_id, *options).stdout

    def wait(self, phase: Phase) -> list[Event]:
        """To the end of the job; returns its log."""
        out, _ = self.process.communicate(timeout=900)
        assert self.installation.state(self.job_id).phase is phase, out + show(self.events())
        return self.events()

    def begin_of(self, what: str) -> datetime:
        placements = self.installation.settings.state_dir / "jobs" / self.job_id / "placements"
        paths = sorted(placements.glob("*/agents/*/rank-*.log"))
        text = "".join(path.read_text() for path in paths)
        found = re.search(rf"^{what} at=(\S+)", text, re.MULTILINE)
        assert found, text
        return datetime.fromisoformat(found.group(1))

    def close(self) -> None:
        self.installation.close()
        self.process.communicate()


Make = Callable[..., Watched]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Make]:
    made: list[Watched] = []

    def make(*words: str, **options: Any) -> Watched:
        made.append(Watched(tmp_path, *words, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ladder(window_s: float, **more: Any) -> dict[str, Any]:
    """Any use above a twentieth counts as work: the machine may be full."""
    return {"watchdog": {"window": window_s, **more}, "resources": {"minGpuUtilization": 5}}


def test_a_trainer_that_sleeps_is_warned_of(
    watched: Make, wait_until: Callable[..., Any], rounds: Callable[..., float], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    window_s = rounds(QUICK_S, soak=CONTRACT_S)
    awake = tmp_path / "awake"
    words = (f"work:{0.5 * window_s}", f"sleep:{awake}", f"work:{window_s}")
    job = watched(*words, heartbeat_s=SAMPLE_S[window_s], **ladder(window_s, aggregate="max"))
    row = wait_until(job.warning, 8 * window_s + 60)
    assert "CPU use below 5 %" in row, row
    awake.touch()
    events = job.wait(Phase.SUCCEEDED)
    assert job.warning() is None
    changes = [event for event in events if event.kind in WARNINGS]
    assert [event.kind for event in changes] == list(WARNINGS), show(events)
    _check_warning(changes[0], window_s)
    drop = job.begin_of("sleep")
    late, written = changes[0].at - drop, changes[0].recorded_at - drop
    with capsys.disabled():
        print(f"\n  window {window_s:g} s: idle {late.total_seconds():.1f} s after the drop, "
              f"event written after {written.total_seconds():.1f} s")  # fmt: skip
    assert timedelta() < late <= timedelta(seconds=window_s + 2 * SAMPLE_S[window_s] + 10)
    for shown in (job.told("events"), job.told("describe")):
        assert "CPU use below 5 %" in shown, shown


def _check_warning(warned: Event, window_s: float) -> None:
    body = warned.body
    assert body["window_s"] == window_s
    assert (body["resource"], body["aggregate"]) == ("cpu", "max")
    (unit,) = body["units"]
    assert (unit["replica"], unit["rank"], unit["unit"]) == ("worker-0", 0, "cpu")
    assert unit["percent"] < unit["threshold"] == 5
    assert body["since"] == unit["since"]
    assert body["next_step"]


def test_action_stop_saves_and_fails_the_job(watched: Make) -> None:
    spec = ladder(3.0, action="stop", cooldown=3, aggregate="max")
    job = watched("work:5", "sleep:400", **spec)
    events = job.wait(Phase.FAILED)
    story = show(events)
    assert [e.kind for e in events if e.kind in WARNINGS] == [Kind.WATCHDOG_WARNED], story
    (verdict,) = [event.body for event in events if event.kind is Kind.VERDICT]
    assert verdict["class"] == "IDLE", story
    assert "CPU use below 5 %" in verdict["cause"]
    sealed = [event for event in events if event.kind is Kind.CHECKPOINT_SEALED]
    ended = next(event for event in events if event.kind is Kind.ATTEMPT_ENDED)
    assert sealed[-1].body["step"] == ended.body["last_step"], story
    assert "IDLE" in job.told("evidence")


def test_a_trainer_that_spins_without_a_step_hangs(watched: Make) -> None:
    """Full use is no work: the ladder says nothing, the agent ends it."""
    job = watched("work:3", "spin:400", backoffLimit=0,
                  **ladder(4.0, hangFloor=6, hangFactor=10))  # fmt: skip
    events = job.wait(Phase.FAILED)
    story = show(events)
    ended = next(event for event in events if event.kind is Kind.ATTEMPT_ENDED)
    assert ended.body["cause"]["kind"] == "hang", story
    assert "no rank has done a step for" in ended.body["cause"]["text"]
    assert "CPU use is" in ended.body["cause"]["text"]
    assert "spin at=" in ended.body["tail"]
    assert [event.body["class"] for event in events if event.kind is Kind.VERDICT] == ["HANG"]
    assert not [event for event in events if event.kind in WARNINGS], story


def test_a_trainer_that_loads_saves_or_evaluates_is_let_be(
    watched: Make, rounds: Callable[..., float]
) -> None:
    """For longer than the window, the floor of a hang, and both together."""
    other_s = rounds(6.0, soak=90.0)
    limit_s = rounds(3.0, soak=60.0)
    words = [f"loading:{other_s}", "work:4", f"loading:{other_s}", "work:1", f"saving:{other_s}",
             "work:1", f"evaluating:{other_s}", "work:1"]  # fmt: skip
    job = watched(*words, **ladder(limit_s, hangFloor=limit_s, action="stop", cooldown=1))
    events = job.wait(Phase.SUCCEEDED)
    assert not [event for event in events if event.kind in WARNINGS], show(events)
    assert len([event for event in events if event.kind is Kind.GO_INTENDED]) == 1


def test_launch_ends_at_its_deadline_after_a_save(watched: Make) -> None:
    job = watched("work:400", deadlines={"launch": 8})
    events = job.wait(Phase.FAILED)
    story = show(events)
    (verdict,) = [event.body for event in events if event.kind is Kind.VERDICT]
    assert verdict["class"] == "DEADLINE", story
    assert verdict["cause"] == "launch took longer than spec.deadlines.launch, 8 s"
    assert "raise spec.deadlines.launch" in verdict["next_step"]
    assert [event for event in events if event.kind is Kind.CHECKPOINT_SEALED], story
    assert not job.installation.processes()
    assert job.process.returncode == 1


def test_one_idle_gpu_is_warned_of(
    watched: Make, wait_until: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the real pynvml; only the driver's library is a stub."""
    gpus = Gpus(tmp_path / "driver")
    gpus.use(95, 90)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(gpus.folder))
    job = watched("sleep:400", gpus=2, resources={"gpu": 1}, watchdog={"window": 3})

    def busy() -> bool:
        (row,) = job.installation.deps().ledger.jobs(job.job_id)
        return ((row.status or {}).get("utilization") or {}).get("busy") == 2

    wait_until(busy, message=lambda: show(job.events()))
    assert "GPU 92%" in job.told("get", "-o", "wide")
    gpus.use(95, 2)
    (warned,) = wait_until(lambda: job.events(Kind.WATCHDOG_WARNED))
    assert warned.body["resource"] == "gpu"
    (unit,) = warned.body["units"]
    assert (unit["replica"], unit["unit"], unit["threshold"]) == ("worker-1", "gpu 1", 30)
    assert (warned.body["idle"], warned.body["of"]) == (1, 2)
    assert job.told("stop", "--now")
    job.wait(Phase.STOPPED)
