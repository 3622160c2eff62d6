"""The cache of generations, as drivers, readers and the command line see it.

Each call is short and idempotent, and any number of drivers may make it at once. The long work is
done by movers, one for each source; see ``mover.py``, and ``layout.py`` for the folders.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from ffdl_airflow.agent import detached, protocol
from ffdl_airflow.core.data import GenerationFile
from ffdl_airflow.core.errors import ErrorReport
from ffdl_airflow.stores import base, generations
from ffdl_airflow.stores.adapters import require_adapter
from ffdl_airflow.stores.layout import StoreLayout
from ffdl_airflow.stores.mover import describe_error, drop_claim, put_claim

MOVER = "ffdl_airflow.stores.mover"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveProgress:
    """How far a mover is. ``total`` is None before the listing is complete.

    ``bytes_done`` counts what the generation has; ``moved_bytes`` what came from the source.
    """

    phase: str = "starting"
    objects_done: int = 0
    objects_total: int | None = None
    bytes_done: int = 0
    bytes_total: int | None = None
    moved_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveState:
    """What is known of a move. ``path`` is the folder with the data, when ``state`` is ready.

    ``facts`` has ``gitCommit`` and ``gitDirty`` for code. Times: UTC, ISO 8601, of the mover that
    answered or runs.
    """

    state: Literal["running", "ready", "failed"]
    generation: str | None = None
    path: Path | None = None
    progress: MoveProgress = MoveProgress()
    error: ErrorReport | None = None
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, Any]
    started_at: str | None = None
    ended_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGeneration:
    """One line of a cache's listing. ``claims``: the jobs that read it."""

    store: str
    generation: str
    path: Path
    source: str
    objects: int
    size_bytes: int
    created_at: str
    claims: tuple[str, ...]


class GenerationCache:
    """All generations under ``cache_dir`` (made when it is missing).

    ``beside``: chooses where movers run; without it, and where it has none, on this host.
    """

    def __init__(self, cache_dir: str | Path, beside: detached.Beside | None = None) -> None:
        self.cache_dir = Path(cache_dir).absolute()
        self._beside = beside

    def ensure(self, store: str, source: Mapping[str, Any], *, job: str) -> MoveState:
        """Claim the newest generation of ``source`` for ``job``; start its mover if none lives.

        Call it again until the state is not ``running``. The answer stays the same for this job
        (also a failure) until ``drop``: a driver that wants to try again drops first. Raises
        ValueError only for a store or job name that no caller should have let through.
        """
        layout = self._layout(store)
        source = _canonical(source)
        work = self._work(store, source)
        try:
            require_adapter(str(source.get("kind")))
            return self._ask(layout, work, source=source, job=job)
        except (base.StoreError, OSError) as error:
            return _failed({"error": describe_error(error)})

    def _ask(self, layout: StoreLayout, work: detached.Work, *, source: Mapping[str, Any],
             job: str) -> MoveState:  # fmt: skip
        request = {"v": 1, "cache_dir": str(self.cache_dir), "store": layout.root.name,
                   "source": dict(source)}  # fmt: skip
        kind, document = work.ask(job, MOVER, request)
        if kind == detached.ANSWERED and document["state"] == "ready":
            put_claim(layout, document["generation"], job)
            if layout.manifest(document["generation"]).is_file():
                return _ready(layout, document)
            work.drop(job)  # somebody removed it before the claim was there: fetch it again
            kind, document = work.ask(job, MOVER, request)
        if kind == detached.DIED:
            document = {"v": 1, "state": "failed", "error": _died(document["tail"], work)}
            work.put_answer(job, document)
        if document.get("state") == "failed":
            return _failed(document)
        return MoveState(
            state="running", progress=_progress(document), facts={},
            started_at=document.get("started_at"),
        )  # fmt: skip

    def drop(self, store: str, source: Mapping[str, Any], *, job: str) -> None:
        """Take back what ``ensure`` claimed of the mover. Without claims it ends within 10 s.

        Its parts stay for the next one. A claim on a finished generation is not touched: that is
        ``release``.
        """
        self._work(store, _canonical(source)).drop(job)

    def is_moving(self, store: str, source: Mapping[str, Any]) -> bool:
        """Whether a mover for this source lives."""
        return self._work(store, _canonical(source)).is_running()

    def path(self, store: str, generation: str) -> Path:
        """The folder with the data of a generation; it need not be there."""
        return self._layout(store).data(generation)

    def claim(self, store: str, generation: str, *, job: str) -> bool:
        """Say that ``job`` reads the generation. False where it is not there (any more)."""
        layout = self._layout(store)
        put_claim(layout, generation, job)
        if layout.manifest(generation).is_file():
            return True
        self.release(store, generation, job=job)
        return False

    def release(self, store: str, generation: str, *, job: str) -> None:
        """``job`` no longer reads the generation."""
        drop_claim(self._layout(store), generation, job)

    def release_all(self, *, job: str) -> None:
        """``job`` is over: no claim of it stays, on generations and on movers."""
        detached.checked(job)
        for store in self._stores():
            # In this order: a mover that answers meanwhile sees that its claim is gone, and undoes.
            root = self._layout(store).root
            for folder in root.glob("tmp/*"):
                self._work_in(folder).drop(job)
            for folder in root.glob("claims/*"):
                (folder / job).unlink(missing_ok=True)

    def known(self, store: str | None = None) -> list[KnownGeneration]:
        """All generations, or those of one store, newest first."""
        names = self._stores() if store is None else [store]
        found = [line for name in names for line in self._known_of(self._layout(name))]
        return sorted(found, key=lambda line: line.created_at, reverse=True)

    def _known_of(self, layout: StoreLayout) -> Iterator[KnownGeneration]:
        for name in layout.generations():
            manifest = generations.load(layout.generation(name))
            if manifest is not None:
                yield KnownGeneration(
                    store=layout.root.name, generation=name, path=layout.data(name),
                    source=manifest.source, objects=len(manifest.files),
                    size_bytes=manifest.size_bytes, created_at=manifest.createdAt,
                    claims=self._claims(layout, name),
                )  # fmt: skip

    def verify(self, store: str, generation: str) -> tuple[str, ...]:
        """What is wrong with a generation, every byte read; empty where nothing is.

        Takes as long as the data are large: not for a driver.
        """
        return generations.verify(self._layout(store).generation(generation))

    def remove_broken(self, store: str, generation: str) -> tuple[str, ...]:
        """``verify``, and take out the broken files, so that the next ``ensure`` mends them."""
        layout = self._layout(store)
        manifest = generations.load(layout.generation(generation))
        problems = self.verify(store, generation)
        if manifest is not None and problems:
            broken = [f.key for f in manifest.files if _is_broken(layout.data(generation), f)]
            generations.remove_files(layout, generation, broken)
        return problems

    def remove(self, store: str, generation: str) -> bool:
        """Remove a generation that nobody claims. False where a job reads it."""
        layout = self._layout(store)
        with detached.locked(str(layout.lock)):
            if self._claims(layout, generation):
                return False
            manifest = layout.manifest(generation)
            if manifest.exists():  # first, so that a claim made now is refused
                manifest.parent.chmod(generations.OPEN_FOLDER_MODE)
                manifest.unlink()
            generations.remove_tree(layout.generation(generation))
            return True

    def _claims(self, layout: StoreLayout, generation: str) -> tuple[str, ...]:
        folder = layout.claims(generation)
        return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()

    def _work(self, store: str, source: Mapping[str, Any]) -> detached.Work:
        return self._work_of(self._layout(store).work(source), source)

    def _work_in(self, folder: Path) -> detached.Work:
        """The work that was begun in a folder, whatever its source was."""
        request = protocol.read_json(str(folder / "request.json")) or {}
        return self._work_of(folder, request.get("source", {}))

    def _work_of(self, folder: Path, source: Mapping[str, Any]) -> detached.Work:
        sees = [str(self.cache_dir), *([str(source["path"])] if "path" in source else [])]
        return detached.Work(str(folder), self._beside(sees) if self._beside else None)

    def _layout(self, store: str) -> StoreLayout:
        return StoreLayout(self.cache_dir, store)

    def _stores(self) -> list[str]:
        if not self.cache_dir.is_dir():
            return []
        return sorted(path.name for path in self.cache_dir.iterdir() if path.is_dir())


