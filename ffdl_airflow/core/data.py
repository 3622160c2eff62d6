"""Data sets: the DataStore spec, the policy for keys, and the manifest of a generation.

Pure. For: what a data source is, which of its keys become files under which names, and what makes
two copies "the same data". Not for: reading or writing any of it (``stores/``).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from ffdl_airflow.core.job import DnsLabel, Metadata, Spec

StoreType = Literal["local", "s3", "nfs", "hdfs", "cos"]

SEGMENT_LIMIT_BYTES = 255
"""Longest name of one file or folder: NAME_MAX of Linux' file systems."""

KEY_LIMIT_BYTES = 2048
"""Longest key. Half of Linux' PATH_MAX (4096), so that the cache's own path fits before it."""

GENERATION_FILE = "GENERATION.json"
GENERATION_ID_LENGTH = 16

_SHOWN = 120

_NEEDED: Mapping[str, tuple[str, ...]] = {
    "local": ("path",),
    "s3": ("bucket",),
    "cos": ("bucket",),
    "nfs": ("endpoint", "path"),
    "hdfs": ("endpoint", "path"),
}


class Credentials(Spec):
    """Where the credentials lie; never the credentials themselves."""

    secretName: DnsLabel


class CachePolicy(Spec):
    """Where copies are kept. On one machine the cache folder of the settings is used."""

    type: Literal["pv"] = "pv"
    pvcName: DnsLabel | None = None
    mountPath: str | None = None


class DataStoreSpec(Spec):
    """Where data lie. ``path`` is a path for local, nfs and hdfs, a prefix for s3 and cos."""

    type: StoreType
    endpoint: str | None = None
    bucket: str | None = None
    path: str | None = None
    region: str | None = None
    credentials: Credentials | None = None
    cachePolicy: CachePolicy | None = None

    @field_validator("endpoint")
    @classmethod
    def _no_credentials(cls, value: str | None) -> str | None:
        if value is not None and "@" in value:
            raise ValueError("has a user or password in it; use credentials.secretName")
        return value

    @model_validator(mode="after")
    def _complete(self) -> "DataStoreSpec":
        missing = [name for name in _NEEDED[self.type] if not getattr(self, name)]
        if missing:
            raise ValueError(f"type {self.type} needs {' and '.join(missing)}")
        return self


class DataStore(Spec):
    """A named place of data, shared by all namespaces (manifest kind ``DataStore``)."""

    apiVersion: Literal["ffdl.cloud.ibm.com/v1"]
    kind: Literal["DataStore"]
    metadata: Metadata
    spec: DataStoreSpec

    def source(self, subpath: str | None = None) -> dict[str, Any]:
        """What a mover needs to find the data: plain, and without any secret.

        ``subpath`` is the ``path`` of ``spec.dataStores[]`` in a job, below the store's own. Raises
        ValueError where it would lead out of the store.
        """
        document: dict[str, Any] = {"kind": self.spec.type}
        for name in ("endpoint", "bucket", "region"):
            if getattr(self.spec, name) is not None:
                document[name] = getattr(self.spec, name)
        document["path"] = _below(self.spec.path or "", subpath)
        if self.spec.credentials is not None:
            document["secret"] = self.spec.credentials.secretName
        return document


