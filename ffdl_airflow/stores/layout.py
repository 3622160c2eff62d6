"""Where things lie in the cache folder. Paths only; nothing is read or written here.

::

    <cache_dir>/<store>/<generation>/{data/…, GENERATION.json}   read-only
    <cache_dir>/<store>/claims/<generation>/<job>                 who reads it
    <cache_dir>/<store>/lock                                      held while a generation is changed
    <cache_dir>/<store>/tmp/<source hash>/                        folder of the mover's work, and:
        index.json      newest generation of this source: {key: [size, version, sha256]}
        build/data/…    files that are complete      parts.jsonl   what is known of them
        incoming/       files that are being written
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffdl_airflow.core.data import GENERATION_FILE, GENERATION_ID_LENGTH, source_hash

DATA = "data"
_STORE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_GENERATION = re.compile(rf"[0-9a-f]{{{GENERATION_ID_LENGTH}}}")


class StoreLayout:
    """The part of a cache that belongs to one data store."""

    def __init__(self, cache_dir: str | Path, store: str) -> None:
        if not _STORE.fullmatch(store):
            raise ValueError(f"a data store's name is a DNS label, not {store!r}")
        self.root = Path(cache_dir) / store

    @property
    def lock(self) -> Path:
        """Held while something under the store is changed."""
        return self.root / "lock"

    def generation(self, generation: str) -> Path:
        """Folder of a generation, which need not be there."""
        if not _GENERATION.fullmatch(generation):
            raise ValueError(f"a generation's id is 16 hex digits, not {generation!r}")
        return self.root / generation

    def data(self, generation: str) -> Path:
        """Its files."""
        return self.generation(generation) / DATA

    def manifest(self, generation: str) -> Path:
        """Its ``GENERATION.json``."""
        return self.generation(generation) / GENERATION_FILE

    def claims(self, generation: str) -> Path:
        """Folder with one file for each job that reads it."""
        return self.root / "claims" / self.generation(generation).name

    def work(self, source: Mapping[str, Any]) -> Path:
        """Folder of the mover's work for this source."""
        return self.root / "tmp" / source_hash(source)

    def generations(self) -> list[str]:
        """Ids of the generations that are there, sorted by name."""
        if not self.root.is_dir():
            return []
        return sorted(path.name for path in self.root.iterdir() if _GENERATION.fullmatch(path.name))
