"""The mover's work on real folders, run in this process; for processes see test_processes.py."""

import os
import shutil
import stat
import unicodedata
from pathlib import Path

import pytest

from ffdl_airflow.agent import detached, protocol
from ffdl_airflow.core import data
from ffdl_airflow.stores import base, fetch, generations, mover
from ffdl_airflow.stores.cache import GenerationCache
from ffdl_airflow.stores.layout import StoreLayout
from ffdl_airflow.testing.contracts.store import ODD_KEYS

STORE = "digits"


class Place:
    """A source, a cache, and ``move`` from one to the other as one mover's run."""

    def __init__(self, tmp_path: Path) -> None:
        self.src = tmp_path / "src"
        self.src.mkdir()
        self.cache = GenerationCache(tmp_path / "cache")
        self.layout = StoreLayout(self.cache.cache_dir, STORE)
        self.source = {"kind": "local", "path": str(self.src)}
        self.work = detached.Work(str(self.layout.work(self.source)))

    def write(self, **files: bytes) -> None:
        for name, content in files.items():
            path = self.src / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def move(self, job: str = "job-1", *, fresh: bool = True):
        if fresh:
            self.work.drop(job)
        self.work.claim(job)
        request = {"v": 1, "cache_dir": str(self.cache.cache_dir), "store": STORE,
                   "source": self.source}  # fmt: skip
        protocol.write_json(self.work.path("request.json"), request)
        assert mover.main([self.work.path("request.json")]) == 0
        return self.cache.ensure(STORE, self.source, job=job)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def contents(path: Path) -> dict[str, bytes]:
    return {name: Path(file).read_bytes() for name, file in protocol.list_files(str(path))}


def modes(path: Path) -> dict[str, int]:
    return {str(p.relative_to(path)): stat.S_IMODE(p.stat().st_mode) for p in path.rglob("*")}


def test_a_folder_becomes_a_read_only_generation(place):
    place.write(a=b"1", deep__er__b=b"22" * 700_000)
    (place.src / "none").mkdir()
    (place.src / "a").chmod(0o755)
    state = place.move()
    assert state.state == "ready", state.error
    assert state.path == place.cache.path(STORE, state.generation)
    assert contents(state.path) == {"a": b"1", "deep/er/b": b"22" * 700_000}
    assert modes(state.path) == {"a": 0o555, "deep": 0o555, "deep/er": 0o555, "deep/er/b": 0o444,
                                 "none": 0o555}  # fmt: skip
    assert stat.S_IMODE(state.path.parent.stat().st_mode) == 0o555
    manifest = generations.load(state.path.parent)
    assert manifest.id == state.generation == data.generation_id(manifest.files)
    assert manifest.directories == ("none",)
    assert manifest.source == f"folder {place.src}"
    assert state.progress.moved_bytes == state.progress.bytes_total == 1_400_001
    assert (state.progress.objects_done, state.progress.objects_total) == (2, 2)
    assert state.started_at < state.ended_at
    assert place.cache.verify(STORE, state.generation) == ()
    assert place.cache.known(STORE)[0].claims == ("job-1",)


def test_a_warm_start_moves_nothing_and_reads_nothing(place):
    place.write(a=b"1", b=b"2")
    first = place.move()
    for name in ("a", "b"):
        # Whoever read it now would fail.
        os.utime(place.src / name, ns=(1, (place.src / name).stat().st_mtime_ns))
    before = {name: (place.src / name).stat().st_atime_ns for name in ("a", "b")}
    index = protocol.read_json(place.work.path("index.json"))
    for name in ("a", "b"):
        index["files"][name][1] = fetch_version(place.src / name)
    protocol.write_json(place.work.path("index.json"), index)
    second = place.move("job-2")
    assert (second.generation, second.progress.moved_bytes) == (first.generation, 0)
    assert second.progress.bytes_done == 2
    assert {name: (place.src / name).stat().st_atime_ns for name in ("a", "b")} == before
    assert place.cache.known()[0].claims == ("job-1", "job-2")


def fetch_version(path: Path) -> str:
    from ffdl_airflow.stores.local import version_of

    return version_of(path.stat())


def test_a_changed_source_is_a_new_generation_that_shares_what_is_the_same(place):
    place.write(a=b"same" * 1000, b=b"old", c=b"gone")
    first = place.move()
    place.write(b=b"new!")
    (place.src / "c").unlink()
    second = place.move("job-2")
    assert second.generation != first.generation
    assert second.progress.moved_bytes == 4
    assert contents(second.path) == {"a": b"same" * 1000, "b": b"new!"}
    assert contents(first.path) == {"a": b"same" * 1000, "b": b"old", "c": b"gone"}
    assert (first.path / "a").stat().st_ino == (second.path / "a").stat().st_ino
    assert place.cache.verify(STORE, second.generation) == ()


