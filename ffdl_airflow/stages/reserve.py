"""Reserve, observe and release: a placement from its intent to its end."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.events import Kind, NewEvent, parse_iso
from ffdl_airflow.core.failures.classes import POLICIES
from ffdl_airflow.core.failures.rules import judge
from ffdl_airflow.core.lifecycle import HOLDING, Phase
from ffdl_airflow.core.next_step import end_for
from ffdl_airflow.core.observation import Observation, Presence
from ffdl_airflow.core.plan import EPOCH, ONE_HOST, GangPlan, Places, Timing, build
from ffdl_airflow.engines.base import Ending, EndRequest, Over, SupportsHosts, Waiting
from ffdl_airflow.stages import utilization
from ffdl_airflow.stages.deps import Deps, Job, Roots, Step, Wait

_LOOK_S = 0.2
"""Time between two looks where nothing can be waited on. Chosen."""
_POLL_S = 50.0
"""How long the coordinator may be asked to hold a request open; see ``protocol.LONG_POLL_S``."""


def plan_for(deps: Deps, job: Job) -> GangPlan:
    """The plan of the newest placement, the same from every driver."""
    return plan_of(job, roots=deps.roots, timing=deps.timing,
                   host=host_of(deps.engine, job.state.placement_id))  # fmt: skip


def plan_of(job: Job, *, roots: Roots, timing: Timing, host: str) -> GangPlan:
    """The same from what a plan is made of. ``timing``: where the spec says nothing."""
    state, spec = job.state, job.spec.spec
    stores = state.data.get("stores", {})
    data = {name: entry["path"] for name, entry in stores.items() if name != "code"}
    places = Places(
        checkpoint_dir=job.checkpoint_dir(roots), output_dir=job.output_dir(roots),
        log_dir=f"{job.output_dir(roots)}/logs", python=roots.python, data=data,
        code=stores.get("code", {}).get("path"), host=host,
        asked_at=next((at for phase, at in state.story if phase is Phase.RESERVING), EPOCH),
    )  # fmt: skip
    own = replace(
        timing, hold_s=spec.reservation.hold or timing.hold_s, grace_s=job.grace_s(timing),
        placement_s=spec.reservation.placement or timing.placement_s,
    )  # fmt: skip
    return build(
        job.spec, job_id=state.job_id, placement=state.placement, places=places, timing=own,
        generations={name: entry["generation"] for name, entry in stores.items()
                     if name != "code"},
    )  # fmt: skip


def host_of(engine: object, placement_id: str) -> str:
    """Address of a placement's replicas for one another."""
    return engine.host(placement_id) if isinstance(engine, SupportsHosts) else ONE_HOST


def perform(deps: Deps, job: Job) -> Step:
    """See to it that the intended placement exists; look whether its gang is complete."""
    if job.state.lost:
        return _broken(deps, job)
    answer = deps.engine.reserve(plan_for(deps, job))
    if isinstance(answer, Waiting):
        seen = look(deps, job)
        if seen.facts:
            return Step(facts=seen.facts)
        return _waiting(deps, job, answer)
    if isinstance(answer, Over):
        return _gone(deps, job, last_word=look(deps, job).last_word or "the placement was ended")
    return observe(deps, job)


def _waiting(deps: Deps, job: Job, answer: Waiting) -> Step:
    """Say once what a gang waits for."""
    if answer.reason == job.state.waiting:
        return Step(wait=Wait(what=answer.reason, at_most_s=answer.again_s))
    body = {"placement": job.state.placement, "reason": answer.reason, **answer.detail}
    return Step(facts=(NewEvent(kind=Kind.WAITING, at=deps.clock(), body=body),))


def observe(deps: Deps, job: Job) -> Step:
    """One look at the placement: new facts, or what to wait for."""
    return settle(deps, job, look(deps, job))


def settle(deps: Deps, job: Job, seen: Observation) -> Step:
    """What follows from a look: its facts, the end of a placement that is gone, or a wait."""
    if seen.facts:
        return Step(facts=seen.facts)
    if job.state.lost and job.state.phase in HOLDING:
        return _broken(deps, job)
    if seen.presence in (Presence.GONE, Presence.ABSENT):
        return _gone(deps, job, last_word=seen.last_word)
    if seen.waiting is not None and job.state.phase is Phase.RESERVING:
        return _waiting(deps, job, Waiting(seen.waiting))
    rung = utilization.climb(job, seen, now=deps.clock())
    return Step(facts=rung) if rung else watch(job, seen)


