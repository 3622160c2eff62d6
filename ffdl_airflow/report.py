"""A job told from its log: phases, attempts, data, cost, model. For ``describe`` and the demo."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from ffdl_airflow.core.accounting import cost
from ffdl_airflow.core.events import Event, Kind, iso
from ffdl_airflow.core.lifecycle import JobState, fold
from ffdl_airflow.core.manifests.ffdl import read_job
from ffdl_airflow.core.plan import gang_slots
from ffdl_airflow.core.quantities import format_bytes, format_duration


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


def evidence_text(document: Mapping[str, Any]) -> str:
    """Why an attempt failed, for people: class, cause, what to do now, and the ends of its logs."""
    verdict = document["verdict"]
    rank = verdict.get("rank")
    where = "" if rank is None else f" (rank {rank}, {verdict['replica']})"
    cost = "costs one of backoffLimit" if verdict.get("costs") else "costs nothing"
    lines = [
        f"attempt {document['attempt']}: {verdict['class']}{where}, {cost}",
        f"cause: {verdict['cause']}",
        f"next:  {verdict['next_step']}",
        f"kept:  {document['folder']}",
    ]
    for rank, tail in document["tails"].items():
        lines += [f"--- rank {rank}", tail.rstrip("\n")]
    return "\n".join(lines)


def event_text(event: Event) -> str:
    """What an event says, in one line: the reason first, nothing that other columns have."""
    if event.kind is Kind.ADOPTED:
        return "by " + ", ".join(f"{key} {value}" for key, value in sorted(event.source.items()))
    body = event.body
    told = _TEXTS.get(event.kind)
    parts = [body.get(key) for key in _REASONS] if told is None else told(body)
    return ", ".join(str(part) for part in parts if part not in (None, ""))


_REASONS = ("reason", "cause", "text", "why", "by")
_Texts = Callable[[Mapping[str, Any]], Iterable[Any]]


def count(number: object, name: str) -> str:
    """``1 replica``, ``2 replicas``, ``2 processes``."""
    ending = "" if number == 1 else "es" if name.endswith("s") else "s"
    return f"{number} {name}{ending}"


def _moved(body: Mapping[str, Any]) -> Iterable[Any]:
    for name, store in body.get("stores", {}).items():
        moved = format_bytes(store.get("moved_bytes", 0))
        yield f"{name} is generation {store['generation']} ({moved} moved)"


def _sources(body: Mapping[str, Any]) -> Iterable[Any]:
    return (f"{name} from {source.get('path')}" for name, source in body.get("sources", {}).items())


def _gone(body: Mapping[str, Any]) -> Iterable[Any]:
    begin = body.get("resume")
    yield "from nothing" if begin is None else f"from the checkpoint of step {begin['step']}"


def _refused(body: Mapping[str, Any]) -> Iterable[Any]:
    yield f"step {body.get('step')}: {body.get('reason')}"
    if "chosen" in body:
        chosen = body["chosen"]
        yield "nothing older is left" if chosen is None else f"step {chosen['step']} is used"
        yield f"{count(body.get('lost_steps', 0), 'step')} lost"


def _sealed(body: Mapping[str, Any]) -> Iterable[Any]:
    seconds = body.get("seconds")
    took = "" if seconds is None else f" in {format_duration(seconds)}"
    yield f"step {body['step']}, {format_bytes(body.get('bytes', 0))}{took}"


def _exited(body: Mapping[str, Any]) -> Iterable[Any]:
    how = f"signal {body['signal']}" if body.get("signal") else f"exit code {body.get('exit')}"
    yield f"rank {body.get('rank')} of {body.get('replica')}: {how}"


def _attempt_ended(body: Mapping[str, Any]) -> Iterable[Any]:
    step = body.get("last_step")
    at = "" if step is None else f" after step {step}"
    if body.get("ok"):
        yield f"well{at}"
    else:
        yield f"{(body.get('cause') or {}).get('text') or 'failed'}{at}"


def _restart(body: Mapping[str, Any]) -> Iterable[Any]:
    delay = body.get("delay_s") or 0
    where = {"Reserved": "on the same placement", "Reserving": "on a new placement"}
    yield body.get("reason")
    yield f"again in {format_duration(delay)}" if delay else "again at once"
    yield where.get(str(body.get("to")))


def _progress(body: Mapping[str, Any]) -> Iterable[Any]:
    yield f"step {body.get('step')}"
    for name, value in {"loss": body.get("loss"), **(body.get("metrics") or {})}.items():
        if isinstance(value, (int, float)):
            yield f"{name} {value:.4g}"


def _validated(body: Mapping[str, Any]) -> Iterable[Any]:
    yield count(body.get("replicas"), "replica")
    yield count(body.get("gpus"), "GPU")
    limit = body.get("time_limit_s")
    yield None if limit is None else f"{format_duration(limit)} of running at most"
    yield from body.get("warnings", ())


def _released(body: Mapping[str, Any]) -> Iterable[Any]:
    yield body.get("why")
    yield f"{count(body['killed'], 'process')} had to be killed" if body.get("killed") else None


def _submitted(body: Mapping[str, Any]) -> Iterable[Any]:
    owner = body.get("owner") or {}
    yield f"by {owner.get('key')}"
    yield owner.get("user")


def _registered(body: Mapping[str, Any]) -> Iterable[Any]:
    yield f"{body.get('name')} version {body.get('version')}"
    yield f"sha256 {body.get('sha256')}"


_TEXTS: Mapping[Kind, _Texts] = {
    Kind.SUBMITTED: _submitted,
    Kind.VALIDATED: _validated,
    Kind.PREFETCH_STARTED: _sources,
    Kind.DATA_READY: _moved,
    Kind.RESERVE_INTENDED: lambda body: [f"placement {body.get('placement')}"],
    Kind.PLACED: lambda body: [f"slots {' '.join(map(str, body.get('slots', ())))}"],
    Kind.RESERVED: lambda body: [f"held for {format_duration(body.get('hold_s') or 0)}"],
    Kind.HOLD_EXPIRED: lambda body: [f"after {format_duration(body.get('held_s') or 0)}"],
    Kind.GO_INTENDED: _gone,
    Kind.PROGRESS_SUMMARY: _progress,
    Kind.CHECKPOINT_SEALED: _sealed,
    Kind.CHECKPOINT_REFUSED: _refused,
    Kind.RANK_EXITED: _exited,
    Kind.ATTEMPT_ENDED: _attempt_ended,
    Kind.VERDICT: lambda body: [f"{body.get('class')}: {body.get('cause')}"],
    Kind.RESTART_DECIDED: _restart,
    Kind.END_INTENDED: lambda body: [body.get("why"), body.get("mode")],
    Kind.TRAINED: lambda body: [f"step {body.get('step')}"],
    Kind.MODEL_REGISTERED: _registered,
    Kind.RELEASED: _released,
    Kind.STOP_WANTED: lambda body: [body.get("why"), body.get("mode"), body.get("by")],
    Kind.CLEARED: lambda body: [body.get("task"), body.get("mode"), f"back to {body.get('to')}"],
}
