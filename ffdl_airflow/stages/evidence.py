"""Why an attempt failed: collect the evidence, judge it, keep it, decide what follows."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.events import Kind, NewEvent
from ffdl_airflow.core.failures.classes import FailureClass
from ffdl_airflow.core.failures.rules import Verdict, judge
from ffdl_airflow.core.lifecycle import Phase
from ffdl_airflow.core.observation import Presence
from ffdl_airflow.engines.base import SupportsTail
from ffdl_airflow.stages import launch, reserve
from ffdl_airflow.stages.deps import Deps, Job, Step
from ffdl_airflow.stages.verdicts import decided


def perform(deps: Deps, job: Job) -> Step:
    """Judge the newest attempt. The restart keeps the placement where its gang still holds."""
    state = job.state
    seen = reserve.look(deps, job)
    if seen.facts:
        return Step(facts=seen.facts)
    if seen.presence is Presence.ALIVE and seen.gang_state in (protocol.STOPPING, None):
        return reserve.watch(job, seen)
    holds = seen.presence is Presence.ALIVE and seen.gang_state == protocol.HOLDING
    verdict = _verdict(state.attempt_result or {}, resumed=state.resume is not None)
    facts = decided(deps, job, verdict, to=(Phase.RESERVED if holds else Phase.RESERVING).value)
    if verdict.failure is FailureClass.CKPT_CORRUPT and state.resume:
        facts.insert(0, launch.refuse(deps, job, state.resume, reason=verdict.cause))
    keep(deps, job, facts)
    return Step(facts=tuple(facts))


def keep(deps: Deps, job: Job, facts: list[NewEvent]) -> None:
    """Write the evidence of the attempt: verdict, timeline, tails of its ranks."""
    state = job.state
    folder = folder_of(deps, state.job_id, state.attempt)
    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    verdict = next(dict(fact.body) for fact in facts if fact.kind is Kind.VERDICT)
    protocol.write_json(str(folder / "verdict.json"), {"v": 1, **verdict})
    events = [e for e in deps.ledger.read(state.job_id) if e.attempt == state.attempt]
    lines = [json.dumps(event.document(), sort_keys=True) for event in events]
    (folder / "timeline.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if isinstance(deps.engine, SupportsTail):
        for (_, attempt, rank), path in deps.engine.log_paths(state.job_id).items():
            if attempt == state.attempt:
                (folder / "ranks" / f"{rank}.tail").write_bytes(tail(path, protocol.TAIL_BYTES))


def folder_of(deps: Deps, job_id: str, attempt: int) -> Path:
    """Where the evidence of an attempt lies."""
    return Path(deps.roots.state_dir) / "jobs" / job_id / "attempts" / str(attempt) / "evidence"


def tail(path: str, count: int) -> bytes:
    """The last ``count`` bytes of a file, at most."""
    with Path(path).open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - count))
        return file.read()


def _verdict(result: Mapping[str, Any], *, resumed: bool) -> Verdict:
    """A stop that nobody asked for in the log came from outside, by a signal to an agent."""
    verdict = judge(result, resumed=resumed)
    if verdict.failure is not FailureClass.CANCELLED:
        return verdict
    return Verdict(failure=FailureClass.KILLED_OUTSIDE, cause=verdict.cause, certain=False)
