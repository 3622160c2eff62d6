"""Small valid things to start a test from; every part can be said otherwise."""

from datetime import datetime, timedelta, timezone
from typing import Any

from ffdl_airflow.core.events import Event, Kind, NewEvent, recorded
from ffdl_airflow.core.job import TrainingJob
from ffdl_airflow.core.manifests.ffdl import read_job

T0 = datetime(2026, 3, 1, 22, 0, 0, tzinfo=timezone.utc)


def job_document(**spec: Any) -> dict[str, Any]:
    """A TrainingJob manifest; keyword arguments replace fields of ``spec``."""
    return {
        "apiVersion": "ffdl.cloud.ibm.com/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "bert-base", "labels": {"team": "nlp", "project": "search"}},
        "spec": {
            "training": {"framework": "pytorch", "command": ["python", "train.py"]},
            "replicas": 2,
            "checkpoint": {"every": 100},
            "model": {"name": "bert-base"},
            **spec,
        },
    }


def job(**spec: Any) -> TrainingJob:
    """The same, read."""
    return read_job(job_document(**spec))


class LogBuilder:
    """A log that grows by one event a call; ``at`` is seconds after T0."""

    def __init__(self, job_id: str = "bert-base-0123456789", **spec: Any) -> None:
        self.job_id = job_id
        self.events: list[Event] = []
        self.add(Kind.SUBMITTED, 0, spec=job_document(**spec), owner={"key": "command line"})

    def add(self, kind: Kind, at: float, attempt: int | None = None, /, **body: Any) -> Event:
        """Append an event and return it."""
        moment = T0 + timedelta(seconds=at)
        new = NewEvent(kind=kind, at=moment, body=body, attempt=attempt)
        event = recorded(self.job_id, len(self.events) + 1, new, recorded_at=moment)
        self.events.append(event)
        return event
