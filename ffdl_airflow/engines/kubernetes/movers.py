"""Data work as Jobs of the cluster, beside the volumes: the runner of ``agent/detached.py``.

For: copying data and models where they lie, by the same code and through the same folder as on a
driver's host. The Job's name comes from the folder, so that of two drivers one starts it. Not for:
what pods do not see (a DAG's own folder, say); that is moved on the driver's host.
"""

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ffdl_airflow.agent import detached
from ffdl_airflow.engines.kubernetes import render
from ffdl_airflow.engines.kubernetes.cluster import Cluster, Document, is_over
from ffdl_airflow.engines.kubernetes.pending import Pending, why_pending

_LOOK_S = 2.0
"""Time between two questions for a Job without a pod. Chosen: a pod is made within a second."""
_TURN_FILE = "turn"
"""Locked by a driver while it starts a Job; ``lock`` is the process's own."""


@dataclass(frozen=True)
class _Seen:
    """What is known of a Job that has no pod: whether it is to have one, until when it is true."""

    alive: bool
    until: float


class Movers:
    """All of one namespace. Safe for many drivers, here and elsewhere."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen: dict[str, _Seen] = {}
        self._final_since: dict[str, float] = {}
        self._given_up: dict[str, str] = {}

    def sees(self, folders: Sequence[str]) -> bool:
        """Whether the pods of a Job have all these folders on their volumes."""
        settings = self._cluster.settings
        paths = [Path(text) for folder in folders for text in (folder, os.path.realpath(folder))]
        return bool(settings.mover_image) and all(
            any(path.is_relative_to(volume.path) for volume in settings.volumes) for path in paths
        )

    def take(self, work: detached.Work) -> "_Turn | None":
        """See ``Runner``. A process on this host that holds the work's own lock counts as well."""
        name = name_of(work)
        if self._lives(name):
            return None
        own = detached.try_lock(work.path("lock"))
        if own is None:
            return None
        os.close(own)
        lock = detached.try_lock(work.path(_TURN_FILE))
        return None if lock is None else _Turn(self, work, lock)

    def said(self, work: detached.Work) -> str:
        """See ``Runner``."""
        pods = list(self._cluster.movers(name_of(work)).values())
        why = why_pending(pods)
        if why is not None:
            return why.end.message if why.end else f"waiting: {why.reason}"
        return "" if pods else self._given_up.get(name_of(work), "")

    def abandon(self, work: detached.Work) -> None:
        """See ``Runner``: also a pod that waits for an image has to go."""
        self._cluster.remove_job(name_of(work))

    def start(self, work: detached.Work, module: str) -> None:
        """Make the Job; one of its name that has ended goes first, and is made anew next time."""
        name = name_of(work)
        body = render.mover(name, [module, work.path("request.json")], self._cluster.settings)
        found = self._cluster.make_job(body)
        if _is_finished(found):
            self._cluster.remove("jobs", found)
            return
        self._seen[name] = _Seen(True, _soon())

    def _lives(self, name: str) -> bool:
        pods = [pod for pod in self._cluster.movers(name).values() if not is_over(pod)]
        if pods:
            self._judge(name, why_pending(pods))
            return True
        known = self._seen.get(name)
        if known is None or time.monotonic() > known.until:
            found = self._cluster.job(name)
            known = _Seen(found is not None and not _is_finished(found), _soon())
            self._seen[name] = known
            if found is not None and known.alive:
                self._given_up[name] = self._cluster.complaint_of(found)
        return known.alive

    def _judge(self, name: str, why: Pending | None) -> None:
        """A pod that will never run is taken back with its Job: a start that was in vain."""
        if why is None or not why.final:
            self._final_since.pop(name, None)
            return
        since = self._final_since.setdefault(name, time.monotonic())
        if time.monotonic() >= since + why.final_after_s:
            self._given_up[name] = why.reason
            self._final_since[name] = _soon()  # not asked for again while it is leaving
            self._cluster.remove_job(name)


def _soon() -> float:
    return time.monotonic() + _LOOK_S


@dataclass(frozen=True)
class _Turn:
    """Holds the lock by which drivers take turns."""

    movers: Movers
    work: detached.Work
    lock: int

    def start(self, module: str) -> None:
        """See ``detached.Turn``."""
        self.movers.start(self.work, module)

    def close(self) -> None:
        """See ``detached.Turn``."""
        os.close(self.lock)


def name_of(work: detached.Work) -> str:
    """Name of the Job that does the work of a folder."""
    return f"ffdl-mover-{hashlib.sha256(work.directory.encode()).hexdigest()[:16]}"


def _is_finished(job: Mapping[str, Any]) -> bool:
    conditions: Sequence[Document] = (job.get("status") or {}).get("conditions") or ()
    return any(one["type"] in ("Complete", "Failed") and one["status"] == "True"
               for one in conditions)  # fmt: skip
