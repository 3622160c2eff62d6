"""A job told from its log: phases, attempts, data, cost, model. For ``describe`` and the demo."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ffdl_airflow.core.accounting import cost
from ffdl_airflow.core.events import Event, Kind, iso
from ffdl_airflow.core.lifecycle import JobState, fold
from ffdl_airflow.core.manifests.ffdl import read_job
from ffdl_airflow.core.plan import gang_slots


def describe(job_id: str, events: Sequence[Event], *, now: datetime) -> dict[str, Any]:
    """Everything that the log says of a job, as plain data."""
    state = fold(job_id, events)
    job = read_job(state.spec)
    spent = cost(events, now=now, slots=gang_slots(job.spec))
    return {
        "job": job_id,
        "name": job.metadata.name,
        "phase": str(state.phase),
        "reason": state.reason or None,
        "waiting": state.waiting,
        "owner": dict(state.owner),
        "framework": job.spec.training.framework,
        "gang": {"replicas": job.spec.gang_size, "gpus": job.spec.total_gpus,
                 "slots": gang_slots(job.spec)},
        "phases": phases(state, now),
        "data": dict(state.data.get("stores", {})),
        "attempts": attempts(events),
        "checkpoint": dict(state.checkpoint) if state.checkpoint else None,
        "verdict": dict(state.verdict) if state.verdict else None,
        "model": dict(state.model) if state.model else None,
        "slot_seconds": {
            **{str(use): round(value, 3) for use, value in spent.by_use.items()},
            "total": round(spent.total_s, 3),
        },
        "spec": job.document(),
    }  # fmt: skip


def phases(state: JobState, now: datetime) -> list[dict[str, Any]]:
    """Each stay in a phase with its length in seconds; the last one goes on unless terminal."""
    found = []
    for number, (phase, at) in enumerate(state.story):
        last = number == len(state.story) - 1
        until = (at if state.terminal else now) if last else state.story[number + 1][1]
        found.append({"phase": str(phase), "at": iso(at),
                      "seconds": round((until - at).total_seconds(), 3)})  # fmt: skip
    return found


def attempts(events: Sequence[Event]) -> list[dict[str, Any]]:
    """One line for each attempt: where it started from, how far it came, how it ended."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.kind is Kind.GO_INTENDED:
            number = int(event.body["attempt"])
            found[number] = {"attempt": number, "placement": event.body["placement"],
                             "resume": event.body.get("resume"), "result": "running"}  # fmt: skip
        line = found.get(event.attempt or 0)
        if line is None:
            continue
        if event.kind is Kind.ATTEMPT_ENDED:
            cause = event.body.get("cause") or {}
            line |= {"result": "ok" if event.body.get("ok") else "failed",
                     "first_step": event.body.get("first_step"),
                     "last_step": event.body.get("last_step"),
                     "ended_at": iso(event.at), "cause": cause.get("text")}  # fmt: skip
        if event.kind is Kind.VERDICT:
            line |= {"class": event.body.get("class"), "cause": event.body.get("cause"),
                     "next_step": event.body.get("next_step")}  # fmt: skip
    return list(found.values())
