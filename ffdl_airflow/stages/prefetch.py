"""Prefetch: the job's data sets and its code become generations, before any slot is held."""

from collections.abc import Mapping
from typing import Any

from ffdl_airflow.core.events import Kind, NewEvent
from ffdl_airflow.core.failures.classes import FailureClass
from ffdl_airflow.core.failures.rules import Verdict
from ffdl_airflow.core.job import TrainingJob
from ffdl_airflow.stages.deps import Deps, Job, Step, Wait
from ffdl_airflow.stages.verdicts import decided
from ffdl_airflow.stores.cache import MoveProgress, MoveState
from ffdl_airflow.stores.code import CODE_STORE, code_source

_LOOK_S = 0.1
"""Time between two looks at a mover. Chosen; a look reads one small file."""


def sources(job: TrainingJob) -> dict[str, dict[str, Any]]:
    """Store name → source, for the data sets and the code of a job."""
    found = {
        store.name: {"kind": "local", "path": store.path}
        for store in job.spec.dataStores
    }  # fmt: skip
    if job.spec.training.code is not None:
        found[CODE_STORE] = code_source(job.spec.training.code)
    return found


def perform(deps: Deps, job: Job) -> Step:
    """Start the movers that are missing, look at all of them."""
    wanted = sources(job.spec)
    states = {
        name: deps.cache.ensure(name, source, job=job.state.job_id)
        for name, source in wanted.items()
    }
    failed = {name: s for name, s in states.items() if s.state == "failed"}
    if failed:
        name, state = next(iter(failed.items()))
        return Step(facts=(_failure(deps, state, name=name, source=wanted[name]),))
    if all(state.state == "ready" for state in states.values()):
        return Step(facts=(_ready(deps, states),))
    started = NewEvent(
        kind=Kind.PREFETCH_STARTED, at=deps.clock(), dedupe=f"prefetch:{_round(job)}",
        body={"sources": {name: dict(source) for name, source in wanted.items()}},
    )  # fmt: skip
    running = {n: s.progress for n, s in states.items() if s.state == "running"}
    what = ", ".join(f"{name} {_told(progress)}" for name, progress in running.items())
    return Step(facts=(started,), wait=Wait(what=f"fetching {what}", at_most_s=_LOOK_S))


def _told(progress: MoveProgress) -> str:
    """How far a mover is; what it does, or waits for, while nothing is counted yet."""
    if progress.objects_total is None:
        return f"({progress.phase})"
    return f"{progress.objects_done}/{progress.objects_total}"


def judge(deps: Deps, job: Job) -> Step:
    """What follows from a failed move: the verdict, and a restart of the mover or the end."""
    error = job.state.mover_error or {}
    user = error.get("fault") == "user"
    full = error.get("code") == "DISK_FULL"
    failure = FailureClass.DATA_MISSING if user else FailureClass.STORAGE_TRANSIENT
    verdict = Verdict(
        failure=FailureClass.DISK_FULL if full else failure,
        cause=str(error.get("text")), certain=not error.get("retryable"), ran=False,
    )  # fmt: skip
    for name, source in sources(job.spec).items():
        if name == error.get("store"):
            deps.cache.drop(name, source, job=job.state.job_id)
    return Step(facts=tuple(decided(deps, job, verdict, to=None)))


def _failure(deps: Deps, state: MoveState, *, name: str,
             source: Mapping[str, Any]) -> NewEvent:  # fmt: skip
    error = state.error
    body: dict[str, Any] = {"store": name, "source": dict(source)}
    if error is not None:
        body |= {"code": error.code, "text": error.text, "found": error.found,
                 "allowed": error.allowed, "next_step": error.next_step, "fault": error.fault,
                 "retryable": error.retryable}  # fmt: skip
    return NewEvent(kind=Kind.PREFETCH_FAILED, at=deps.clock(), body=body)


def _ready(deps: Deps, states: Mapping[str, MoveState]) -> NewEvent:
    stores = {}
    for name, state in states.items():
        stores[name] = {
            "generation": state.generation, "path": str(state.path),
            "objects": state.progress.objects_done, "bytes": state.progress.bytes_done,
            "moved_bytes": state.progress.moved_bytes, "warnings": list(state.warnings),
            **state.facts,
        }  # fmt: skip
    moved = sum(state.progress.moved_bytes for state in states.values())
    return NewEvent(
        kind=Kind.DATA_READY, at=deps.clock(), body={"stores": stores, "moved_bytes": moved}
    )


def _round(job: Job) -> int:
    """Number of times that the job has entered Prefetching."""
    return sum(1 for phase, _ in job.state.story if phase == "Prefetching")
