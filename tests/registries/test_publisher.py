"""The publisher as a real process."""

import random
import resource
from pathlib import Path

import psutil
import pytest

from ffdl_airflow.agent import detached
from ffdl_airflow.registries import base
from ffdl_airflow.registries.publisher import Publishing
from ffdl_airflow.registries.store import DirectoryRegistry
from ffdl_airflow.testing.contracts.registry import identity_of, publish_request


@pytest.fixture
def root(tmp_path):
    return tmp_path / "models"


@pytest.fixture
def finished(root, wait_until):
    """Ask until there is an answer."""

    def ask(request):
        states = []

        def answered():
            states.append(Publishing(root).ensure(request))
            return states[-1].state != "running"

        wait_until(answered, message="an answer")
        wait_until(lambda: not publishers(root), message="the end of the publisher")
        return states[-1]

    return ask


def publishers(root: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        ours = "-m" in words and any(word.startswith(f"{root}/") for word in words)
        if ours and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def test_publish_and_retry(root, tmp_path, finished):
    request = publish_request(tmp_path / "step")
    assert Publishing(root).ensure(request).state == "running"
    assert Publishing(root).ensure(request).state == "running"
    assert len(publishers(root)) == 1
    state = finished(request)
    assert state.state == "ready"
    assert (state.version.version, state.path) == (1, root / "digits" / "1")
    assert state.bytes_done == state.bytes_total == 100_010
    assert state.version == DirectoryRegistry(root).get("digits")
    again = Publishing(root).ensure(request)
    assert (again.state, again.version) == ("ready", state.version)
    assert publishers(root) == []


def test_faults_are_answers_until_they_are_dropped(root, tmp_path, finished):
    request = publish_request(tmp_path / "step", version=1)
    weights = (tmp_path / "step" / "weights.npz").read_bytes()
    (tmp_path / "step" / "weights.npz").write_bytes(b"broken")
    state = finished(request)
    assert (state.state, state.error.code) == ("failed", base.CHECKPOINT_CHANGED)
    assert state.error.fault == "infrastructure"
    (tmp_path / "step" / "weights.npz").write_bytes(weights)
    assert Publishing(root).ensure(request) == state
    Publishing(root).drop(request)
    assert finished(request).version.version == 1
    other = publish_request(tmp_path / "other", {"w": b"2"}, version=1)
    state = finished(other)
    assert (state.error.code, state.error.fault) == (base.VERSION_TAKEN, "user")
    assert not state.error.retryable
    bad = Publishing(root).ensure(publish_request(tmp_path / "bad", name="../x"))
    assert (bad.state, bad.error.code) == ("failed", base.BAD_NAME)
    assert not (tmp_path / "x").exists()


def test_kill_at_random_times_registers_once(root, tmp_path, finished, rounds, wait_until):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    request = publish_request(tmp_path / "step", {f"{i}": bytes([i]) * 400_000 for i in range(50)})
    work = detached.Work(str(DirectoryRegistry(root).work(identity_of(request))))
    count = rounds(2, soak=20)
    for _ in range(count):
        Publishing(root).ensure(request)
        wanted = chance.randrange(50)
        build = Path(work.path("build"))
        wait_until(
            lambda build=build, wanted=wanted: (
                len(list(build.glob("*"))) > wanted or not work.is_running()
            ),
            message=f"{wanted} files",
        )
        for process in publishers(root):
            process.kill()
        wait_until(lambda: not publishers(root))
    Publishing(root).drop(request)
    work.forget_starts()
    state = finished(request)
    assert state.version.version == 1
    assert [each.version for each in DirectoryRegistry(root).list()] == [1]
    assert DirectoryRegistry(root).verify("digits", 1) == ()
    finished(publish_request(tmp_path / "next", {"w": b"2"}))
    assert not list((root / "digits" / ".tmp").glob("*/build"))


def test_disk_full(root, tmp_path, finished):
    request = publish_request(tmp_path / "step", {"w": b"w" * 3_000_000})
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, old[1]))
    try:
        Publishing(root).ensure(request)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    state = finished(request)
    assert (state.state, state.error.code) == ("failed", base.DISK_FULL)
    assert DirectoryRegistry(root).list() == []
    Publishing(root).drop(request)
    assert finished(request).version.version == 1


def test_without_claim_it_ends_and_takes_no_number(root, tmp_path, wait_until):
    request = publish_request(tmp_path / "step", {f"{i}": b"x" * 1000 for i in range(500)})
    Publishing(root).ensure(request)
    [process] = publishers(root)
    process.suspend()
    Publishing(root).drop(request)
    process.resume()
    wait_until(lambda: not publishers(root), timeout=10)
    state = DirectoryRegistry(root).find(identity_of(request))
    assert state is None or DirectoryRegistry(root).verify("digits", 1) == ()
