"""Detached work: claims, answers, locks, progress; the processes are in test_processes.py."""

import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ffdl_airflow.agent import detached


@pytest.fixture
def work(tmp_path):
    return detached.Work(str(tmp_path / "work"))


def test_who_waits(work):
    assert work.claims() == work.waiting() == []
    work.claim("b")
    work.claim("a")
    work.claim("a")
    assert work.waiting() == ["a", "b"]
    work.put_answer("a", {"v": 1, "state": "ready"})
    assert (work.claims(), work.waiting()) == (["a", "b"], ["b"])
    work.drop("a")
    work.drop("a")
    assert (work.claims(), work.answer("a")) == (["b"], None)


def test_nothing_is_made_by_looking(work):
    assert not work.is_running()
    assert work.progress() == {}
    assert work.log_tail() == ""
    work.drop("a")
    assert not Path(work.directory).exists()


def test_a_lock_whose_file_was_removed_excludes_nobody(tmp_path):
    path = tmp_path / "lock"
    first = detached.try_lock(str(path))
    assert detached.try_lock(str(path)) is None
    path.unlink()
    second = detached.try_lock(str(path))
    assert second is not None
    assert detached.try_lock(str(path)) is None
    os.close(first)
    assert detached.try_lock(str(path)) is None
    os.close(second)
    with detached.locked(str(path)):
        assert detached.try_lock(str(path)) is None


def test_waiting_for_a_lock_notices_that_its_file_was_removed(tmp_path, wait_until):
    path = str(tmp_path / "lock")
    held = detached.try_lock(path)
    got = []

    def wait():
        with detached.locked(path):
            got.append(detached.try_lock(path))

    waiter = threading.Thread(target=wait)
    waiter.start()
    Path(path).unlink()
    os.close(held)
    waiter.join(timeout=10)
    assert got == [None]


def test_the_environment_has_no_settings_and_no_credentials():
    kept = {"PATH": "/bin", "HOME": "/root", "HF_HOME": "/x"}
    dropped = dict.fromkeys(
        ["AIRFLOW__CORE__FERNET_KEY", "AIRFLOW_CONN_X", "FFDL_PLACEMENT", "DB_CONN", "Pgpassword",
         "MY_SECRET", "HF_TOKEN"], "x",
    )  # fmt: skip
    assert detached.clean_environment({**kept, **dropped}) == kept


def test_progress_is_written_at_most_twice_a_second(work):
    work.claim("a")
    seen = set()
    with detached.Worker(work.directory) as worker:
        assert work.is_running()
        end = time.monotonic() + 1.3
        while time.monotonic() < end:
            worker.add(objects_done=1)
            seen.add(work.progress()["at"])
            time.sleep(0.002)
        assert worker.numbers()["objects_done"] > 0
    assert not work.is_running()
    assert 2 <= len(seen) <= 4
    seconds = [float(at[17:26]) for at in sorted(seen)]
    assert all((b - a) % 60 > 0.4 for a, b in itertools.pairwise(seconds))
    assert work.progress()["objects_done"] == worker.numbers()["objects_done"]


def test_work_stops_when_nobody_waits(work):
    work.claim("a")
    with detached.Worker(work.directory) as worker:
        assert not worker.stop.wait(0.6)
        work.put_answer("a", {"v": 1})
        assert worker.stop.wait(5)


def test_two_workers_do_not_share_a_folder(work):
    work.claim("a")
    with detached.Worker(work.directory):
        other = detached.Worker(work.directory)
        with pytest.raises(detached.AlreadyRunning):
            other.__enter__()


class Elsewhere:
    """A runner whose processes are seen by nobody: a test says when they live."""

    def __init__(self):
        self.lives, self.why, self.calls = False, "", []

    def take(self, work):
        return None if self.lives else self

    def start(self, module):
        self.calls.append(module)
        self.lives = True

    def close(self):
        self.calls.append("closed")

    def said(self, work):
        return self.why

    def abandon(self, work):
        self.calls.append("abandoned")


def test_a_runner_starts_the_process_elsewhere(tmp_path):
    runner = Elsewhere()
    work = detached.Work(str(tmp_path / "work"), runner)
    assert work.ask("a", "some.module", {"v": 1}) == (detached.RUNNING, {})
    assert runner.calls == ["some.module", "closed"]
    assert work.is_running()
    runner.why = "waiting: no node has room"
    assert work.ask("b", "some.module", {}) == (detached.RUNNING, {"phase": runner.why})
    runner.why = ""
    work.drop("a")
    work.put_answer("b", {"v": 1, "state": "ready"})
    work.drop("b")
    assert "abandoned" not in runner.calls, "it is done"
    work.ask("c", "some.module", {})
    work.drop("c")
    assert runner.calls[-1] == "abandoned"


def test_what_ended_elsewhere_tells_why_when_it_is_given_up(tmp_path):
    runner = Elsewhere()
    work = detached.Work(str(tmp_path / "work"), runner)
    for _ in range(detached.MAX_FRUITLESS_STARTS):
        assert work.ask("a", "some.module", {})[0] == detached.RUNNING
        runner.lives = False
    runner.why = "the pod was killed"
    kind, document = work.ask("a", "some.module", {})
    assert (kind, document["tail"].strip()) == (detached.DIED, "the pod was killed")


def test_the_process_of_a_runner_writes_its_log_and_takes_the_lock(tmp_path):
    work = detached.Work(str(tmp_path / "work"), Elsewhere())
    work.ask("a", "this", {"v": 1})
    words = [sys.executable, "-m", "ffdl_airflow.agent.detached", "this", work.path("request.json")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout == ""
    assert work.path("log") in done.stderr
    assert "Zen" in work.log_tail()
