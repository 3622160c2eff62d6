"""Movers as real processes: started once, killed, starved, stopped, left without claims."""

import hashlib
import os
import random
import resource
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from ffdl_airflow.agent import detached, protocol
from ffdl_airflow.core import data
from ffdl_airflow.stores import base
from ffdl_airflow.stores.cache import GenerationCache
from ffdl_airflow.stores.layout import StoreLayout

STORE = "digits"
MANY = 1200
"""So many small files keep a mover busy for seconds."""


@pytest.fixture
def cache(tmp_path):
    return GenerationCache(tmp_path / "cache")


@pytest.fixture
def source(tmp_path):
    """A folder with a few files."""
    folder = tmp_path / "src"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.bin").write_bytes(bytes([number]) * 1_000_000)
    return {"kind": "local", "path": str(folder)}


def many_files(folder: Path, count: int) -> dict[str, str]:
    """A folder with so many files that there is time to do something to the mover."""
    folder.mkdir()
    (folder / "0").write_bytes(b"x" * 500)
    for number in range(1, count):
        os.link(folder / "0", folder / str(number))
    return {"kind": "local", "path": str(folder)}


@pytest.fixture
def big_source(tmp_path):
    return many_files(tmp_path / "big", MANY)


def work_of(cache, source) -> detached.Work:
    return detached.Work(str(StoreLayout(cache.cache_dir, STORE).work(source)))


