"""Why an attempt failed: collect the evidence, judge it, keep it, decide what follows."""

import json
from pathlib import Path

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.events import Kind, NewEvent
from ffdl_airflow.core.failures.classes import FailureClass
from ffdl_airflow.core.failures.rules import Verdict, judge, of_ending
from ffdl_airflow.core.lifecycle import JobState, Phase
from ffdl_airflow.core.observation import Presence
from ffdl_airflow.engines.base import SupportsTail
from ffdl_airflow.stages import launch, reserve
from ffdl_airflow.stages.deps import Deps, Job, Step, Wait
from ffdl_airflow.stages.verdicts import decided

WORD_S = 60.0
"""Longest wait for the control plane's word on a replica that its gang has lost. A dead container
is told within seconds; a node that does not answer after 50 s (kube-controller-manager,
node-monitor-grace-period), and until then its place could not be given away either."""
WORD_LOOK_S = 0.2
_LEAVES = (protocol.CAUSE_AGENT_LOST, protocol.CAUSE_TERMINATED)
"""Causes after which no gang holds its place."""


def perform(deps: Deps, job: Job) -> Step:
    """Judge the newest attempt. The restart keeps the placement where its gang still holds."""
    state = job.state
    seen = reserve.look(deps, job)
    if seen.facts:
        return Step(facts=seen.facts)
    cause = (state.attempt_result or {}).get("cause") or {}
    leaves = cause.get("kind") in _LEAVES
    there = seen.presence in (Presence.ALIVE, Presence.UNKNOWN)
    if there and not leaves and seen.gang_state in (protocol.STOPPING, None):
        return reserve.watch(job, seen)
    if leaves and seen.unsaid and not state.lost and not _overdue(deps, state):
        what = f"what the control plane says of {', '.join(seen.unsaid)}"
        return Step(wait=Wait(what=what, at_most_s=WORD_LOOK_S))
    holds = seen.presence is Presence.ALIVE and seen.gang_state == protocol.HOLDING and not leaves
    verdict = _verdict(job)
    facts = decided(deps, job, verdict, to=(Phase.RESERVED if holds else Phase.RESERVING).value)
    if verdict.failure is FailureClass.CKPT_CORRUPT and state.resume:
        facts.insert(0, launch.refuse(deps, job, state.resume, reason=verdict.cause))
    keep(deps, job, facts)
    return Step(facts=tuple(facts))


def _overdue(deps: Deps, state: JobState) -> bool:
    """Whether the control plane has had the time that a word about a lost replica takes."""
    since = state.ended_at
    return since is None or (deps.clock() - since).total_seconds() > WORD_S


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
        for log in deps.engine.logs(state.job_id):
            if log.attempt == state.attempt:
                last = tail(log.path, protocol.TAIL_BYTES)
                (folder / "ranks" / f"{log.label}.tail").write_bytes(last)


def folder_of(deps: Deps, job_id: str, attempt: int) -> Path:
    """Where the evidence of an attempt lies."""
    return Path(deps.roots.state_dir) / "jobs" / job_id / "attempts" / str(attempt) / "evidence"


def tail(path: str, count: int) -> bytes:
    """The last ``count`` bytes of a file, at most."""
    with Path(path).open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - count))
        return file.read()


def _verdict(job: Job) -> Verdict:
    """What the driver ended the job for stands; else a stop came from outside by a signal."""
    state = job.state
    if state.ending is not None:
        return of_ending(state.ending)
    result = {**(state.attempt_result or {}), "lost": list(state.lost)}
    verdict = judge(result, resumed=state.resume is not None)
    if verdict.failure is not FailureClass.CANCELLED:
        return verdict
    return Verdict(failure=FailureClass.KILLED_OUTSIDE, cause=verdict.cause, certain=False)
