"""Folders and files as sources."""

import os
import socket
from pathlib import Path

import pytest

from ffdl_airflow.stores import base
from ffdl_airflow.stores.adapters import open_store
from ffdl_airflow.stores.local import open_path, version_of
from ffdl_airflow.testing.contracts.store import StoreContract


class TestFolder(StoreContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.root = tmp_path / "src"
        self.root.mkdir()

    def make(self, files):
        for key, content in files.items():
            (self.root / key).parent.mkdir(parents=True, exist_ok=True)
            (self.root / key).write_bytes(content)
        return open_store({"kind": "local", "path": str(self.root)})

    def change(self, key, content):
        (self.root / key).write_bytes(content)

    def test_a_file_that_is_gone_has_moved(self):
        store = self.make({"a": b"1", "b": b"2"})
        entry = self.listed(store)["a"]
        (self.root / "a").unlink()
        with pytest.raises(base.SourceMoved, match="is gone since it was listed"):
            list(store.read(entry))

    def test_a_replaced_file_with_old_times_has_another_version(self):
        store = self.make({"a": b"1"})
        before = (self.root / "a").stat()
        version = self.listed(store)["a"].version
        (self.root / "a").write_bytes(b"2")
        os.utime(self.root / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
        assert self.listed(store)["a"].version != version

    def test_a_second_write_in_the_clocks_tick_is_seen(self):
        for content in (b"1", b"2", b"3"):
            store = self.make({"a": content})
            entry = self.listed(store)["a"]
            (self.root / "a").write_bytes(b"x")
            assert version_of((self.root / "a").stat()) != entry.version

    def test_empty_folders_are_listed(self):
        store = self.make({"a/b": b"1"})
        (self.root / "a" / "none").mkdir()
        assert [entry.key for entry in store.list()] == ["a/b", "a/none/"]

    def test_links_are_followed_but_not_in_circles(self, tmp_path, capsys):
        other = tmp_path / "other"
        (other / "deep").mkdir(parents=True)
        (other / "deep" / "x").write_bytes(b"far away")
        store = self.make({"a": b"1"})
        (self.root / "link").symlink_to(other)
        (self.root / "file").symlink_to(other / "deep" / "x")
        (self.root / "round").symlink_to(self.root)
        (self.root / "broken").symlink_to("nowhere")
        found = self.listed(store)
        assert sorted(found) == ["a", "file", "link/deep/x"]
        assert b"".join(store.read(found["link/deep/x"])) == b"far away"
        log = capsys.readouterr().err
        assert "'broken' leads nowhere" in log
        assert "'round' is a link to a folder that it lies in" in log

    def test_pipes_and_sockets_are_left_out(self, capsys):
        store = self.make({"a": b"1"})
        os.mkfifo(self.root / "pipe")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(self.root / "sock"))
            assert sorted(self.listed(store)) == ["a"]
        assert "'pipe' is neither a file nor a folder" in capsys.readouterr().err

    def test_programs_are_marked(self):
        store = self.make({"run.sh": b"#!/bin/sh\n", "a": b"1"})
        (self.root / "run.sh").chmod(0o755)
        assert {k: e.executable for k, e in self.listed(store).items()} == {
            "a": False, "run.sh": True,
        }  # fmt: skip

    def test_allow_empty(self):
        assert list(open_path(str(self.root), allow_empty=True).list()) == []


def error_of(path) -> base.SourceError:
    with pytest.raises(base.SourceError) as caught:
        list(open_path(str(path)).list())
    assert caught.value.fault == "user"
    assert not caught.value.retryable
    assert caught.value.found
    assert caught.value.allowed
    return caught.value


def test_e01_a_trailing_slash_on_a_folder_means_nothing(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.rec").write_bytes(b"1")
    (tmp_path / "train2").mkdir()
    (tmp_path / "train2" / "b.rec").write_bytes(b"1")
    for spelling in ("train", "train/", "train//"):
        listing = open_path(f"{tmp_path}/{spelling}").list()
        assert [entry.key for entry in listing] == ["a.rec"]


def test_e01_a_file_with_a_trailing_slash_is_an_error(tmp_path):
    (tmp_path / "a.rec").write_bytes(b"1")
    assert [entry.key for entry in open_path(f"{tmp_path}/a.rec").list()] == ["a.rec"]
    error = error_of(f"{tmp_path}/a.rec/")
    assert error.code == base.NOT_A_FOLDER
    assert f"write {tmp_path}/a.rec" in error.next_step


def test_e10_a_misspelt_path_names_its_neighbour(tmp_path):
    (tmp_path / "ds" / "train" / "x").mkdir(parents=True)
    error = error_of(tmp_path / "ds" / "tarin")
    assert error.code == base.MISSING
    assert f"did you mean {tmp_path}/ds/train?" in error.cause
    assert f"did you mean {tmp_path}/ds/train/x?" in error_of(tmp_path / "ds/tarin/x").cause
    assert f"did you mean {tmp_path}/ds/train?" in error_of(tmp_path / "ds/tarin/q").cause
    assert "did you mean" not in error_of(tmp_path / "ds" / "qqq").cause


def test_e10_an_empty_folder_names_a_full_neighbour(tmp_path):
    for name in ("train", "tarin", "tarim"):
        (tmp_path / name).mkdir()
    (tmp_path / "train" / "a").write_bytes(b"1")
    error = error_of(tmp_path / "tarin")
    assert error.code == base.EMPTY
    assert f"0 files under {tmp_path}/tarin; did you mean {tmp_path}/train?" in error.cause


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("data/train", base.NOT_ABSOLUTE),
        ("", base.NOT_ABSOLUTE),
        ("~/data", base.NOT_ABSOLUTE),
        ("/dev/null", base.UNSUPPORTED_FILE),
        ("/etc/hostname/x", base.MISSING),
        ("/a\0b", base.MISSING),
        ("/" + "x" * 5000, base.MISSING),
    ],
)
def test_other_bad_paths(path, code):
    assert error_of(path).code == code


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_what_may_not_be_read_is_an_error_with_the_user(tmp_path: Path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "secret").write_bytes(b"1")
    (tmp_path / "src" / "secret").chmod(0)
    (tmp_path / "closed").mkdir(mode=0o700)
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        store = open_path(str(tmp_path / "src"))
        [entry] = store.list()
        with pytest.raises(base.SourceError, match="secret cannot be read") as caught:
            list(store.read(entry))
        assert caught.value.allowed == "readable by user 65534"
        assert error_of(tmp_path / "closed").code == base.UNREADABLE
        assert error_of(tmp_path / "closed" / "x").code == base.UNREADABLE
    finally:
        os.seteuid(0)
