"""What is in the namespace now: one LIST and WATCH a kind of object and process, for all jobs.

For: reading pods and anchors as often as one likes at no request; a look at one gang costs what
that gang has, however many there are. A copy that is older than ``STALE_S`` says so, so that nobody
takes a cut line for an empty cluster. What this process has read or written past the watch can be
put in at once. Not for: history; only the newest state is kept.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import SystemRandom
from typing import Any

from ffdl_airflow.engines.kubernetes.client import ApiError, AwayError, KubeClient

Document = dict[str, Any]

WATCH_S = (540, 660)
"""How long a watch is asked to last: client-go's five to ten minutes, towards the longer end; drawn
anew each time, so that many processes do not come back at once."""
SILENT_S = 90.0
"""A watch that says nothing for so long is cut: bookmarks come about once a minute."""
STALE_S = 100.0
"""From then on the copy is not believed. Above ``SILENT_S``, after which it would be renewed."""
REMEMBERED = 2000
"""Objects that are gone and still known. Chosen: more than go in a minute."""
SHORT_S = 1.0
"""A watch that the server ends sooner is taken for a failed one, so that nobody runs in circles."""
BACKOFF_S = (0.2, 10.0)
"""First and longest wait before the next try after an error; doubled, and half of it by chance."""

CHANCE = SystemRandom()
"""Spreads what many processes do. Nobody else's: the ``random`` module's state may be seeded, or
forked, by whoever uses this package."""


class Hub:
    """The objects at ``path`` that ``selector`` finds, by name. Starts by itself when first read.

    :param path: collection, such as ``/api/v1/namespaces/training/pods``
    :param group: what an object is read with, such as its gang
    """

    def __init__(self, client: KubeClient, path: str, selector: str, *,
                 group: Callable[[Document], str] = lambda _: "") -> None:  # fmt: skip
        self._client, self._path, self._selector = client, path, selector
        self._group = group
        self._objects: dict[str, Document] = {}
        self._groups: dict[str, dict[str, Document]] = {}
        self._deleted: dict[str, int] = {}
        self._departed: dict[str, Document] = {}
        self._version: str | None = None
        self._heard: float | None = None
        self._trouble: ApiError | AwayError | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def read(self, *, wait_s: float = 15.0) -> Mapping[str, Document]:
        """A copy by name, as fresh as the watch. Raises the last error where it is too old."""
        with self._believed(wait_s):
            return dict(self._objects)

    def group(self, key: str, *, wait_s: float = 15.0) -> Mapping[str, Document]:
        """The same of one group."""
        with self._believed(wait_s):
            return dict(self._groups.get(key, {}))

    def get(self, name: str, *, wait_s: float = 15.0) -> Document | None:
        """The same of one object; None where there is none."""
        with self._believed(wait_s):
            return self._objects.get(name)

    def departed(self, name: str) -> Document | None:
        """The last state of an object that was deleted while we watched."""
        with self._changed:
            return self._departed.get(name)

    def put(self, found: Document) -> None:
        """An object that we have just created or read ourselves."""
        with self._changed:
            self._take(found)
            self._changed.notify_all()

    def forget(self, found: Document) -> None:
        """An object of which we were told that it is gone."""
        with self._changed:
            self._drop(found)
            self._changed.notify_all()

    def wait(self, condition: Callable[[Mapping[str, Document]], bool], wait_s: float, *,
             key: str | None = None) -> bool:  # fmt: skip
        """Wait until what is there satisfies the condition; False where it did not in time.

        ``key``: only that group is looked at.
        """

        def satisfied() -> bool:
            found = self._objects if key is None else self._groups.get(key, {})
            return self._heard is not None and condition(found)

        with self._changed:
            self._start()
            return self._changed.wait_for(satisfied, wait_s)

    @contextmanager
    def _believed(self, wait_s: float) -> Iterator[None]:
        """With the lock, and a copy that is fresh enough."""
        with self._changed:
            self._start()
            self._changed.wait_for(lambda: self._fresh() or self._trouble is not None, wait_s)
            if not self._fresh():
                raise self._trouble or AwayError(f"{self._path}: no answer yet")
            yield

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            name = f"ffdl hub {self._path}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def _fresh(self) -> bool:
        return self._heard is not None and time.monotonic() - self._heard < STALE_S

    def _run(self) -> None:
        failures = 0
        while True:
            try:
                if self._version is None:
                    self._list()
                began = time.monotonic()
                self._watch()
                failures = 0 if time.monotonic() - began > SHORT_S else failures + 1
                self._pause(failures)
            except ApiError as error:
                if error.gone:
                    self._version = None
                    continue
                if error.forbidden or error.unauthorized:
                    self._disbelieve()
                failures += 1
                self._fail(error, failures)
            except AwayError as error:
                failures += 1
                self._fail(error, failures)

    def _list(self) -> None:
        found = self._client.list(self._path, labelSelector=self._selector)
        kept: Sequence[Document] = found["items"]
        version = found["metadata"].get("resourceVersion")
        if not version:
            raise AwayError(f"{self._path}: a list without a version")
        with self._changed:
            self._objects, self._groups = {}, {}
            for item in kept:
                self._keep(item)
            self._version = version
            self._hear()

    def _watch(self) -> None:
        asked_s = CHANCE.randint(*WATCH_S)
        events = self._client.watch(
            self._path, read_s=SILENT_S, labelSelector=self._selector,
            resourceVersion=self._version, timeoutSeconds=asked_s,
        )  # fmt: skip
        for event in events:
            found = event["object"]
            with self._changed:
                self._version = found["metadata"]["resourceVersion"]
                if event["type"] == "DELETED":
                    self._departed[found["metadata"]["name"]] = _lean(found)
                    self._drop(found)
                elif event["type"] != "BOOKMARK":
                    self._take(found)
                self._hear()

    def _hear(self) -> None:
        self._heard, self._trouble = time.monotonic(), None
        self._changed.notify_all()

    def _take(self, found: Document) -> None:
        metadata = found["metadata"]
        name, version = metadata["name"], _number(metadata)
        known = self._objects.get(name)
        if known is not None and _number(known["metadata"]) > version:
            return
        if self._deleted.get(metadata["uid"], -1) < version:
            self._keep(found)

    def _drop(self, found: Document) -> None:
        metadata = found["metadata"]
        self._deleted[metadata["uid"]] = _number(metadata)
        for memory in (self._deleted, self._departed):
            while len(memory) > REMEMBERED:
                del memory[next(iter(memory))]
        known = self._objects.get(metadata["name"])
        if known is not None and known["metadata"]["uid"] == metadata["uid"]:
            self._lose(known)

    def _keep(self, found: Document) -> None:
        name = found["metadata"]["name"]
        if name in self._objects:  # its group may have been another
            self._lose(self._objects[name])
        self._objects[name] = _lean(found)
        self._groups.setdefault(self._group(found), {})[name] = found

    def _lose(self, known: Document) -> None:
        name, key = known["metadata"]["name"], self._group(known)
        del self._objects[name]
        del self._groups[key][name]
        if not self._groups[key]:
            del self._groups[key]

    def _disbelieve(self) -> None:
        """Who may not watch has a copy that stands still; it begins anew with a list."""
        with self._changed:
            self._version = self._heard = None

    def _fail(self, error: ApiError | AwayError, failures: int) -> None:
        with self._changed:
            self._trouble = error
            self._changed.notify_all()
        self._pause(failures)

    @staticmethod
    def _pause(failures: int) -> None:
        if not failures:
            return
        first_s, most_s = BACKOFF_S
        wait_s = min(most_s, first_s * 2 ** min(failures - 1, 10))
        time.sleep(wait_s / 2 + CHANCE.random() * wait_s / 2)


def _lean(found: Document) -> Document:
    """Without the record of who wrote which field: half of an object, and nobody reads it."""
    found["metadata"].pop("managedFields", None)
    return found


def _number(metadata: Mapping[str, Any]) -> int:
    """Resource versions of one kind grow with every change (since Kubernetes 1.35: guaranteed)."""
    text = str(metadata.get("resourceVersion") or "0")
    return int(text) if text.isdigit() else 0