def _canonical(source: Mapping[str, Any]) -> Mapping[str, Any]:
    """The folder ``train/`` is the folder ``train``; what is no folder stays as it was written."""
    path = str(source.get("path", ""))
    if source.get("kind") in ("local", "code") and path.endswith("/") and Path(path).is_dir():
        return {**source, "path": path.rstrip("/") or "/"}
    return source


def _is_broken(data: Path, file: GenerationFile) -> bool:
    path = data / file.key
    return path.is_file() and (
        path.stat().st_size != file.size or protocol.sha256_file(str(path)) != file.sha256
    )


def _progress(document: Mapping[str, Any]) -> MoveProgress:
    names = {field.name for field in fields(MoveProgress)}
    return MoveProgress(**{name: document[name] for name in names & document.keys()})


def _ready(layout: StoreLayout, document: Mapping[str, Any]) -> MoveState:
    return MoveState(
        state="ready", generation=document["generation"],
        path=layout.data(document["generation"]), progress=_progress(document["progress"]),
        warnings=tuple(document["warnings"]), facts=document["facts"],
        started_at=document["started_at"], ended_at=document["ended_at"],
    )  # fmt: skip


def _failed(document: Mapping[str, Any]) -> MoveState:
    return MoveState(
        state="failed", error=ErrorReport(**document["error"]),
        progress=_progress(document.get("progress", {})), facts={},
        started_at=document.get("started_at"), ended_at=document.get("ended_at"),
    )  # fmt: skip


def _died(tail: str, work: detached.Work) -> dict[str, Any]:
    last = tail.strip().splitlines()[-1:] or ["it printed nothing"]
    return describe_error(
        base.CacheError(
            f"the mover died {detached.MAX_FRUITLESS_STARTS} times without getting further",
            code=base.MOVER_DIED, found=last[0], allowed="a mover that lives",
            next_step=f"see {work.path('log')}; often memory or a kill from outside",
        )
    )  # fmt: skip
