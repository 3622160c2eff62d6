"""The mover: ``python -m ffdl_airflow.stores.mover request.json``, a process that makes one copy.

It lists the source, compares with the newest generation that it made of it, fetches what is new,
lists again to be sure that nothing moved, and publishes. It belongs to the source, not to a job:
whoever claims the work gets its answer. It may be killed at any point; the next one goes on from
the files that are complete. Not for: deciding whether to try again (the driver does).
"""

import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ffdl_airflow.agent import detached, protocol
from ffdl_airflow.core.data import Entry, Generation, KeyRefused, Selection, generation_id, select
from ffdl_airflow.stores import base, fetch, generations
from ffdl_airflow.stores.adapters import open_store
from ffdl_airflow.stores.layout import StoreLayout

ROUNDS = 2
"""A source that changed while it was fetched is listed once more; then the move fails."""

Known = Mapping[str, tuple[int, str, str]]
"""{key: (size, version, SHA-256)} of the newest generation of a source."""


def main(arguments: list[str]) -> int:
    """Do the work that the request names; the answers are in its folder. Returns the exit code."""
    path = Path(arguments[0])
    request = protocol.read_json(str(path))
    if request is None:
        sys.stderr.write(f"{path} is no request\n")
        return 2
    try:
        with detached.Worker(str(path.parent)) as worker:
            return Mover(worker, request).run()
    except detached.AlreadyRunning as error:
        sys.stderr.write(f"{error}\n")
        return 0


