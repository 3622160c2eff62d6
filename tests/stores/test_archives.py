"""Archives as sources."""

import io
import tarfile
import zipfile

import pytest

from ffdl_airflow.core.data import KeyRefused, select
from ffdl_airflow.stores import base
from ffdl_airflow.stores.adapters import open_store
from ffdl_airflow.testing.contracts.store import FILES, StoreContract


class ArchiveContract(StoreContract):
    name = ""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path):
        self.path = tmp_path / self.name
        self.files = {}

    def write(self, files):
        raise NotImplementedError

    def make(self, files):
        self.files = dict(files)
        self.write(self.files)
        return open_store({"kind": "local", "path": str(self.path)})

    def change(self, key, content):
        self.write({**self.files, key: content})

    def read_all(self):
        store = open_store({"kind": "local", "path": str(self.path)})
        return [list(store.read(entry)) for entry in list(store.list())]

    def test_an_archive_cut_off_anywhere_is_one_clear_error(self):
        self.make(FILES)
        whole = self.path.read_bytes()
        for size in (0, 5, len(whole) // 3, len(whole) // 2, len(whole) - 1):
            if self.name == "data.tar" and size == len(whole) - 1:
                continue  # only padding is missing
            self.path.write_bytes(whole[:size])
            with pytest.raises(base.SourceError) as caught:
                self.read_all()
            assert caught.value.code == base.ARCHIVE_BROKEN
            assert str(self.path) in caught.value.cause


class TestZip(ArchiveContract):
    name = "data.zip"

    def write(self, files):
        with zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED) as archive:
            for key, content in files.items():
                archive.writestr(key, content)

    def test_a_flipped_bit_is_an_error(self):
        store = self.make({"a": b"".join(i.to_bytes(4, "big") for i in range(20_000))})
        content = bytearray(self.path.read_bytes())
        content[len(content) // 3] ^= 1
        self.path.write_bytes(content)
        store = open_store({"kind": "local", "path": str(self.path)})
        [entry] = store.list()
        with pytest.raises(base.SourceError, match="cannot be used"):
            list(store.read(entry))

    def test_links_are_left_out_and_programs_marked(self, capsys):
        with zipfile.ZipFile(self.path, "w") as archive:
            for name, mode in (("link", 0o120777), ("run.sh", 0o100755), ("a", 0o100644)):
                member = zipfile.ZipInfo(name)
                member.external_attr = mode << 16
                archive.writestr(member, "/etc/passwd")
        store = open_store({"kind": "local", "path": str(self.path)})
        assert {e.key: e.executable for e in store.list()} == {"run.sh": True, "a": False}
        assert "'link' is a link" in capsys.readouterr().err


class TarContract(ArchiveContract):
    mode = "w"

    def write(self, files):
        with tarfile.open(self.path, self.mode) as archive:
            for key, content in files.items():
                member = tarfile.TarInfo(key)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))

    def add(self, *members):
        with tarfile.open(self.path, self.mode) as archive:
            for name, kind, link in members:
                member = tarfile.TarInfo(name)
                member.type, member.linkname = kind, link
                member.size = 3 if kind == tarfile.REGTYPE else 0
                archive.addfile(member, io.BytesIO(b"abc") if member.size else None)
        return open_store({"kind": "local", "path": str(self.path)})

    def test_links_inside_are_followed_and_others_left_out(self, capsys):
        store = self.add(
            ("./d/file", tarfile.REGTYPE, ""),
            ("d/hard", tarfile.LNKTYPE, "./d/file"),
            ("d/soft", tarfile.SYMTYPE, "../d/hard"),
            ("out", tarfile.SYMTYPE, "/etc/passwd"),
            ("round", tarfile.SYMTYPE, "round"),
            ("dev", tarfile.CHRTYPE, ""),
            ("none", tarfile.DIRTYPE, ""),
            (".", tarfile.DIRTYPE, ""),
        )
        found = self.listed(store)
        assert sorted(found) == ["d/file", "d/hard", "d/soft"]
        assert {b"".join(store.read(entry)) for entry in found.values()} == {b"abc"}
        assert select(store.list()).directories == {"none"}
        log = capsys.readouterr().err
        assert all(f"'{name}' is a link out of" in log for name in ("out", "round", "dev"))


class TestTar(TarContract):
    name = "data.tar"


class TestTarGz(TarContract):
    name = "data.tar.gz"
    mode = "w:gz"


class TestTgz(TarContract):
    name = "DATA.TGZ"
    mode = "w:gz"


@pytest.mark.parametrize("name", ["../../etc/cron.d/x", "a/../../b", "/etc/passwd", "..", "./../x"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_e06_members_that_would_leave_are_refused(tmp_path, name, kind):
    path = tmp_path / f"evil.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, "x")
    else:
        with tarfile.open(path, "w") as archive:
            archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(KeyRefused):
        select(open_store({"kind": "local", "path": str(path)}).list())
