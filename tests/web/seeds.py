"""A ledger with jobs in it, and the app over it, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient

from ffdl_airflow.core.events import Event, Kind, NewEvent
from ffdl_airflow.core.lifecycle import fold
from ffdl_airflow.core.summary import summary
from ffdl_airflow.engines.base import ProcessLog
from ffdl_airflow.ledger.base import Batch
from ffdl_airflow.stages.deps import Deps, Job
from ffdl_airflow.testing.builders import T0, LogBuilder
from ffdl_airflow.testing.fake_engine import FakeEngine
from ffdl_airflow.testing.instant import ManualClock, instant_deps
from ffdl_airflow.testing.memory_ledger import MemoryLedger

SHA = "0123456789abcdef" * 4


class EngineWithLogs(FakeEngine):
    """Logs are files ``JOB.ATTEMPT.RANK.log`` of a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def logs(self, job_id: str) -> list[ProcessLog]:
        found = []
        for path in sorted(self.folder.glob(f"{job_id}.*.log")):
            _, attempt, rank, _ = path.name.split(".")
            found.append(
                ProcessLog(placement=1, attempt=int(attempt), replica=f"worker-{rank}",
                           rank=int(rank), label=rank, path=str(path))
            )  # fmt: skip
        return found

    def write(self, job_id: str, rank: int, text: str, attempt: int = 1) -> None:
        (self.folder / f"{job_id}.{attempt}.{rank}.log").write_text(text)


class Rights:
    """The rights of one reader, said by a test."""

    def __init__(self, dags: Iterable[str | None], *, enter: bool, logs: bool) -> None:
        self._dags, self._enter, self._logs = set(dags), enter, logs

    def may_enter(self) -> bool:
        return self._enter

    def readable(self, owners: Iterable[Mapping[str, Any]]) -> Any:
        return self.may_read

    def may_read(self, owner: Mapping[str, Any]) -> bool:
        return owner.get("dag_id") in self._dags

    def may_read_logs(self, owner: Mapping[str, Any]) -> bool:
        return self._logs and self.may_read(owner)


class Site:
    """An installation of fakes and the app that shows it."""

    def __init__(self, tmp: Path) -> None:
        from ffdl_airflow.web import reading
        from ffdl_airflow.web.app import create_app

        (tmp / "logs").mkdir()
        self.clock = ManualClock()
        self.engine = EngineWithLogs(tmp / "logs")
        self.ledger = MemoryLedger()
        self.deps: Deps = instant_deps(
            tmp, ledger=self.ledger, engine=self.engine, clock=self.clock
        )
        self.app = create_app()
        self.app.dependency_overrides[reading.installation] = lambda: self.deps
        airflow = FastAPI()
        airflow.mount("/ffdl", self.app)
        self.client = TestClient(airflow, follow_redirects=False)

    def put(self, job_id: str, events: Iterable[Event]) -> None:
        """Put a log into the ledger, with its row."""
        events = list(events)
        state = fold(job_id, events)
        new = [NewEvent(kind=e.kind, at=e.at, body=e.body, attempt=e.attempt) for e in events]
        row = summary(state, Job.of(state).spec)
        self.ledger.append(Batch(stream=job_id, expected_seq=None, events=new, projection=row))

    def allow(self, *dags: str | None, enter: bool = True, logs: bool = True) -> None:
        """Whoever asks may see the jobs of these DAGs; None: those of the command line."""
        from ffdl_airflow.web import access

        found = Rights(dags, enter=enter, logs=logs)
        self.app.dependency_overrides[access.rights] = lambda: found

    def get(self, path: str, **options: Any) -> Any:
        return self.client.get(path, **options)


