"""A job told from its log and its row, as plain data. For the command line, the pages, the demo."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from ffdl_airflow.agent.protocol import who
from ffdl_airflow.core.accounting import cost, rounded
from ffdl_airflow.core.events import Event, Kind, iso
from ffdl_airflow.core.lifecycle import JobState, Phase, fold
from ffdl_airflow.core.manifests.ffdl import read_job
from ffdl_airflow.core.plan import gang_slots
from ffdl_airflow.core.quantities import format_bytes, format_duration
from ffdl_airflow.ledger.base import JobRow


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
        "warnings": warnings(events),
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
        "slot_seconds": slot_seconds({str(use): s for use, s in spent.by_use.items()}, digits=3),
        "spec": job.document(),
    }  # fmt: skip


def slot_seconds(parts: Mapping[str, float], *, digits: int) -> dict[str, float]:
    """Slot-seconds by use and their total, rounded for people: they add up as they are shown."""
    found = rounded({use: value for use, value in parts.items() if use != "total"}, digits)
    return {**found, "total": round(sum(found.values()), digits)}


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


def job_row(row: JobRow, now: datetime) -> dict[str, Any]:
    """The columns of ``ffdl get``."""
    summary = row.summary
    started = datetime.fromisoformat(summary["submitted_at"])
    ended = summary.get("ended_at")
    until = datetime.fromisoformat(ended) if ended else now
    model = summary.get("model") or {}
    generations = summary.get("generations") or {}
    return {
        "job": row.job_id,
        "name": summary["name"],
        "phase": summary["phase"],
        "replicas/gpus": f"{summary['replicas']}/{summary['gpus']}",
        "utilization": _utilization(row),
        "duration": format_duration((until - started).total_seconds()),
        "generation": ",".join(f"{k}={v}" for k, v in sorted(generations.items())),
        "model": f"{model['name']}:{model['version']}" if model else None,
        "sha256": model.get("sha256"),
        "attempt": summary.get("attempt"),
        "step": summary.get("step"),
        "team": summary.get("team"),
        "reason": summary.get("reason") or summary.get("waiting") or summary.get("warning"),
    }


def _utilization(row: JobRow) -> str | None:
    """Of what runs the newest sample, of what has ended the mean over its attempts."""
    if row.phase == Phase.RUNNING:
        return utilization(row.status)
    mean = row.summary.get("cpu_percent")
    return None if mean is None else f"CPU {mean:.0f}%"


def utilization(status: Mapping[str, Any] | None) -> str | None:
    """Mean GPU use of the ranks, else their CPU use; None where nobody has measured."""
    ranks = [rank for rank in (status or {}).get("ranks") or [] if rank.get("state") != "exited"]
    for key, name in (("gpu_percent", "GPU"), ("cpu_percent", "CPU")):
        values = [rank[key] for rank in ranks if rank.get(key) is not None]
        if values:
            return f"{name} {sum(values) / len(values):.0f}%"
    return None


_WARNINGS = (Kind.WATCHDOG_WARNED, Kind.WATCHDOG_RECOVERED, Kind.CHECKPOINT_REFUSED)


def warnings(events: Sequence[Event]) -> list[dict[str, Any]]:
    """What the watchdog has warned of or withdrawn, and the checkpoints that were refused."""
    return [
        {"at": iso(event.at), "kind": event.kind.value, "attempt": event.attempt,
         "text": event_text(event)}
        for event in events
        if event.kind in _WARNINGS
    ]  # fmt: skip


def evidence_text(document: Mapping[str, Any]) -> str:
    """Why an attempt failed, for people: class, cause, what to do now, and the ends of its logs."""
    verdict = document["verdict"]
    replica = verdict.get("replica")
    where = "" if replica is None else f" ({who(replica, verdict.get('rank'))})"
    cost = "costs one of backoffLimit" if verdict.get("costs") else "costs nothing"
    lines = [
        f"attempt {document['attempt']}: {verdict['class']}{where}, {cost}",
        f"cause: {verdict['cause']}",
        f"next:  {verdict['next_step']}",
        f"kept:  {document['folder']}",
    ]
    for rank, tail in document["tails"].items():
        lines += [f"--- rank {rank}" if rank.isdigit() else f"--- {rank}", tail.rstrip("\n")]
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


def _running(body: Mapping[str, Any]) -> Iterable[Any]:
    """What was tuned; the reasons stand in the event and in each log."""
    return (f"{one['name']}={one['value']}" for one in body.get("tuned", ()))


def _exited(body: Mapping[str, Any]) -> Iterable[Any]:
    how = f"signal {body['signal']}" if body.get("signal") else f"exit code {body.get('exit')}"
    yield f"{who(body.get('replica'), body.get('rank'))}: {how}"


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


def _placed(body: Mapping[str, Any]) -> Iterable[Any]:
    nodes: Mapping[str, str] = body.get("nodes") or {}
    if nodes:
        yield ", ".join(f"{replica} on {node}" for replica, node in nodes.items())
    else:
        yield f"slots {' '.join(map(str, body.get('slots', ())))}"


def _lost(body: Mapping[str, Any]) -> Iterable[Any]:
    where = f" on {body['node']}" if body.get("node") else ""
    yield f"{body.get('replica')}{where}: {body.get('what')}"
    yield body.get("message")


def _registered(body: Mapping[str, Any]) -> Iterable[Any]:
    yield f"{body.get('name')} version {body.get('version')}"
    yield f"sha256 {body.get('sha256')}"


_TEXTS: Mapping[Kind, _Texts] = {
    Kind.SUBMITTED: _submitted,
    Kind.VALIDATED: _validated,
    Kind.PREFETCH_STARTED: _sources,
    Kind.DATA_READY: _moved,
    Kind.RESERVE_INTENDED: lambda body: [f"placement {body.get('placement')}"],
    Kind.PLACED: _placed,
    Kind.REPLICA_LOST: _lost,
    Kind.RESERVED: lambda body: [f"held for {format_duration(body.get('hold_s') or 0)}"],
    Kind.HOLD_EXPIRED: lambda body: [f"after {format_duration(body.get('held_s') or 0)}"],
    Kind.GO_INTENDED: _gone,
    Kind.RUNNING: _running,
    Kind.PROGRESS_SUMMARY: _progress,
    Kind.CHECKPOINT_SEALED: _sealed,
    Kind.CHECKPOINT_REFUSED: _refused,
    Kind.RANK_EXITED: _exited,
    Kind.ATTEMPT_ENDED: _attempt_ended,
    Kind.VERDICT: lambda body: [f"{body.get('class')}: {body.get('cause')}"],
    Kind.RESTART_DECIDED: _restart,
    Kind.END_INTENDED: lambda body: [body.get("why"), body.get("mode")],
    Kind.DEADLINE_MISSED: lambda body: [body.get("reason"), body.get("action")],
    Kind.TRAINED: lambda body: [f"step {body.get('step')}"],
    Kind.MODEL_REGISTERED: _registered,
    Kind.RELEASED: _released,
    Kind.STOP_WANTED: lambda body: [body.get("why"), body.get("mode"), body.get("by")],
    Kind.CLEARED: lambda body: [
        body.get("task"),
        body.get("mode"),
        f"back to {body.get('to') or 'Validated'}",
    ],
}