def test_the_same_bytes_from_elsewhere_are_the_same_generation(place, tmp_path):
    place.write(a=b"1", d__b=b"2")
    first = place.move()
    shutil.copytree(place.src, tmp_path / "copy")
    (tmp_path / "copy" / "empty").mkdir()
    (tmp_path / "copy" / "a").chmod(0o755)
    place.source = {"kind": "local", "path": str(tmp_path / "copy")}
    place.work = detached.Work(str(place.layout.work(place.source)))
    second = place.move()
    assert second.generation == first.generation
    assert (second.path / "empty").is_dir()
    assert modes(second.path) == {"a": 0o555, "d": 0o555, "d/b": 0o444, "empty": 0o555}
    assert place.cache.verify(STORE, second.generation) == ()


def test_a_new_empty_folder_and_new_rights_come_along_on_a_warm_start(place):
    place.write(a=b"1")
    first = place.move()
    (place.src / "new" / "er").mkdir(parents=True)
    (place.src / "a").chmod(0o755)
    second = place.move("job-2")
    assert second.generation == first.generation
    assert (second.path / "new" / "er").is_dir()
    assert os.access(second.path / "a", os.X_OK)


@pytest.mark.parametrize("damage", ["truncate", "remove", "grow", "flip"])
def test_a_warm_start_mends_what_is_damaged(place, damage):
    place.write(a=b"1" * 100, deep__b=b"2" * 100)
    first = place.move()
    victim = first.path / "deep" / "b"
    inode = (first.path / "a").stat().st_ino
    victim.parent.chmod(0o755)
    victim.chmod(0o644)
    {"truncate": lambda: os.truncate(victim, 7), "remove": victim.unlink,
     "grow": lambda: victim.write_bytes(b"2" * 101),
     "flip": lambda: victim.write_bytes(b"2" * 99 + b"3")}[damage]()  # fmt: skip
    assert len(place.cache.verify(STORE, first.generation)) == 1
    second = place.move("job-2")
    assert (second.generation, second.progress.moved_bytes) == (first.generation, 100)
    assert place.cache.verify(STORE, first.generation) == ()
    assert modes(first.path) == {"a": 0o444, "deep": 0o555, "deep/b": 0o444}
    assert (first.path / "a").stat().st_ino == inode


def test_a_file_that_was_put_into_a_generation_is_taken_out(place):
    place.write(a=b"1" * 100)
    first = place.move()
    first.path.chmod(0o755)
    (first.path / "scratch.txt").write_text("of a trainer")
    second = place.move("job-2")
    assert (second.generation, second.progress.moved_bytes) == (first.generation, 0)
    assert list(second.path.iterdir()) == [second.path / "a"]
    assert second.warnings == (
        f"scratch.txt does not belong to generation {first.generation}, removed",
    )


def test_what_was_only_touched_is_read_once_and_kept(place):
    place.write(a=b"1" * 100)
    first = place.move()
    os.utime(first.path / "a")
    second = place.move("job-2")
    assert second.progress.moved_bytes == 0
    manifest = first.path.parent / data.GENERATION_FILE
    assert (first.path / "a").stat().st_mtime_ns == manifest.stat().st_mtime_ns


def test_a_flipped_bit_is_found_by_verify_and_mended_after_remove_broken(place):
    place.write(a=b"1" * 100, b=b"2" * 100)
    first = place.move()
    (first.path / "b").chmod(0o644)
    (first.path / "b").write_bytes(b"2" * 99 + b"3")
    manifest = (first.path.parent / data.GENERATION_FILE).stat()
    os.utime(first.path / "b", ns=(manifest.st_mtime_ns, manifest.st_mtime_ns))  # as a disk does it
    assert place.cache.verify(STORE, first.generation) == ("b has another SHA-256",)
    assert place.cache.remove_broken(STORE, first.generation) == ("b has another SHA-256",)
    second = place.move("job-2")
    assert (second.generation, second.progress.moved_bytes) == (first.generation, 100)
    assert place.cache.verify(STORE, first.generation) == ()


def test_a_generation_that_was_removed_is_made_again(place):
    place.write(a=b"1")
    first = place.move()
    assert not place.cache.remove(STORE, first.generation)
    place.cache.release(STORE, first.generation, job="job-1")
    assert place.cache.remove(STORE, first.generation)
    assert place.cache.known() == []
    assert not place.cache.claim(STORE, first.generation, job="job-2")
    second = place.move("job-2")
    assert (second.state, second.generation) == ("ready", first.generation)
    assert place.cache.claim(STORE, first.generation, job="job-3")
    assert place.cache.known()[0].claims == ("job-2", "job-3")


