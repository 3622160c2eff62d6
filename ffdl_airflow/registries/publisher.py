"""The publisher: ``python -m ffdl_airflow.registries.publisher request.json``.

Copies a checkpoint into the registry as a process of its own, because that can take long. It
belongs to the identity of the version: whoever claims the work gets its answer. It may be killed at
any point; the next one begins the copy anew and takes no second number. ``Publishing`` is the side
of those who ask.
"""

import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from ffdl_airflow.agent import detached, protocol
from ffdl_airflow.core.errors import ErrorReport, FfdlError
from ffdl_airflow.core.model import ModelIdentity, ModelVersion, PublishRequest
from ffdl_airflow.registries import base
from ffdl_airflow.registries.store import DirectoryRegistry, PublishStopped, translated

MODULE = "ffdl_airflow.registries.publisher"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishState:
    """What is known of a publication. ``bytes_total`` is None before it is known.

    ``phase``: what it does, or waits for before it runs. ``path``: the version's folder, when
    ``state`` is ready. Times: UTC, ISO 8601.
    """

    state: Literal["running", "ready", "failed"]
    phase: str = "starting"
    version: ModelVersion | None = None
    path: Path | None = None
    error: ErrorReport | None = None
    bytes_done: int = 0
    bytes_total: int | None = None
    started_at: str | None = None
    ended_at: str | None = None


class Publishing:
    """Publishes into the directory registry under ``model_root`` by processes of their own.

    ``beside``: chooses where they run; without it, and where it has none, on this host.
    """

    def __init__(self, model_root: str | Path, beside: detached.Beside | None = None) -> None:
        self._registry = DirectoryRegistry(model_root)
        self._beside = beside

    def ensure(self, request: PublishRequest) -> PublishState:
        """Claim the version for ``request.job``; start its publisher if none lives.

        Call it again until the state is not ``running``. A failure stays the answer until ``drop``:
        a driver that wants to try again drops first.
        """
        try:
            work = self._work(request)
            found = self._registry.find(_identity(request))
            if found is not None and request.version in (None, found.version):
                work.drop(request.job)
                return self._ready(found, {})
            return self._ask(work, request)
        except OSError as error:
            return _failed({"error": describe_error(translated(error))})
        except base.RegistryError as error:
            return _failed({"error": describe_error(error)})

    def _ask(self, work: detached.Work, request: PublishRequest) -> PublishState:
        document = {"v": 1, "model_root": str(self._registry.root),
                    "publish": request.model_dump(mode="json")}  # fmt: skip
        try:
            kind, answer = work.ask(request.job, MODULE, document)
        except FileNotFoundError:  # cleaned away by another publication just now
            return PublishState(state="running")
        if kind == detached.DIED:
            answer = {"v": 1, "state": "failed", "error": _died(answer["tail"], work)}
            work.put_answer(request.job, answer)
        if answer.get("state") == "failed":
            return _failed(answer)
        if answer.get("state") == "ready":
            found = self._registry.get(request.name, answer["version"])
            return self._ready(found, answer)
        return PublishState(
            state="running", phase=answer.get("phase", "starting"),
            bytes_done=answer.get("bytes_done", 0), bytes_total=answer.get("bytes_total"),
            started_at=answer.get("started_at"),
        )  # fmt: skip

    def drop(self, request: PublishRequest) -> None:
        """Take the claim back and forget the answer. Without claims the process ends in 10 s."""
        self._work(request).drop(request.job)

    def _work(self, request: PublishRequest) -> detached.Work:
        sees = [str(self._registry.root), request.directory]
        runner = self._beside(sees) if self._beside else None
        return detached.Work(str(self._registry.work(_identity(request))), runner)

    def _ready(self, version: ModelVersion, answer: Mapping[str, Any]) -> PublishState:
        size = sum(file.size for file in version.files)
        return PublishState(
            state="ready", version=version, bytes_done=size, bytes_total=size,
            path=self._registry.path(version.name, version.version),
            started_at=answer.get("started_at"), ended_at=answer.get("ended_at"),
        )  # fmt: skip


def _identity(request: PublishRequest) -> ModelIdentity:
    return ModelIdentity(
        name=request.name, job=request.job, checkpointSha256=request.checkpoint.sha256
    )


def _failed(answer: Mapping[str, Any]) -> PublishState:
    return PublishState(
        state="failed", error=ErrorReport(**answer["error"]),
        started_at=answer.get("started_at"), ended_at=answer.get("ended_at"),
    )  # fmt: skip


def _died(tail: str, work: detached.Work) -> dict[str, Any]:
    last = tail.strip().splitlines()[-1:] or ["it printed nothing"]
    return describe_error(
        base.RegistryUnusable(
            f"the publisher died {detached.MAX_FRUITLESS_STARTS} times without getting further",
            code=base.PUBLISHER_DIED, found=last[0], allowed="a publisher that lives",
            next_step=f"see {work.path('log')}; often memory or a kill from outside",
        )
    )  # fmt: skip


def describe_error(error: FfdlError) -> dict[str, Any]:
    """An error as a plain document, for the answer."""
    if not isinstance(error, base.RegistryError):
        error = base.RegistryUnusable(error.cause, code=base.UNUSABLE)
    return error.report()


def main(arguments: list[str]) -> int:
    """Publish what the request names; the answers are in its folder. Returns the exit code."""
    path = Path(arguments[0])
    request = protocol.read_json(str(path))
    if request is None:
        sys.stderr.write(f"{path} is no request\n")
        return 2
    try:
        with detached.Worker(str(path.parent)) as worker:
            return _run(worker, request)
    except detached.AlreadyRunning as error:
        sys.stderr.write(f"{error}\n")
        return 0


def _run(worker: detached.Worker, request: Mapping[str, Any]) -> int:
    started = protocol.now_iso()
    try:
        version = DirectoryRegistry(request["model_root"], worker=worker).publish(
            PublishRequest.model_validate(request["publish"])
        )
        answer: dict[str, Any] = {"state": "ready", "version": version.version}
    except PublishStopped:
        return detached.EXIT_STOPPED
    except (FfdlError, ValidationError) as error:
        traceback.print_exc()
        known = error if isinstance(error, FfdlError) else FfdlError(str(error))
        answer = {"state": "failed", "error": describe_error(known)}
    answer |= {"v": protocol.VERSION, "started_at": started, "ended_at": protocol.now_iso()}
    for job in worker.work.waiting():
        worker.work.put_answer(job, answer)
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    # Nothing may keep the process: a thread may hang in a read of a dead network disk.
    os._exit(status)