class Mover:
    """One run. ``request``: {"cache_dir", "store", "source"}."""

    def __init__(self, worker: detached.Worker, request: Mapping[str, Any]) -> None:
        self._worker = worker
        self._source: dict[str, Any] = request["source"]
        self._layout = StoreLayout(request["cache_dir"], request["store"])
        self._work = Path(worker.work.directory)
        self._build = fetch.Build(self._work)
        self._jobs: list[str] = []

    def run(self) -> int:
        """Answer all who wait: ready, or failed with the reason. 0 if there was an answer."""
        started = protocol.now_iso()
        try:
            answer = self._move()
        except fetch.Stopped:
            return detached.EXIT_STOPPED
        except Exception as error:  # noqa: BLE001 - whatever it is, the claims get an answer
            traceback.print_exc()
            self._jobs = self._worker.work.waiting()
            answer = {"state": "failed", "error": describe_error(error)}
        answer |= {"v": protocol.VERSION, "started_at": started, "ended_at": protocol.now_iso()}
        answer["progress"] = self._worker.numbers()
        self._give(answer)
        return 0

    def _give(self, answer: dict[str, Any]) -> None:
        for job in self._jobs:
            if answer["state"] == "ready":
                put_claim(self._layout, answer["generation"], job)
            self._worker.work.put_answer(job, answer)
            if job not in self._worker.work.claims():  # dropped meanwhile: leave nothing of it
                self._worker.work.drop(job)
                if answer["state"] == "ready":
                    drop_claim(self._layout, answer["generation"], job)

    def _move(self) -> dict[str, Any]:
        self._store = store = open_store(self._source)
        self._fetcher = fetch.Fetcher(store, self._build, self._worker)
        self._notes: list[str] = []
        moved: base.SourceMoved | None = None
        for _ in range(ROUNDS):
            try:
                self._jobs = self._worker.work.waiting()
                selection = self._list()
                generation = self._warm(selection) or self._cold(selection)
            except base.SourceMoved as error:
                moved = error
                continue
            self._worker.report(phase="done")
            return {
                "state": "ready",
                "generation": generation.id,
                "warnings": [*selection.warnings, *self._notes],
                "facts": dict(store.facts()),
            }
        raise base.SourceMoved(
            f"{store.describe()} changed while it was fetched, twice",
            found=moved.cause if moved else "",
        )

    def _list(self) -> Selection:
        self._worker.report(phase="listing")
        selection = self._select()
        self._worker.report(
            objects_total=len(selection.files), bytes_total=selection.size_bytes,
            objects_done=0, bytes_done=0, moved_bytes=0,
        )  # fmt: skip
        return selection

    def _select(self) -> Selection:
        try:
            return select(self._stoppable(self._store.list()))
        except KeyRefused as error:
            raise base.SourceError(
                f"{self._store.describe()} cannot be copied: {error}", code=error.code,
                found=error.why, allowed="keys that can be names of files below one folder",
                next_step="rename the object, or leave it out of the data set",
            ) from error  # fmt: skip
        except OSError as error:
            raise base.CacheError(
                f"{self._store.describe()} could not be listed: {error}", code=base.READ_FAILED,
                found=str(error.strerror), allowed="a source that answers",
            ) from error  # fmt: skip

    def _stoppable(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        for entry in entries:
            if self._worker.stop.is_set():
                raise fetch.Stopped
            yield entry

    def _index(self) -> tuple[str, Known] | None:
        document = protocol.read_json(str(self._work / "index.json"))
        if document is None:
            return None
        files = {key: (size, version, sha256)
                 for key, (size, version, sha256) in document["files"].items()}  # fmt: skip
        return document["generation"], files

    def _warm(self, selection: Selection) -> Generation | None:
        """The generation that is there already, when nothing changed; None otherwise."""
        index = self._index()
        if index is None or not is_same(index[1], selection):
            return None
        self._worker.report(phase="checking")
        generation = generations.load(self._layout.generation(index[0]))
        if generation is None:
            return None
        if not self._refetch_broken(generation, selection):
            return None
        generations.mend(self._layout, with_folders_of(generation, selection), {})
        self._build.discard()
        self._worker.report(objects_done=len(selection.files), bytes_done=selection.size_bytes)
        return generation

    def _refetch_broken(self, generation: Generation, selection: Selection) -> bool:
        """Mend what is damaged from the source; False where that has other bytes now."""
        directory = self._layout.generation(generation.id)
        for key in generations.strangers(directory, generation):
            self._notes.append(f"{key} does not belong to generation {generation.id}, removed")
            generations.remove_files(self._layout, generation.id, [key])
        wrong = generations.with_damage(directory, generation.files)
        if not wrong:
            return True
        self._worker.report(phase="fetching")
        self._build.open()
        fetch.require_space((selection.files[f.key] for f in wrong), fetch.space_at(self._work))
        fresh = {}
        for file in wrong:
            temporary = self._build.temporary()
            entry = selection.files[file.key]
            if self._fetcher.copy_hashed(entry, temporary) != file.sha256:
                (self._work / "index.json").unlink(missing_ok=True)
                return False
            temporary.chmod(generations.PROGRAM_MODE if entry.executable else generations.FILE_MODE)
            fresh[file.key] = temporary
        generations.mend(self._layout, generation, fresh)
        return True

    def _cold(self, selection: Selection) -> Generation:
        self._worker.report(phase="fetching")
        build, entries = self._build, selection.files
        build.open()
        build.keep_only(entries, selection.directories)
        index = self._index()
        if index is not None:
            fetch.link_unchanged(entries.values(), build, known=index[1],
                                 data=self._layout.data(index[0]))  # fmt: skip
        self._worker.report(objects_done=len(build.parts), bytes_done=build.size_bytes,
                            moved_bytes=build.moved_bytes)  # fmt: skip
        needed = [entry for key, entry in entries.items() if key not in build.parts]
        fetch.require_space(needed, fetch.space_at(self._work))
        self._fetcher.fetch_all(needed)
        self._jobs = self._worker.work.waiting()  # before the last look: it is true for all these
        self._require_unmoved(selection)
        return self._publish(selection)

    def _require_unmoved(self, selection: Selection) -> None:
        self._worker.report(phase="checking")
        again = self._select()
        if (again.files, again.directories) != (selection.files, selection.directories):
            raise base.SourceMoved(f"{self._store.describe()} changed while it was fetched")

    def _publish(self, selection: Selection) -> Generation:
        self._worker.report(phase="publishing")
        self._build.require_exactly(selection.files)
        files = self._build.files()
        generation = Generation(
            id=generation_id(files),
            files=tuple(files),
            directories=tuple(sorted(selection.directories)),
            source=self._store.describe(),
            warnings=selection.warnings,
            createdAt=protocol.now_iso(),
        )
        # The index first: it may name a generation that is not there, but not the reverse, or a
        # crash in between would make the next mover fetch all of it again.
        known = {file.key: [file.size, file.version, file.sha256] for file in files}
        protocol.write_json(
            str(self._work / "index.json"),
            {"v": protocol.VERSION, "generation": generation.id, "files": known},
        )
        generations.publish(self._layout, self._build.root, generation)
        self._build.close()
        return generation


def is_same(known: Known, selection: Selection) -> bool:
    """Whether the source has just the files, sizes and versions that are known."""
    if known.keys() != selection.files.keys():
        return False
    return all(
        known[key][:2] == (entry.size, entry.version) for key, entry in selection.files.items()
    )


def with_folders_of(generation: Generation, selection: Selection) -> Generation:
    """The generation with the folders and rights that the source has now."""
    programs = {key for key, entry in selection.files.items() if entry.executable}
    files = tuple(
        file.model_copy(update={"executable": file.key in programs}) for file in generation.files
    )
    folders = tuple(sorted(selection.directories))
    return generation.model_copy(update={"files": files, "directories": folders})


def put_claim(layout: StoreLayout, generation: str, job: str) -> None:
    """Say that ``job`` reads the generation."""
    layout.claims(generation).mkdir(parents=True, exist_ok=True)
    (layout.claims(generation) / detached.checked(job)).touch()


def drop_claim(layout: StoreLayout, generation: str, job: str) -> None:
    """``job`` no longer reads the generation."""
    (layout.claims(generation) / detached.checked(job)).unlink(missing_ok=True)


def describe_error(error: Exception) -> dict[str, Any]:
    """An error as a plain document, for the answer."""
    if isinstance(error, OSError):
        error = fetch.translated(error)
    if not isinstance(error, base.StoreError):
        text = f"the mover failed: {type(error).__name__}: {error}"
        error = base.CacheError(text, code=base.INTERNAL, next_step="see the mover's log")
    return error.report()


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    # A thread may hang in a read of a dead network disk; the answers are on disk.
    os._exit(status)