def look(deps: Deps, job: Job) -> Observation:
    """What the engine sees after what the log knows already; the live status is stored."""
    seen = deps.engine.observe(job.state.placement_id, job.state.journal_seq)
    if seen.status is not None:
        deps.ledger.put_status(job.state.job_id, dict(seen.status))
    known = {loss.get("replica") for loss in job.state.lost}
    losses = [_lost(deps, job, loss) for loss in seen.lost if loss["replica"] not in known]
    return replace(seen, facts=(*losses, *seen.facts))


def _lost(deps: Deps, job: Job, loss: Mapping[str, Any]) -> NewEvent:
    at = loss.get("at")
    return NewEvent(
        kind=Kind.REPLICA_LOST, at=parse_iso(at) if at else deps.clock(),
        body={**loss, "placement": job.state.placement},
        attempt=job.state.attempt if job.state.attempt_open else None,
        dedupe=f"lost:{job.state.placement}:{loss['replica']}",
    )  # fmt: skip


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
    """See to it that the placement is gone; its last journal entries come along.

    It held its place until it left, also where no driver was there to see that.
    """
    state = job.state
    seen = look(deps, job)
    if seen.facts:
        return Step(facts=seen.facts)
    request = EndRequest(why=why, mode=mode, grace_s=job.grace_s(deps.timing))
    answer = deps.engine.end(state.placement_id, request)
    if isinstance(answer, Ending):
        return Step(wait=Wait(what=answer.what, at_most_s=_LOOK_S,
                              placement_id=state.placement_id, status=seen.status))  # fmt: skip
    seen = look(deps, job)
    facts = list(seen.facts)
    if state.attempt_open and not any(fact.kind is Kind.ATTEMPT_ENDED for fact in facts):
        cause = {"kind": protocol.CAUSE_STOP, "text": why}
        facts.append(_ended_unseen(deps.clock(), job, cause))
    body: dict[str, Any] = {"placement": state.placement, "why": why, "killed": answer.killed,
                            "lost": lost}  # fmt: skip
    if answer.abandoned:
        body["abandoned"] = dict(answer.abandoned)
    by_itself = not (answer.killed or answer.abandoned)
    at = (seen.left_at if by_itself else None) or deps.clock()
    facts.append(NewEvent(kind=Kind.RELEASED, at=at, body=body,
                          dedupe=f"released:{state.placement}"))  # fmt: skip
    return Step(facts=tuple(facts))


def _broken(deps: Deps, job: Job) -> Step:
    """A gang that has lost a replica before its start: it is given up, for good where it must be.

    What another try would end in as well ends the job; else the place is asked for again.
    """
    verdict = judge({"lost": list(job.state.lost)})
    if verdict.certain and POLICIES[verdict.failure].restart != "always":
        return Step(facts=end_for(job.state, verdict.document(), now=deps.clock()).events)
    return release(deps, job, why=verdict.cause, lost=True)


def _gone(deps: Deps, job: Job, *, last_word: str | None) -> Step:
    """No agent of the placement lives, and its journal says nothing new."""
    if job.state.attempt_open:
        cause = {
            "kind": protocol.CAUSE_AGENT_LOST,
            "text": "the gang is gone without a word; the journal's last entries may be missing",
        }
        return Step(facts=(_ended_unseen(deps.clock(), job, cause),))
    return release(deps, job, why=last_word or "the gang is gone",
                   lost=job.state.phase in (Phase.RESERVING, Phase.RESERVED))  # fmt: skip


def _ended_unseen(at: datetime, job: Job, cause: dict[str, Any]) -> NewEvent:
    """AttemptEnded by the driver, for a gang that could not say it itself."""
    state = job.state
    body = {"placement": state.placement, "ok": False, "cause": cause, "last_step": state.step,
            "unseen": True, "tail": ""}  # fmt: skip
    return NewEvent(kind=Kind.ATTEMPT_ENDED, at=at, attempt=state.attempt, body=body,
                    dedupe=f"ended:{state.placement}:{state.attempt}")  # fmt: skip
