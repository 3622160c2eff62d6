"""Launch: choose the checkpoint, intend the attempt, tell the gang to go."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.checkpoints import Candidate, Choice, choose, lost_steps
from ffdl_airflow.core.events import Kind, NewEvent
from ffdl_airflow.engines.base import AgentAway, AgentRefused
from ffdl_airflow.stages import reserve
from ffdl_airflow.stages.deps import Deps, Job, Step

REFUSED_DIR = "refused"
"""Bad checkpoints are moved here, so that nothing takes them for good ones later."""


def perform(deps: Deps, job: Job) -> Step:
    """Choose the newest valid checkpoint; what was refused on the way is an event each."""
    seen = reserve.look(deps, job)
    if seen.facts or seen.status is None:
        return reserve.settle(deps, job, seen)
    renew(deps, job)
    root = job.checkpoint_dir(deps.roots)
    choice = choose(_candidates(root), floor=job.state.checkpoint_floor)
    facts = refusals(deps, job, choice)
    resume = _reference(choice.chosen)
    body = {"placement": job.state.placement, "attempt": job.state.attempt + 1, "resume": resume}
    facts.append(NewEvent(kind=Kind.GO_INTENDED, at=deps.clock(), body=body,
                          attempt=job.state.attempt + 1))  # fmt: skip
    return Step(facts=tuple(facts))


def go(deps: Deps, job: Job) -> Step:
    """Tell the gang to start the intended attempt, where it has not; look."""
    state = job.state
    seen = reserve.look(deps, job)
    if seen.facts or seen.status is None or seen.attempt >= state.attempt:
        return reserve.settle(deps, job, seen)
    limit = job.spec.spec.time_limit_s
    order: dict[str, Any] = {
        "attempt": state.attempt,
        "resume_from": state.resume["path"] if state.resume else None,
        "resume_step": state.resume["step"] if state.resume else None,
        "time_left_s": None if limit is None else max(1.0, limit - state.running_s),
        "env": {},
    }
    try:
        deps.engine.connect(state.placement_id).go(order)
    except AgentAway:
        return reserve.observe(deps, job)
    except AgentRefused as refused:
        if refused.code not in ("expired", "not-holding", "stale-attempt"):
            raise
    return reserve.observe(deps, job)


def save(deps: Deps, job: Job) -> Step:
    """Ask the running attempt for a checkpoint; its journal's ``SaveRequested`` ends the wish."""
    with suppress(AgentAway, AgentRefused):
        deps.engine.connect(job.state.placement_id).save("asked for")
    return reserve.observe(deps, job)


def renew(deps: Deps, job: Job) -> None:
    """The hold counts from now; a gang that is away says so at the next look."""
    hold = job.spec.spec.reservation.hold or deps.timing.hold_s
    try:
        deps.engine.connect(job.state.placement_id).renew(hold)
    except (AgentAway, AgentRefused):
        return


def refusals(deps: Deps, job: Job, choice: Choice) -> list[NewEvent]:
    """One event for each bad checkpoint, also for one whose directory is gone."""
    known, chosen = job.state.checkpoint, choice.chosen
    lost = lost_steps(known, chosen)
    facts = []
    bad = [(c.step, quarantine(c.path), c.problem or "") for c in choice.refused]
    gone = known is not None and lost > 0 and all(step != known["step"] for step, _, _ in bad)
    if known is not None and gone:
        bad.insert(0, (int(known["step"]), str(known["path"]), "the directory is gone"))
    for step, path, problem in bad:
        body = {"step": step, "path": path, "reason": problem, "chosen": _reference(chosen),
                "lost_steps": lost}  # fmt: skip
        facts.append(NewEvent(kind=Kind.CHECKPOINT_REFUSED, at=deps.clock(), body=body))
    return facts


def refuse(deps: Deps, job: Job, resume: Mapping[str, Any], *, reason: str) -> NewEvent:
    """The checkpoint that an attempt could not read, although it looked good, is not used again."""
    moved = quarantine(str(resume["path"]))
    root, floor = job.checkpoint_dir(deps.roots), job.state.checkpoint_floor
    chosen = choose(_candidates(root), floor=floor).chosen
    body = {"step": resume["step"], "path": moved, "reason": reason, "chosen": _reference(chosen),
            "lost_steps": lost_steps(resume, chosen)}  # fmt: skip
    return NewEvent(kind=Kind.CHECKPOINT_REFUSED, at=deps.clock(), body=body)


def _reference(chosen: Candidate | None) -> dict[str, Any] | None:
    """A checkpoint as events name it."""
    if chosen is None:
        return None
    sha256 = (chosen.manifest or {}).get("sha256")
    return {"step": chosen.step, "path": chosen.path, "sha256": sha256}


def _candidates(root: str) -> Iterator[Candidate]:
    for step, path in protocol.list_checkpoints(root):
        manifest, problem = protocol.check_checkpoint(path)
        yield Candidate(step=step, path=path, manifest=manifest, problem=problem)


def quarantine(path: str) -> str:
    """Move a bad checkpoint out of the way; returns where it lies now."""
    folder = Path(path).parent / REFUSED_DIR
    folder.mkdir(exist_ok=True)
    name = Path(path).name
    number = sum(1 for other in folder.iterdir() if other.name.startswith(name)) + 1
    target = folder / f"{name}.{number}"
    try:
        Path(path).rename(target)
    except FileNotFoundError:
        return path  # another driver has just moved it
    return str(target)