def test_a_manifest_that_is_broken_is_replaced(place):
    place.write(a=b"1")
    first = place.move()
    manifest = place.layout.manifest(first.generation)
    manifest.chmod(0o644)
    manifest.write_text('{"v": 1, "id":')
    assert place.cache.verify(STORE, first.generation) == ("no readable GENERATION.json",)
    assert place.move("job-2").generation == first.generation
    assert place.cache.verify(STORE, first.generation) == ()


def test_e04_names_keep_their_bytes(place):
    for key in ODD_KEYS:
        (place.src / key).write_bytes(key.encode())
    state = place.move()
    assert contents(state.path) == {key: key.encode() for key in ODD_KEYS}
    assert len({unicodedata.normalize("NFC", key) for key in ODD_KEYS}) == 6
    assert place.cache.verify(STORE, state.generation) == ()


class Listing:
    """A store whose listing is a script; the bytes are made from the entry."""

    parallel = 2

    def __init__(self, *rounds):
        self.rounds = list(rounds)

    def list(self):
        yield from self.rounds.pop(0)

    def read(self, entry):
        if entry.version == "moves":
            raise base.SourceMoved(f"{entry.key} changed while it was read")
        yield entry.key.encode()[:1] * entry.size

    def describe(self):
        return "store of the test"

    def facts(self):
        return {}


@pytest.fixture
def scripted(place, monkeypatch):
    def run(*rounds):
        entries = [[data.Entry(**entry) for entry in listing] for listing in rounds]
        monkeypatch.setattr(mover, "open_store", lambda source: Listing(*entries))
        return place.move()

    return run


A = {"key": "a", "size": 3, "version": "1"}
A2 = {"key": "a", "size": 3, "version": "2"}
B = {"key": "b", "size": 5, "version": "1"}


@pytest.mark.parametrize(
    ("key", "code"),
    [("../../etc/cron.d/x", data.KEY_ESCAPES), ("a\0b", data.KEY_NUL), ("a/b", data.KEY_CLASH),
     ("x" * 300, data.KEY_TOO_LONG)],
)  # fmt: skip
def test_e06_nothing_is_written_for_a_refused_key(scripted, place, tmp_path, key, code):
    bad = {"key": key, "size": 1, "version": "1"}
    state = scripted([A, bad])
    assert (state.state, state.error.code) == ("failed", code)
    assert (state.error.fault, state.error.retryable) == ("user", False)
    assert state.error.fault == "user"
    assert data.escaped(key) in state.error.text or code == data.KEY_CLASH
    assert place.layout.generations() == []
    assert not list(tmp_path.rglob("cron.d"))
    assert not Path(place.work.path("build")).exists()


def test_e02_markers(scripted):
    state = scripted(*[[{"key": "data/", "size": 0, "version": ""}, A,
                        {"key": "x_$folder$", "size": 0, "version": ""},
                        {"key": "img/", "size": 9, "version": ""}]] * 2)  # fmt: skip
    assert contents(state.path) == {"a": b"aaa"}
    assert (state.path / "data").is_dir()
    assert state.progress.objects_total == 1
    assert state.warnings == ("'img/' ends in / and has 9 bytes; left out",)


def test_a_source_that_moves_once_is_fetched_again(scripted):
    state = scripted([A, B], [A2, B], [A2, B], [A2, B])
    assert state.state == "ready"
    assert contents(state.path) == {"a": b"aaa", "b": b"bbbbb"}
    assert state.progress.moved_bytes == 8


def test_a_source_that_moves_twice_is_an_error(scripted, place):
    state = scripted([A], [A2], [A], [A2])
    assert (state.error.code, state.error.retryable) == (base.MOVED, True)
    assert "changed while it was fetched" in state.error.text
    assert place.layout.generations() == []
    state = scripted([A], [A])
    assert state.state == "ready"


def test_an_object_that_changes_under_the_reader_is_the_same(scripted):
    moving = {**A, "version": "moves"}
    assert scripted([B, moving], [B, A], [B, A]).state == "ready"
    state = scripted([moving], [moving])
    assert (state.state, state.error.code) == ("failed", base.MOVED)
    assert "a changed while it was read" in state.error.found


def test_an_answer_stays_until_it_is_dropped(place):
    state = place.move()
    assert (state.state, state.error.code) == ("failed", base.EMPTY)
    place.write(a=b"1")
    assert place.move(fresh=False).error.code == base.EMPTY
    assert place.move("job-2").state == "ready"
    assert place.cache.ensure(STORE, place.source, job="job-1").state == "failed"
    place.cache.drop(STORE, place.source, job="job-1")
    assert place.move().state == "ready"


