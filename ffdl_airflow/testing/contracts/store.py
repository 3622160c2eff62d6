"""What every data store must do. Subclass :class:`StoreContract` and give it the two makers."""

from collections.abc import Mapping
from typing import Any

import pytest

from ffdl_airflow.core.data import Entry
from ffdl_airflow.stores import base

FILES: Mapping[str, bytes] = {
    "train/a.rec": b"a" * 10,
    "train/deep/er/b.rec": b"b" * 3_000_000,
    "empty.txt": b"",
    "train2/c.rec": b"c",
}

ODD_KEYS = (
    "my file.jpg",
    "my+file.jpg",
    "1%202.txt",
    "RatGuys\u00a0.sol",
    "测试(test).bin",
    "e\u0301.txt",
    "\u00e9.txt",
)
"""Cases E04: seven keys that are seven files."""


class StoreContract:
    """Tests that each adapter of ``stores.base.Store`` has to pass."""

    def make(self, files: Mapping[str, bytes]) -> base.Store:
        """Return a store that holds exactly these files."""
        raise NotImplementedError

    def change(self, key: str, content: bytes) -> None:
        """Change one file of the store that was made last."""
        raise NotImplementedError

    @staticmethod
    def listed(store: base.Store) -> dict[str, Entry]:
        """Return the entries by key, without folders; each key is there once."""
        entries = [entry for entry in store.list() if not entry.key.endswith("/")]
        found = {entry.key: entry for entry in entries}
        assert len(found) == len(entries)
        return found

    def test_list_gives_each_object_with_its_size(self) -> None:
        found = self.listed(self.make(FILES))
        assert {key: entry.size for key, entry in found.items()} == {
            key: len(content) for key, content in FILES.items()
        }

    def test_listing_twice_gives_the_same(self) -> None:
        store = self.make(FILES)
        assert list(store.list()) == list(store.list())

    def test_read_gives_the_bytes_in_blocks(self) -> None:
        store = self.make(FILES)
        for key, entry in self.listed(store).items():
            blocks = list(store.read(entry))
            assert b"".join(blocks) == FILES[key]
            assert all(len(block) <= 16 << 20 for block in blocks)

    def test_odd_keys_come_through_unchanged(self) -> None:
        files = {key: key.encode() for key in ODD_KEYS}
        store = self.make(files)
        assert {k: b"".join(store.read(e)) for k, e in self.listed(store).items()} == files

    @pytest.mark.parametrize("content", [b"A" * 10, b"longer than it was"])
    def test_a_changed_object_has_another_version_and_is_not_read(self, content: bytes) -> None:
        store = self.make(FILES)
        before = self.listed(store)["train/a.rec"]
        self.change("train/a.rec", content)
        assert self.listed(store)["train/a.rec"].version != before.version
        with pytest.raises(base.SourceMoved) as caught:
            list(store.read(before))
        assert (caught.value.code, caught.value.retryable) == (base.MOVED, True)

    def test_an_empty_source_is_an_error_of_the_user(self) -> None:
        with pytest.raises(base.SourceError) as caught:
            list(self.make({}).list())
        error = caught.value
        assert (error.code, error.fault, error.exit_code) == (base.EMPTY, "user", 2)
        assert "0 files" in error.cause

    def test_it_describes_itself_in_one_line(self) -> None:
        store = self.make(FILES)
        text: Any = store.describe()
        assert text
        assert "\n" not in text
        assert store.parallel >= 1
        assert dict(store.facts()) == dict(store.facts())