def log_of(job_id: str, *, dag: str | None = "nightly", name: str = "bert-base") -> LogBuilder:
    """A submitted job, of a DAG or of the command line."""
    log = LogBuilder(job_id)
    owner: dict[str, Any] = {"key": "command line", "user": "ada"}
    if dag is not None:
        owner = {"key": f"airflow {dag}/r1/train/-1", "dag_id": dag, "run_id": "r 1/2",
                 "task_id": "train", "map_index": -1}  # fmt: skip
    log.events.clear()
    spec = LogBuilder().events[0].body["spec"]
    spec["metadata"]["name"] = name
    log.add(Kind.SUBMITTED, 0, spec=spec, owner=owner)
    return log


def running(log: LogBuilder) -> LogBuilder:
    """… and now its first attempt runs."""
    log.add(Kind.VALIDATED, 1, replicas=2, gpus=0)
    log.add(Kind.MOVER_INTENDED, 2)
    log.add(Kind.DATA_READY, 5, stores={"corpus": {
        "generation": "g-12ab", "objects": 3, "bytes": 2048, "moved_bytes": 0}})  # fmt: skip
    log.add(Kind.RESERVE_INTENDED, 6, placement=1)
    log.add(Kind.PLACED, 7, placement=1, slots=[0, 1])
    log.add(Kind.RESERVED, 8, placement=1, hold_s=600)
    log.add(Kind.GO_INTENDED, 9, attempt=1, placement=1, resume=None)
    log.add(Kind.RUNNING, 10, 1, placement=1)
    return log


def failed_once(log: LogBuilder) -> LogBuilder:
    """… and has failed, and the second attempt runs from a checkpoint."""
    checkpoint = {"step": 40, "path": "/checkpoints/step-000000000040", "bytes": 9, "sha256": SHA}
    log.add(Kind.CHECKPOINT_SEALED, 20, 1, placement=1, **checkpoint)
    log.add(Kind.ATTEMPT_ENDED, 30, 1, placement=1, ok=False, first_step=1, last_step=57,
            cause={"kind": "exit", "text": "rank 1 ended with exit code 3"})  # fmt: skip
    log.add(Kind.VERDICT, 31, 1, cause="rank 1 ended with exit code 3", costs=True,
            next_step="see the tail of rank 1", **{"class": "USER_CODE"})  # fmt: skip
    log.add(Kind.RESTART_DECIDED, 31, to="Reserved", costs=True, delay_s=0, reason="goes on")
    log.add(Kind.GO_INTENDED, 32, attempt=2, placement=1, resume=checkpoint)
    log.add(Kind.RUNNING, 33, 2, placement=1)
    return log


def succeeded(log: LogBuilder) -> LogBuilder:
    """… and has ended well, with a model."""
    log.add(Kind.ATTEMPT_ENDED, 60, 2, placement=1, ok=True, first_step=41, last_step=100,
            cause={"kind": "ok", "text": "done"})  # fmt: skip
    log.add(Kind.TRAINED, 61, placement=1, step=100)
    log.add(Kind.RELEASED, 62, placement=1, why="the gang has ended well", killed=0)
    log.add(Kind.REGISTER_INTENDED, 63, name="bert-base")
    log.add(Kind.MODEL_REGISTERED, 64, name="bert-base", version=7, sha256=SHA,
            path="/models/bert-base/7", metrics={"accuracy": 0.98712345})  # fmt: skip
    log.add(Kind.SUCCEEDED, 65)
    return log


STATUS = {
    "v": 1, "state": "running", "attempt": 1, "step": 57, "metrics": {"loss": 0.25},
    "ranks": [
        {"rank": 0, "replica": "worker-0", "state": "running", "doing": "training", "step": 57,
         "cpu_percent": 93.4, "gpu_percent": None, "rss_bytes": 1 << 28,
         "last_line": "step=57 loss=0.25"},
        {"rank": 1, "replica": "worker-1", "state": "running", "doing": "saving", "step": 56,
         "cpu_percent": 41.0, "gpu_percent": 88.0, "rss_bytes": 1 << 28, "last_line": "<b>x</b>"},
    ],
}  # fmt: skip
__all__ = ["SHA", "STATUS", "T0", "Site", "failed_once", "log_of", "running", "succeeded"]