def _below(path: str, subpath: str | None) -> str:
    if not subpath:
        return path
    if subpath.startswith("/") or ".." in subpath.split("/"):
        raise ValueError(f"must be a path below the data store, not {subpath!r}")
    return f"{path.rstrip('/')}/{subpath}" if path else subpath


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One object of a source. A key that ends in ``/`` is a directory.

    ``size`` is in bytes. ``version`` changes when the bytes may have changed (an ETag, or times and
    inode of a file); it is compared for equality only, and with entries of the same source only.
    """

    key: str
    size: int
    version: str
    executable: bool = False


class KeyRefused(ValueError):
    """The data set cannot be copied because of ``key``. ``code`` says why, for programs."""

    def __init__(self, code: str, key: str, why: str) -> None:
        self.code = code
        self.key = key
        self.why = why
        super().__init__(f"key {escaped(key)} {why}")


KEY_NUL = "KEY_NUL"
KEY_ESCAPES = "KEY_ESCAPES"
KEY_EMPTY_NAME = "KEY_EMPTY_NAME"
KEY_TOO_LONG = "KEY_TOO_LONG"
KEY_NOT_TEXT = "KEY_NOT_TEXT"
KEY_CLASH = "KEY_CLASH"

Action = Literal["take", "directory", "marker", "skip"]
TAKE: Action = "take"
DIRECTORY: Action = "directory"
MARKER: Action = "marker"
SKIP: Action = "skip"


def judge_key(key: str, size: int) -> Action:
    """What becomes of one key. ``size`` in bytes. The whole policy for single keys is here.

    A key that is taken becomes the file of exactly that name below the data folder: no character is
    changed, so distinct keys stay distinct. Space, ``+``, ``%``, backslash, ``:``, line ends, names
    like ``con`` and both Unicode forms of one letter are ordinary.

    ==============================================  ==============================================
    key                                             answer
    ==============================================  ==============================================
    ends in ``/`` (or is empty), 0 bytes            DIRECTORY: it is made, but does not count
    ends in ``/`` (or is empty), more bytes         SKIP with a warning that has its name
    ends in ``_$folder$``, 0 bytes                  MARKER of old Hadoop: passed over
    a ``.`` or ``..`` between slashes               KeyRefused KEY_ESCAPES, for the whole data set
    starts with ``/`` or has ``//``                 KeyRefused KEY_EMPTY_NAME
    a NUL                                           KeyRefused KEY_NUL
    not valid Unicode                               KeyRefused KEY_NOT_TEXT
    a name above 255 bytes, a key above 2048        KeyRefused KEY_TOO_LONG
    anything else                                   TAKE
    ==============================================  ==============================================
    """
    _refuse_bad_characters(key)
    _refuse_bad_names(key)
    if key == "" or key.endswith("/"):
        return DIRECTORY if size == 0 else SKIP
    if key.endswith("_$folder$") and size == 0:
        return MARKER
    return TAKE


def _refuse_bad_characters(key: str) -> None:
    if "\0" in key:
        raise KeyRefused(KEY_NUL, key, "has a NUL character, which no file name can have")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise KeyRefused(KEY_NOT_TEXT, key, "is not valid Unicode (UTF-8)") from None


def _refuse_bad_names(key: str) -> None:
    if len(key.encode()) > KEY_LIMIT_BYTES:
        raise KeyRefused(KEY_TOO_LONG, key, f"is longer than {KEY_LIMIT_BYTES} bytes")
    for name in key.removesuffix("/").split("/") if key else ():
        if name in (".", ".."):
            raise KeyRefused(KEY_ESCAPES, key, f"has the name {name!r}: refused for safety")
        if not name:
            raise KeyRefused(KEY_EMPTY_NAME, key, "has an empty name (a slash too many)")
        if len(name.encode()) > SEGMENT_LIMIT_BYTES:
            raise KeyRefused(
                KEY_TOO_LONG, key, f"has a name longer than {SEGMENT_LIMIT_BYTES} bytes"
            )


def escaped(key: str) -> str:
    """A key as a person can read it in a message: quoted, ASCII, at most 120 characters."""
    text = ascii(key)
    return text if len(text) <= _SHOWN else f"{text[:98]}...{text[-19:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is copied of a source: files by key, folders to make, and what was left out and why."""

    files: Mapping[str, Entry]
    directories: frozenset[str]
    warnings: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Sum of the files' sizes."""
        return sum(entry.size for entry in self.files.values())


def select(entries: Iterable[Entry]) -> Selection:
    """Apply the key policy to a listing, in whatever order it comes.

    Raises KeyRefused, also with KEY_CLASH where one key is a file and a folder for another key.
    Where one key comes twice (archives can have that) the last one wins, with a warning.
    """
    files: dict[str, Entry] = {}
    directories: set[str] = set()
    warnings: list[str] = []
    for entry in entries:
        verdict = judge_key(entry.key, entry.size)
        if verdict == TAKE:
            if entry.key in files:
                warnings.append(f"{escaped(entry.key)} is there twice; the last one is used")
            files[entry.key] = entry
        elif verdict == DIRECTORY:
            directories.add(entry.key.rstrip("/"))
        elif verdict == SKIP:
            warnings.append(f"{escaped(entry.key)} ends in / and has {entry.size} bytes; left out")
    directories.discard("")
    _refuse_clashes(files, directories)
    return Selection(files=files, directories=frozenset(directories), warnings=tuple(warnings))


def _refuse_clashes(files: Mapping[str, Entry], directories: Iterable[str]) -> None:
    seen: set[str] = set()
    for key in [*files, *(f"{name}/." for name in directories)]:
        parent = key.rpartition("/")[0]
        while parent and parent not in seen:
            if parent in files:
                raise KeyRefused(KEY_CLASH, parent, f"is a file, and a folder for {escaped(key)}")
            seen.add(parent)
            parent = parent.rpartition("/")[0]


class GenerationFile(Spec):
    """One file of a generation. ``size`` in bytes, ``version`` as the source gave it."""

    key: str
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    version: str
    executable: bool = False


class Generation(Spec):
    """``GENERATION.json``: what a complete copy consists of.

    ``source`` is a description for people, without secrets, of where the bytes first came from.
    """

    v: Literal[1] = 1
    id: str
    files: tuple[GenerationFile, ...]
    directories: tuple[str, ...] = ()
    source: str
    warnings: tuple[str, ...] = ()
    createdAt: str

    @property
    def size_bytes(self) -> int:
        """Sum of the files' sizes."""
        return sum(file.size for file in self.files)


def generation_id(files: Iterable[GenerationFile]) -> str:
    """The first 16 hex digits of SHA-256 over the sorted lines ``["key",size,"sha256"]``.

    The same bytes under the same names have the same id, wherever they came from. The lines are
    JSON because a key may have a line end in it.
    """
    lines = sorted(
        json.dumps([file.key, file.size, file.sha256], separators=(",", ":")) + "\n"
        for file in files
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:GENERATION_ID_LENGTH]


def source_hash(source: Mapping[str, Any]) -> str:
    """16 hex digits that name a source; equal descriptions have equal names."""
    text = json.dumps(source, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:GENERATION_ID_LENGTH]