def movers(work: detached.Work) -> list[psutil.Process]:
    """The living movers of this work."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if work.path("request.json") in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def the_mover(work: detached.Work) -> psutil.Process:
    [process] = movers(work)
    return process


@pytest.fixture
def ready(cache, wait_until):
    """Ask until there is an answer; every process is gone then."""

    def ask(source, job="job-1"):
        states = []

        def answered():
            states.append(cache.ensure(STORE, source, job=job))
            return states[-1].state != "running"

        wait_until(answered, message="an answer")
        wait_until(lambda: not cache.is_moving(STORE, source), message="the end of the mover")
        return states[-1]

    return ask


def parts_of(work: detached.Work) -> dict[str, int]:
    """{name: inode} of the files that are complete in the build, which may just be renamed."""
    build = Path(work.path("build", "data"))
    found = {}
    for name, path in protocol.list_files(str(build)):
        with suppress(FileNotFoundError):
            found[name] = Path(path).stat().st_ino
    return found


def test_a_mover_is_detached_and_has_no_secrets(cache, source, ready, monkeypatch, wait_until):
    secrets = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgres://u:p@h/db", "MY_PASSWORD": "x",
               "AIRFLOW_CONN_S3": "s3://x", "aws_session_token": "x", "CLIENT_SECRET": "x",
               "FFDL_PLACEMENT": "job/1"}  # fmt: skip
    for name, value in {**secrets, "HARMLESS": "kept"}.items():
        monkeypatch.setenv(name, value)
    with Path(__file__).open("rb") as inherited:
        os.set_inheritable(inherited.fileno(), True)
        assert cache.ensure(STORE, source, job="job-1").state == "running"
    work = work_of(cache, source)
    process = the_mover(work)
    process.suspend()
    try:
        environment = process.environ()
        assert not environment.keys() & secrets.keys()
        assert environment["HARMLESS"] == "kept"
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
        targets = {fd: str(Path(f"/proc/{process.pid}/fd/{fd}").readlink()) for fd in (0, 1, 2)}
        assert targets == {0: "/dev/null", 1: work.path("log"), 2: work.path("log")}
        assert __file__ not in {file.path for file in process.open_files()}
    finally:
        process.resume()
    assert ready(source).state == "ready"
    wait_until(
        lambda: not [c for c in psutil.Process().children() if c.status() == psutil.STATUS_ZOMBIE],
        message="no zombie",
    )


def test_many_drivers_at_once_start_one_mover_and_get_one_answer(cache, source, wait_until):
    work = work_of(cache, source)
    pids = set()
    barrier = threading.Barrier(8)

    def drive(number):
        barrier.wait()
        while (state := cache.ensure(STORE, source, job=f"job-{number}")).state == "running":
            pids.update(process.pid for process in movers(work))
            time.sleep(0.02)
        return state

    with ThreadPoolExecutor(8) as pool:
        states = list(pool.map(drive, range(8)))
    assert {state.generation for state in states} == {states[0].generation}
    assert states[0].generation
    # Who came after the mover's last look at the source has one of his own, after the first.
    assert len(pids) == 1
    assert len(cache.known(STORE)[0].claims) == 8


def test_drivers_in_two_processes_share_a_mover(cache, source, ready):
    script = (
        "import sys; from ffdl_airflow.stores.cache import GenerationCache;"
        "GenerationCache(sys.argv[1]).ensure('digits', {'kind': 'local', 'path': sys.argv[2]},"
        "job=sys.argv[3])"
    )
    cache.ensure(STORE, source, job="job-1")
    mover = the_mover(work_of(cache, source))
    mover.suspend()
    command = [os.sys.executable, "-c", script, str(cache.cache_dir), source["path"], "job-2"]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    assert the_mover(work_of(cache, source)).pid == mover.pid
    mover.resume()
    assert ready(source, "job-1").generation == ready(source, "job-2").generation


def test_kill_at_random_points_then_resume(cache, big_source, ready, rounds, wait_until):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    work = work_of(cache, big_source)
    kept = {}
    for count in sorted(chance.sample(range(MANY - 50), rounds(3, soak=20))):
        assert cache.ensure(STORE, big_source, job="job-1").state in ("running", "ready")
        process = the_mover(work)
        wait_until(
            lambda count=count: len(parts_of(work)) > count or not work.is_running(),
            message=f"{count} parts",
        )
        with suppress(psutil.NoSuchProcess):  # it may just have ended
            process.kill()
        wait_until(lambda: not work.is_running(), message="the end of the mover")
        parts = parts_of(work)
        if cache.known():
            break  # on a fast machine it was done before the kill
        assert kept.items() <= parts.items(), "a complete file was fetched again"
        kept = parts
    state = ready(big_source)
    assert state.state == "ready", state.error
    final = {name: Path(path).stat().st_ino for name, path in protocol.list_files(str(state.path))}
    assert kept.items() <= final.items(), "a complete file was fetched again"
    assert state.progress.moved_bytes == MANY * 500
    assert cache.verify(STORE, state.generation) == ()
    files = [data.GenerationFile(key=str(number), size=500, version="",
                                 sha256=hashlib.sha256(b"x" * 500).hexdigest())
             for number in range(MANY)]  # fmt: skip
    assert state.generation == data.generation_id(files)


def test_kill_at_any_time_of_a_short_move(cache, source, ready, rounds, wait_until):
    work = work_of(cache, source)
    for number in range(rounds(3, soak=40)):
        job = f"job-{number}"
        cache.ensure(STORE, source, job=job)
        for process in movers(work):
            with suppress(psutil.TimeoutExpired):
                process.wait(timeout=0.2 * number)
            with suppress(psutil.NoSuchProcess):  # it may just have ended
                process.kill()
        state = ready(source, job)
        assert state.state == "ready", state.error
        assert cache.verify(STORE, state.generation) == ()
        (Path(source["path"]) / "new.bin").write_bytes(os.urandom(100_000))
    assert not list(cache.cache_dir.glob("*/tmp/*/build"))


def test_without_claims_a_mover_ends_and_leaves_its_parts(cache, tmp_path, wait_until):
    source = many_files(tmp_path / "very-big", 15_000)
    work = work_of(cache, source)
    cache.ensure(STORE, source, job="job-1")
    cache.ensure(STORE, source, job="job-2")
    wait_until(lambda: len(parts_of(work)) > 10)
    cache.drop(STORE, source, job="job-1")
    ticks = [work.progress().get("at")]

    def two_ticks_later():
        ticks.append(work.progress().get("at"))
        return len(set(ticks)) > 2

    wait_until(two_ticks_later)
    assert cache.is_moving(STORE, source)
    cache.drop(STORE, source, job="job-2")
    begin = time.monotonic()
    wait_until(lambda: not work.is_running(), timeout=10, message="the end of the mover")
    assert time.monotonic() - begin < 10
    assert cache.known() == []
    assert 10 < len(parts_of(work)) < 15_000


def test_a_stopped_mover_does_not_block_those_who_ask(cache, big_source):
    cache.ensure(STORE, big_source, job="job-1")
    process = the_mover(work_of(cache, big_source))
    process.suspend()
    begin = time.monotonic()
    assert cache.ensure(STORE, big_source, job="job-1").state == "running"
    cache.drop(STORE, big_source, job="job-1")
    assert cache.known() == []
    assert time.monotonic() - begin < 1
    process.kill()


def test_sigterm_ends_a_mover_in_an_orderly_way(cache, big_source, wait_until):
    work = work_of(cache, big_source)
    cache.ensure(STORE, big_source, job="job-1")
    wait_until(lambda: len(parts_of(work)) > 10)
    the_mover(work).terminate()
    wait_until(lambda: not work.is_running(), timeout=10)
    assert len(parts_of(work)) > 10
    assert not Path(work.path("starts.json")).exists()
    assert work.answer("job-1") is None


@contextmanager
def file_size_limit(size: int):
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_file_that_cannot_be_written_is_disk_full_and_the_rest_is_kept(cache, source, ready):
    (Path(source["path"]) / "9.bin").write_bytes(b"9" * 5_000_000)
    with file_size_limit(2_000_000):
        cache.ensure(STORE, source, job="job-1")
    state = ready(source)
    assert (state.state, state.error.code) == ("failed", base.DISK_FULL)
    assert (state.error.fault, state.error.retryable) == ("infrastructure", True)
    assert cache.known() == []
    cache.drop(STORE, source, job="job-1")
    state = ready(source)
    assert state.state == "ready"
    assert cache.verify(STORE, state.generation) == ()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MB, where this user may make one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs; a file size limit is tested instead")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_e17_a_full_disk(small_disk, source, wait_until):
    cache = GenerationCache(small_disk / "cache")
    work = work_of(cache, source)

    def ask():
        state = cache.ensure(STORE, source, job="job-1")
        return None if state.state == "running" else state

    state = wait_until(ask)
    assert (state.error.code, state.error.retryable) == (base.DISK_FULL, True)
    assert "4214784 bytes are needed (with 5 % to spare)" in state.error.text
    assert "bytes are free" in state.error.text
    assert parts_of(work) == {}
    (Path(source["path"]) / "3.bin").unlink()  # 3 MB do not fit, 2 do
    (Path(source["path"]) / "2.bin").unlink()
    cache.drop(STORE, source, job="job-1")
    state = wait_until(ask)
    assert state.state == "ready", state.error
    wait_until(lambda: not work.is_running())


def test_a_disk_without_any_room_is_told_by_ensure(small_disk, source):
    with suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(b"x" * 4096):
            pass
    state = GenerationCache(small_disk / "cache").ensure(STORE, source, job="job-1")
    assert (state.state, state.error.code) == ("failed", base.DISK_FULL)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write")
def test_a_cache_folder_that_cannot_be_made(source):
    state = GenerationCache("/proc/cache").ensure(STORE, source, job="job-1")
    assert (state.state, state.error.code) == ("failed", base.CACHE_UNUSABLE)
    assert "/proc/cache" in state.error.text


def test_a_mover_that_dies_again_and_again_is_given_up(cache, source, ready, wait_until):
    work = work_of(cache, source)
    for _ in range(detached.MAX_FRUITLESS_STARTS):
        assert cache.ensure(STORE, source, job="job-1").state == "running"
        the_mover(work).kill()
        wait_until(lambda: not work.is_running())
    state = cache.ensure(STORE, source, job="job-1")
    assert (state.state, state.error.code) == ("failed", base.MOVER_DIED)
    assert state.error.retryable
    assert work.path("log") in state.error.next_step
    assert cache.ensure(STORE, source, job="job-1") == state
    cache.drop(STORE, source, job="job-1")
    assert ready(source).state == "ready"


def test_a_module_that_cannot_start_shows_why(tmp_path, wait_until):
    work = detached.Work(str(tmp_path / "work"))
    replies = []

    def ask():
        replies.append(work.ask("job-1", "ffdl_airflow.no_such_module", {"v": 1}))
        return replies[-1][0] != detached.RUNNING

    wait_until(ask)
    assert replies[-1][0] == detached.DIED
    assert "No module named" in replies[-1][1]["tail"]


def test_by_hand_beside_a_running_one_it_leaves(cache, source):
    cache.ensure(STORE, source, job="job-1")
    work = work_of(cache, source)
    process = the_mover(work)
    process.suspend()
    command = [os.sys.executable, "-m", "ffdl_airflow.stores.mover", work.path("request.json")]
    done = subprocess.run(command, check=False, capture_output=True, text=True,
                          cwd=Path(__file__).parents[2])  # fmt: skip
    assert done.returncode == 0
    assert "another process does this work" in done.stderr
    process.kill()
