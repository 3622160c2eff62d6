"""Reserve, observe and release: a placement from its intent to its end."""

from datetime import datetime
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.events import Kind, NewEvent
from ffdl_airflow.core.lifecycle import Phase
from ffdl_airflow.core.observation import Observation, Presence
from ffdl_airflow.core.plan import GangPlan, Places, Timing, build
from ffdl_airflow.engines.base import Ending, EndRequest, Over, Waiting
from ffdl_airflow.stages.deps import Deps, Job, Step, Wait

_LOOK_S = 0.2
"""Time between two looks where nothing can be waited on. Chosen."""
_POLL_S = 50.0
"""How long the coordinator may be asked to hold a request open; see ``protocol.LONG_POLL_S``."""


def plan_for(deps: Deps, job: Job) -> GangPlan:
    """The plan of the newest placement, the same from every driver."""
    state, spec = job.state, job.spec.spec
    stores = state.data.get("stores", {})
    data = {name: entry["path"] for name, entry in stores.items() if name != "code"}
    timing = Timing(
        heartbeat_s=deps.timing.heartbeat_s, silent_s=deps.timing.silent_s,
        hold_s=spec.reservation.hold or deps.timing.hold_s,
        placement_s=spec.reservation.placement or deps.timing.placement_s,
        grace_s=job.grace_s(deps.timing),
    )  # fmt: skip
    places = Places(
        checkpoint_dir=job.checkpoint_dir(deps.roots), output_dir=job.output_dir(deps.roots),
        log_dir=f"{job.output_dir(deps.roots)}/logs", python=deps.roots.python, data=data,
        code=stores.get("code", {}).get("path"),
    )  # fmt: skip
    return build(
        job.spec, job_id=state.job_id, placement=state.placement, places=places, timing=timing,
        generations={name: entry["generation"] for name, entry in stores.items()
                     if name != "code"},
    )  # fmt: skip


def perform(deps: Deps, job: Job) -> Step:
    """See to it that the intended placement exists; look whether its gang is complete."""
    answer = deps.engine.reserve(plan_for(deps, job))
    if isinstance(answer, Waiting):
        if answer.reason == job.state.waiting:
            return Step(wait=Wait(what=answer.reason, at_most_s=_LOOK_S))
        body = {"placement": job.state.placement, "reason": answer.reason, **answer.detail}
        return Step(facts=(NewEvent(kind=Kind.WAITING, at=deps.clock(), body=body),))
    if isinstance(answer, Over):
        return release(deps, job, why="the placement was ended", lost=True)
    return observe(deps, job)


def observe(deps: Deps, job: Job) -> Step:
    """One look at the placement: new facts, or what to wait for."""
    return settle(deps, job, look(deps, job))


def settle(deps: Deps, job: Job, seen: Observation) -> Step:
    """What follows from a look: its facts, the end of a placement that is gone, or a wait."""
    if seen.facts:
        return Step(facts=seen.facts)
    if seen.presence in (Presence.GONE, Presence.ABSENT):
        return _gone(deps, job)
    return watch(job, seen)


def look(deps: Deps, job: Job) -> Observation:
    """What the engine sees after what the log knows already; the live status is stored."""
    seen = deps.engine.observe(job.state.placement_id, job.state.journal_seq)
    if seen.status is not None:
        deps.ledger.put_status(job.state.job_id, dict(seen.status))
    return seen


def watch(job: Job, seen: Observation) -> Step:
    """Wait for the coordinator's next word."""
    if seen.status is None:
        return Step(wait=Wait(what="the gang to answer", at_most_s=_LOOK_S))
    return Step(
        wait=Wait(what=f"the gang, {seen.gang_state}", at_most_s=_POLL_S,
                  placement_id=job.state.placement_id, status=seen.status)
    )  # fmt: skip


def release(deps: Deps, job: Job, *, why: str, mode: str = protocol.STOP_NOW,
            lost: bool = False) -> Step:  # fmt: skip
    """See to it that the placement is gone; its last journal entries come along."""
    state = job.state
    seen = look(deps, job)
    if seen.facts:
        return Step(facts=seen.facts)
    request = EndRequest(why=why, mode=mode, grace_s=job.grace_s(deps.timing))
    answer = deps.engine.end(state.placement_id, request)
    if isinstance(answer, Ending):
        return Step(wait=Wait(what=answer.what, at_most_s=_LOOK_S,
                              placement_id=state.placement_id, status=seen.status))  # fmt: skip
    facts = list(look(deps, job).facts)
    if state.attempt_open and not any(fact.kind is Kind.ATTEMPT_ENDED for fact in facts):
        cause = {"kind": protocol.CAUSE_STOP, "text": why}
        facts.append(_ended_unseen(deps.clock(), job, cause))
    body: dict[str, Any] = {"placement": state.placement, "why": why, "killed": answer.killed,
                            "lost": lost}  # fmt: skip
    facts.append(NewEvent(kind=Kind.RELEASED, at=deps.clock(), body=body,
                          dedupe=f"released:{state.placement}"))  # fmt: skip
    return Step(facts=tuple(facts))


def _gone(deps: Deps, job: Job) -> Step:
    """No agent of the placement lives, and its journal says nothing new."""
    if job.state.attempt_open:
        cause = {
            "kind": protocol.CAUSE_AGENT_LOST,
            "text": "all agents of the gang are gone; the journal's last entries may be missing",
        }
        return Step(facts=(_ended_unseen(deps.clock(), job, cause),))
    return release(deps, job, why="all agents of the gang are gone",
                   lost=job.state.phase in (Phase.RESERVING, Phase.RESERVED))  # fmt: skip


def _ended_unseen(at: datetime, job: Job, cause: dict[str, Any]) -> NewEvent:
    """AttemptEnded by the driver, for a gang that could not say it itself."""
    state = job.state
    body = {"placement": state.placement, "ok": False, "cause": cause, "last_step": state.step,
            "unseen": True, "tail": ""}  # fmt: skip
    return NewEvent(kind=Kind.ATTEMPT_ENDED, at=at, attempt=state.attempt, body=body,
                    dedupe=f"ended:{state.placement}:{state.attempt}")  # fmt: skip
