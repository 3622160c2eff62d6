"""Disks that are full: nothing that was acknowledged is lost, and the message says what to do."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from installation import Installation, job_id_of, show

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.events import Event, Kind
from tests.trainers.counting import weights_after

STEPS, EVERY = 60, 10
MIB = 2**20
ROOM_MIB = 96
"""Of the small disk: a start asks for 64 MiB (``plan.MIN_FREE_BYTES``)."""


class SmallDisk:
    """A file system of its own that can be filled to the last byte and emptied again."""

    def __init__(self, path: Path, size_mib: int) -> None:
        self.path = path
        self._ballast = path / "ballast"
        path.mkdir()
        options = ["-t", "tmpfs", "-o", f"size={size_mib}m,mode=700", "ffdl-test", str(path)]
        done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            for size in (MIB, 4096, 1):
                try:
                    while file.write(b"\0" * size):
                        pass
                except OSError:
                    continue

    def make_room(self) -> None:
        self._ballast.unlink()

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    made = SmallDisk(tmp_path / "small", ROOM_MIB)
    yield made
    made.close()


def start(installation: Installation, **spec: Any) -> tuple[subprocess.Popen[str], str]:
    """A job of one rank with checkpoints of 1 MiB."""
    options = {"steps": STEPS, "every": EVERY, "step-delay": 0.05, "bytes": MIB}
    manifest = installation.manifest("full", replicas=1, options=options, **spec)
    process = installation.start("run", "-f", manifest)
    return process, job_id_of(process)


def newest(installation: Installation, job_id: str) -> Event:
    return installation.events(job_id, Kind.CHECKPOINT_SEALED)[-1]


def attempt_log(installation: Installation, job_id: str, attempt: int) -> str:
    logs = installation.deps().engine.logs(job_id)  # type: ignore[attr-defined]
    return next(Path(log.path).read_text() for log in logs if log.attempt == attempt)


def goes_on_to_the_right_weights(installation: Installation, job_id: str) -> None:
    """``run --job`` resumes from the newest checkpoint that was acknowledged."""
    step = newest(installation, job_id).body["step"]
    last = installation.state(job_id).attempt
    done = installation.run("run", "--job", job_id)
    story = show(installation.events(job_id))
    assert done.returncode == 0, done.stdout + story
    first = next(found for attempt, found in installation.steps(job_id) if attempt > last)
    assert first == step + 1, story
    assert installation.weights(job_id) == weights_after(STEPS), story


def test_full_while_a_checkpoint_is_written(
    installation: Installation, disk: SmallDisk, wait_until: Callable[..., Any]
) -> None:
    installation.values["checkpoint_root"] = str(disk.path / "checkpoints")
    process, job_id = start(installation, backoffLimit=0)
    wait_until(lambda: installation.events(job_id, Kind.CHECKPOINT_SEALED), message="a checkpoint")
    disk.fill()
    out, _ = process.communicate(timeout=60)
    events = installation.events(job_id)
    assert process.returncode == 1, out + show(events)
    log = attempt_log(installation, job_id, 1)
    assert "CheckpointError: checkpoint of step" in log
    (verdict,) = installation.events(job_id, Kind.VERDICT)
    assert verdict.body["class"] == "DISK_FULL", show(events)
    assert "No space left on device" in verdict.body["cause"]
    assert str(disk.path) in verdict.body["cause"]
    assert "make room" in verdict.body["next_step"]
    assert "make room" in out
    assert protocol.check_checkpoint(newest(installation, job_id).body["path"])[1] is None
    assert installation.processes() == []
    disk.make_room()
    goes_on_to_the_right_weights(installation, job_id)


def test_full_when_an_attempt_starts(
    installation: Installation, disk: SmallDisk, wait_until: Callable[..., Any]
) -> None:
    """A rank is killed while the disk is full: the journal has kept room for that."""
    installation.values["checkpoint_root"] = str(disk.path / "checkpoints")
    process, job_id = start(installation, backoffLimit=0)
    wait_until(lambda: installation.events(job_id, Kind.CHECKPOINT_SEALED), message="a checkpoint")
    disk.fill()
    installation.ranks(job_id)[0].kill()
    out, _ = process.communicate(timeout=60)
    story = show(installation.events(job_id))
    assert process.returncode == 1, out + story
    first, second = installation.events(job_id, Kind.VERDICT)
    assert first.body["class"] == "KILLED_OUTSIDE", story
    assert (second.body["class"], second.body["ran"]) == ("DISK_FULL", False), story
    assert "bytes free, 67108864 are needed" in second.body["cause"]
    disk.make_room()
    goes_on_to_the_right_weights(installation, job_id)


def test_a_journal_that_cannot_be_written(
    installation: Installation, wait_until: Callable[..., Any]
) -> None:
    """The trainer is not told that its checkpoint is safe before that is written down."""
    process, job_id = start(installation)
    wait_until(lambda: installation.events(job_id, Kind.CHECKPOINT_SEALED), message="a checkpoint")
    agent = installation.agents(job_id)["worker-0"]
    journal = installation.home / "state" / "checkpoints" / job_id / "journal" / "1.jsonl"
    known, before = journal.read_bytes(), agent.rlimit(resource.RLIMIT_FSIZE)
    agent.rlimit(resource.RLIMIT_FSIZE, (len(known), before[1]))
    warned = wait_until(lambda: _warnings(installation, job_id), message="a warning")
    known = journal.read_bytes()
    assert "wait in memory" in warned[0]
    seen = protocol.read_journal(str(journal), 0)
    sealed = max(e["body"]["step"] for e in seen if e["kind"] == protocol.J_CHECKPOINT)
    next_one = sealed + EVERY
    wait_until(lambda: installation.steps(job_id)[-1][1] == next_one, message=f"step {next_one}")
    assert newest(installation, job_id).body["step"] <= sealed
    agent.rlimit(resource.RLIMIT_FSIZE, before)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out + show(installation.events(job_id))
    assert journal.read_bytes().startswith(known)
    entries = protocol.read_journal(str(journal), 0)
    assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
    assert installation.weights(job_id) == weights_after(STEPS)
    assert [step for _, step in installation.steps(job_id)] == list(range(1, STEPS + 1))


def _warnings(installation: Installation, job_id: str) -> list[str]:
    status = installation.deps().engine.observe(f"{job_id}/1", 0).status or {}
    return list(status.get("warnings") or [])


def test_a_full_disk_under_the_ledger(
    installation: Installation, disk: SmallDisk, wait_until: Callable[..., Any]
) -> None:
    """The driver ends with 3 and says what to do; the gang goes on and nothing is lost."""
    installation.values["ledger_url"] = f"sqlite:///{disk.path / 'ledger.db'}"
    process, job_id = start(installation)
    wait_until(lambda: installation.events(job_id, Kind.CHECKPOINT_SEALED), message="a checkpoint")
    acknowledged = installation.events(job_id)
    disk.fill()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 3, out
    assert "make room on the ledger's disk" in out, out
    assert "running gangs go on" in out
    shown = installation.run("get", job_id)
    assert shown.returncode in (0, 3), shown.stdout
    wait_until(lambda: not installation.processes(), message="the gang has ended by itself")
    disk.make_room()
    done = installation.run("run", "--job", job_id)
    events = installation.events(job_id)
    story = show(events)
    assert done.returncode == 0, done.stdout + story
    assert events[: len(acknowledged)] == acknowledged, story
    (running,), (ended,) = (
        [event for event in events if event.kind is kind]
        for kind in (Kind.RUNNING, Kind.ATTEMPT_ENDED)
    )
    assert ended.body["ok"]
    assert ended.at < ended.recorded_at
    assert STEPS * 0.05 <= (ended.at - running.at).total_seconds() < 30, story
    sealed = [e.body["step"] for e in events if e.kind is Kind.CHECKPOINT_SEALED]
    assert sealed == list(range(EVERY, STEPS + 1, EVERY)), story
    assert installation.weights(job_id) == weights_after(STEPS)


def test_a_full_disk_under_the_state(
    installation: Installation, disk: SmallDisk, wait_until: Callable[..., Any]
) -> None:
    """Nothing can be placed there: exit code 3, no process, and after room was made it runs."""
    installation.values["state_dir"] = str(disk.path / "state")
    installation.values["ledger_url"] = f"sqlite:///{installation.home / 'ledger.db'}"
    for name in ("checkpoint_root", "cache_dir", "model_root"):
        installation.values[name] = str(installation.home / name)
    options = {"steps": STEPS, "every": EVERY}
    manifest = installation.manifest("full", replicas=1, options=options)
    assert installation.run("run", "-f", manifest, "--until", "prefetch").returncode == 0
    (job_id,) = installation.jobs()
    disk.fill()
    done = installation.run("run", "--job", job_id)
    assert done.returncode == 3, done.stdout
    assert "make room" in done.stdout, done.stdout
    assert installation.processes() == []
    disk.make_room()
    done = installation.run("run", "--job", job_id)
    assert done.returncode == 0, done.stdout + show(installation.events(job_id))
    assert installation.weights(job_id) == weights_after(STEPS)


def test_a_gang_can_be_ended_without_a_byte_of_room(
    installation: Installation, disk: SmallDisk, wait_until: Callable[..., Any]
) -> None:
    """The fence closes and the processes go; the rest is done when there is room."""
    installation.values["state_dir"] = str(disk.path / "state")
    installation.values["ledger_url"] = f"sqlite:///{installation.home / 'ledger.db'}"
    for name in ("checkpoint_root", "cache_dir", "model_root"):
        installation.values[name] = str(installation.home / name)
    process, job_id = start(installation)
    wait_until(lambda: installation.events(job_id, Kind.RUNNING), message="running")
    disk.fill()
    os.killpg(process.pid, 9)
    process.communicate()
    stopped = installation.run("stop", job_id, "--now")
    assert stopped.returncode == 3, stopped.stdout
    assert "make room there" in stopped.stdout
    assert installation.processes() == []
    disk.make_room()
    stopped = installation.run("stop", job_id, "--now")
    assert stopped.returncode == 0, stopped.stdout
    assert installation.state(job_id).phase == "Stopped"
    assert installation.inventory().free == 4
