"""ffdl.py, the trainer's side: nothing outside a job, cheap inside, never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def run(source: str, tmp_path: Path, **env: str) -> list[str]:
    """Output lines of a fresh process outside a job, unless ``env`` says otherwise."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FFDL_")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={**clean, "PYTHONPATH": str(ROOT), **env}, cwd=tmp_path, timeout=60,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_outside_a_job_all_of_it_works_and_does_nothing(tmp_path):
    lines = run(
        """
        import ffdl
        ffdl.progress(1, loss=0.5, samples=32, accuracy=object())
        with ffdl.doing("evaluating"):
            ffdl.progress(2)
        with ffdl.checkpoint(2) as path:
            (path / "weights").write_text("x")
        print(path.exists(), ffdl.resume(), ffdl.should_save(), ffdl.output_dir())
        """,
        tmp_path,
    )
    assert lines == ["False None False ."]
    assert list(tmp_path.iterdir()) == []


def test_where_data_and_results_lie(tmp_path):
    source = """
        import ffdl
        print(ffdl.data("my-digits"), ffdl.output_dir())
        try:
            ffdl.data("others")
        except LookupError as error:
            print(error.args[0])
        """
    first, second = run(source, tmp_path, FFDL_DATA_MY_DIGITS="/data/d", FFDL_OUTPUT_DIR="/out")
    assert first == "/data/d /out"
    assert "FFDL_DATA_OTHERS" in second


@pytest.mark.parametrize("name", ["step-000000000042", "elsewhere"])
def test_resume_knows_path_and_step(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "MANIFEST.json").write_text('{"step": 42}')
    source = "import ffdl; r = ffdl.resume(); print(r.step, r.path)"
    assert run(source, tmp_path, FFDL_RESUME_FROM=str(folder)) == [f"42 {folder}"]


@pytest.mark.parametrize(
    ("env", "rank"),
    [({}, "0"), ({"RANK": "2", "PMI_RANK": "5"}, "2"), ({"OMPI_COMM_WORLD_RANK": "3"}, "3"),
     ({"PMI_RANK": "4"}, "4")],
)  # fmt: skip
def test_a_rank_is_known_by_whatever_has_started_it(tmp_path, env, rank):
    """The agent and torchrun, mpirun of Open MPI, mpirun of MPICH and Intel MPI."""
    assert run("import ffdl; print(ffdl._rank())", tmp_path, **env) == [rank]


def test_without_its_agent_the_trainer_goes_on(tmp_path):
    source = """
        import ffdl, time
        began = time.monotonic()
        for step in range(1000):
            ffdl.progress(step)
            ffdl.should_save()
        try:
            with ffdl.checkpoint(1) as path:
                print("not reached")
        except ffdl.CheckpointError as error:
            print(error)
        print(time.monotonic() - began < 1)
        """
    lines = run(source, tmp_path, FFDL_AGENT_SOCK="/nowhere", FFDL_CHECKPOINT_DIR=str(tmp_path))
    assert lines == ["checkpoint of step 1: the job's agent cannot be reached", "True"]


def test_an_agent_that_reads_nothing_does_not_block_the_trainer(tmp_path):
    """The socket's buffer is full after some hundred messages."""
    source = """
        import socket, ffdl, time
        ffdl.SEND_EVERY_S = 0
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("sock")
        listener.listen()
        began = time.monotonic()
        for step in range(20000):
            ffdl.progress(step, text="not a number", loss=float("nan"))
        print(time.monotonic() - began < 20, len(ffdl._link._unsent) < 1 << 19)
        """
    assert run(source, tmp_path, FFDL_AGENT_SOCK="sock") == ["True True"]


def test_progress_is_cheap(make_placement):
    """Measured inside a job; the aim is 5 microseconds, the bound leaves room for a busy host."""
    trainer = """
import time
import ffdl
ffdl.progress(0)
times = []
for turn in range(20):
    began = time.perf_counter()
    for step in range(1000):
        ffdl.progress(step, loss=0.5, samples=32)
    times.append((time.perf_counter() - began) / 1000)
began = time.perf_counter()
for step in range(1000):
    ffdl.should_save()
print(min(times), (time.perf_counter() - began) / 1000)
"""
    placement = make_placement(trainer).up()
    placement.go()
    body = placement.ended()
    assert body["last_step"] == 999, "the newest is sent at exit"
    progress_s, should_save_s = map(float, placement.rank_log().split())
    assert progress_s < 10e-6
    assert should_save_s < 50e-6


def test_a_forked_child_talks_for_itself(make_placement):
    trainer = """
import os, time
import ffdl
ffdl.progress(3, loss=1)
pid = os.fork()
if pid == 0:
    time.sleep(0.55)
    ffdl.progress(9)
    ffdl.should_save()
    with ffdl.checkpoint(9) as path:
        (path / "weights").write_text("x")
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
ffdl.progress(10)
with ffdl.checkpoint(10) as path:
    (path / "weights").write_text("x")
"""
    placement = make_placement(trainer).up()
    placement.go()
    body = placement.ended()
    assert body["ok"], placement.story()
    assert (body["last_step"], body["last_checkpoint"]) == (10, 10)
    assert [e["body"]["step"] for e in placement.journal("CheckpointSealed")] == [9, 10]


def test_a_process_of_an_older_attempt_is_not_listened_to(make_placement):
    trainer = """
import os, time
os.environ["FFDL_ATTEMPT"] = "0"
import ffdl
ffdl.progress(77)
try:
    with ffdl.checkpoint(77) as path:
        (path / "weights").write_text("x")
except ffdl.CheckpointError as error:
    print(error)
"""
    placement = make_placement(trainer).up()
    placement.go()
    body = placement.ended()
    assert body["last_step"] is None
    assert "agent" in placement.rank_log()
    assert placement.journal("CheckpointSealed") == []