def test_e17_too_little_room_is_told_with_numbers_before_the_fetch():
    entries = [data.Entry(key=str(i), size=1, version="") for i in range(10)]
    fetch.require_space(entries, fetch.Space(free_bytes=43008, files=10))
    with pytest.raises(base.CacheError, match=r"43008 bytes are needed \(with 5 % to spare\), "
                       "43007 bytes are free") as caught:  # fmt: skip
        fetch.require_space(entries, fetch.Space(free_bytes=43007, files=None))
    assert (caught.value.code, caught.value.fault) == (base.DISK_FULL, "infrastructure")
    assert caught.value.retryable
    with pytest.raises(base.CacheError, match="10 files are needed, 9 more files"):
        fetch.require_space(entries, fetch.Space(free_bytes=1 << 40, files=9))
    assert fetch.space_at(Path("/")).free_bytes > 0


def test_parts_of_a_crash_are_used_and_broken_lines_passed_over(place):
    place.write(a=b"1" * 10, b=b"2" * 10, c=b"3")
    wanted = place.move().generation
    place.cache.release_all(job="job-1")
    place.cache.remove(STORE, wanted)
    Path(place.work.path("index.json")).unlink()
    build = fetch.Build(Path(place.work.directory))
    build.open()
    listing = {entry.key: entry for entry in mover.open_store(place.source).list()}
    with detached.Worker(place.work.directory) as worker:
        fetch.Fetcher(mover.open_store(place.source), build, worker).fetch_all(
            [listing["a"], listing["b"]]
        )
    inode = (build.data / "a").stat().st_ino
    with Path(place.work.path("parts.jsonl")).open("ab") as parts:
        parts.write(b'{"key": "c", "si')
    os.truncate(build.data / "b", 3)
    state = place.move()
    assert (state.generation, state.progress.moved_bytes) == (wanted, 21)
    assert (state.path / "a").stat().st_ino == inode
    assert place.cache.verify(STORE, wanted) == ()


def test_a_part_that_the_source_changed_is_not_used(place):
    place.write(a=b"1", b=b"2")
    build = fetch.Build(Path(place.work.directory))
    build.open()
    store = mover.open_store(place.source)
    with detached.Worker(place.work.directory) as worker:
        fetch.Fetcher(store, build, worker).fetch_all(list(store.list()))
    place.write(a=b"9")
    (place.src / "b").unlink()
    assert contents(place.move().path) == {"a": b"9"}


def test_a_file_system_that_makes_two_names_one_is_noticed(place):
    place.write(a=b"1")
    build = fetch.Build(Path(place.work.directory))
    build.open()
    store = mover.open_store(place.source)
    [entry] = store.list()
    with detached.Worker(place.work.directory) as worker:
        fetch.Fetcher(store, build, worker).fetch_all([entry])
    with pytest.raises(base.CacheError, match="does not keep names") as caught:
        build.require_exactly(["a", "e\u0301"])
    assert "'e\\u0301'" in caught.value.found


def test_a_dropped_job_gets_neither_answer_nor_claim(place, monkeypatch):
    place.write(a=b"1")
    publish = generations.publish

    def drop_meanwhile(*arguments):
        publish(*arguments)
        place.cache.release_all(job="job-1")

    monkeypatch.setattr(generations, "publish", drop_meanwhile)
    place.work.claim("job-2")
    with monkeypatch.context() as patch:
        patch.setattr(place.cache, "ensure", lambda *a, **k: None)
        place.move()
    assert place.work.answer("job-1") is None
    assert place.work.answer("job-2")["state"] == "ready"
    assert place.cache.known()[0].claims == ("job-2",)


@pytest.mark.parametrize("store", ["", "..", "a/b", "A", "x\n"])
def test_bad_store_names_are_a_fault_of_the_caller(place, store):
    with pytest.raises(ValueError, match="DNS label"):
        place.cache.ensure(store, place.source, job="job-1")


@pytest.mark.parametrize("job", ["", "..", "a/b", ".x", "x\n"])
def test_bad_job_names_are_a_fault_of_the_caller(place, job):
    for call in (
        lambda: place.cache.ensure(STORE, place.source, job=job),
        lambda: place.cache.claim(STORE, "0" * 16, job=job),
        lambda: place.cache.release(STORE, "0" * 16, job=job),
        lambda: place.cache.release_all(job=job),
    ):
        with pytest.raises(ValueError, match="job's id"):
            call()


def test_every_leaf_of_the_errors_has_reason_fault_and_next_step():
    for error in (
        base.SourceError("x", code=base.MISSING),
        base.NoAdapterError("x", code=base.NO_ADAPTER),
        base.SourceMoved("x"),
        base.CacheError("x", code=base.DISK_FULL),
    ):
        document = mover.describe_error(error)
        assert document["code"]
        assert document["fault"] in ("user", "infrastructure")
        assert document["next_step"]
