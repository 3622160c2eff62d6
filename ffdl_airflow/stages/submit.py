"""Submit: check everything that can be checked before anything is created, then write it down."""

import getpass
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.errors import FieldProblem, SpecError, UserError
from ffdl_airflow.core.events import Kind, NewEvent, recorded
from ffdl_airflow.core.job import SecretRef, TrainingJob
from ffdl_airflow.core.lifecycle import JobState, apply, fold
from ffdl_airflow.core.plan import gang_slots
from ffdl_airflow.core.rendezvous import SUPPORTED
from ffdl_airflow.ledger.base import Batch, Conflict
from ffdl_airflow.stages.deps import Deps, Job, Step
from ffdl_airflow.stages.recording import batch_of
from ffdl_airflow.stores.adapters import open_store
from ffdl_airflow.stores.base import StoreError


def submit(deps: Deps, job: TrainingJob, *, job_id: str, owner: Mapping[str, Any]) -> JobState:
    """Append Submitted; for a job that is there, check its owner and note a changed spec.

    Also of a job that has ended: a clear goes on with the spec that was corrected for it. Raises
    SpecError or UserError before anything is created.
    """
    if not deps.ledger.read(job_id):
        check(deps, job, job_id=job_id)
        with suppress(Conflict):  # somebody else has just submitted it
            _first(deps, job, job_id=job_id, owner=owner)
    state = fold(job_id, deps.ledger.read(job_id))
    _require_owner(state, owner)
    return state if state.spec == job.document() else _changed(deps, job, state)


def check(deps: Deps, job: TrainingJob, *, job_id: str) -> None:
    """Raise one SpecError with every field that this installation cannot serve."""
    problems = [
        *_program(job),
        *_data(job),
        *_secrets(job),
        *_slots(deps, job),
        *_checkpoints(deps, job, job_id),
    ]
    if problems:
        raise SpecError(problems)


def validate(deps: Deps, job: Job) -> Step:
    """The same checks at the start of the life, and the claim on the checkpoint directory."""
    state = job.state
    try:
        check(deps, job.spec, job_id=state.job_id)
    except SpecError as error:
        refusal = {"reason": error.cause, "problems": [str(p) for p in error.problems]}
        return Step(facts=(NewEvent(kind=Kind.REFUSED, at=deps.clock(), body=refusal),))
    own(job.checkpoint_dir(deps.roots), state.job_id, deps.ledger.ledger_id)
    body: dict[str, Any] = {
        "slots": gang_slots(job.spec.spec), "replicas": job.spec.spec.gang_size,
        "gpus": job.spec.spec.total_gpus, "time_limit_s": job.spec.spec.time_limit_s,
        "backoff_limit": job.spec.spec.backoffLimit,
    }  # fmt: skip
    return Step(facts=(NewEvent(kind=Kind.VALIDATED, at=deps.clock(), body=body),))


def require_ledger(deps: Deps, known: Mapping[str, Any] | None) -> None:
    """Refuse to go on in another ledger than the job is in: it would be a second job there."""
    if known is None or known["id"] == deps.ledger.ledger_id:
        return
    raise UserError(
        f"ledger_url: found the ledger of host {deps.source['host']}, the job is in that of host "
        f"{known['host']}; allowed: one ledger for all of Airflow's hosts",
        next_step="set [ffdl] ledger_url to a PostgreSQL database that all hosts reach",
    )


def own(checkpoint_dir: str, job_id: str, ledger_id: str) -> None:
    """Mark the directory as the job's own, before its first writer exists."""
    folder = Path(checkpoint_dir)
    folder.mkdir(parents=True, exist_ok=True)
    if protocol.read_json(str(folder / protocol.OWNER)) is None:
        document = {"v": 1, "job": job_id, "ledger": ledger_id}
        protocol.write_json(str(folder / protocol.OWNER), document)


def user_name() -> str:
    """Who is asking, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _first(deps: Deps, job: TrainingJob, *, job_id: str, owner: Mapping[str, Any]) -> None:
    body = {"spec": job.document(), "owner": dict(owner), "engine": deps.engine_name,
            "spec_sha256": job.sha256, "ledger": deps.ledger.ledger_id}  # fmt: skip
    event = NewEvent(kind=Kind.SUBMITTED, at=deps.clock(), body=body, dedupe="submitted",
                     source=deps.source)  # fmt: skip
    before = JobState(job_id=job_id)
    after = apply(before, recorded(job_id, 1, event, recorded_at=event.at))
    deps.ledger.append(batch_of([event], before=before, after=after))


def _changed(deps: Deps, job: TrainingJob, state: JobState) -> JobState:
    check(deps, job, job_id=state.job_id)
    body = {"spec": job.document(), "spec_sha256": job.sha256}
    event = NewEvent(kind=Kind.SPEC_CHANGED, at=deps.clock(), body=body, source=deps.source)
    deps.ledger.append(Batch(stream=state.job_id, expected_seq=None, events=[event]))
    return fold(state.job_id, deps.ledger.read(state.job_id))


def _require_owner(state: JobState, owner: Mapping[str, Any]) -> None:
    if dict(state.owner).get("key") != owner.get("key"):
        raise UserError(
            f"job {state.job_id}: found another owner ({state.owner.get('key')}), allowed: the "
            f"one that submitted it, not {owner.get('key')}",
            next_step="use the DAG run or command that owns the job, or start a job of its own",
        )


def _program(job: TrainingJob) -> list[FieldProblem]:
    training = job.spec.training
    problems = []
    if training.framework not in SUPPORTED:
        allowed = ", ".join(SUPPORTED)
        path = "spec.training.framework"
        problems.append(FieldProblem(path, repr(training.framework), f"{allowed} (so far)"))
    if training.code is None:
        if training.entryPoint is not None:
            path = "spec.training.code"
            problems.append(FieldProblem(path, "nothing", "the folder or zip that holds "
                                         f"entryPoint {training.entryPoint}"))  # fmt: skip
        return problems
    source = {"kind": "code", "path": training.code}
    listed, problem = _listed("spec.training.code", source)
    if problem is not None:
        return [*problems, problem]
    if training.entryPoint is not None and training.entryPoint not in listed:
        near = ", ".join(sorted(name for name in listed if "/" not in name)[:5])
        problems.append(FieldProblem("spec.training.entryPoint", repr(training.entryPoint),
                                     f"a file in {training.code}, for example {near}"))  # fmt: skip
    return problems


def _data(job: TrainingJob) -> list[FieldProblem]:
    problems = []
    for number, store in enumerate(job.spec.dataStores):
        path = f"spec.dataStores[{number}].path"
        if store.name == "code":
            problems.append(FieldProblem(f"spec.dataStores[{number}].name", "'code'",
                                         "any other name; code is the program's"))  # fmt: skip
        elif store.path is None:
            problems.append(FieldProblem(path, "nothing", "the folder, file or archive with data"))
        else:
            _, problem = _listed(path, {"kind": "local", "path": store.path}, one=True)
            problems += [problem] if problem else []
    return problems


def _listed(path: str, source: Mapping[str, Any], *,
            one: bool = False) -> tuple[set[str], FieldProblem | None]:  # fmt: skip
    """Keys of a source (the first one only, if that is all that is asked), or what is wrong."""
    names: set[str] = set()
    try:
        for entry in open_store(source).list():
            names.add(entry.key)
            if one:
                break
    except StoreError as error:
        found, where = error.found or error.cause, str(source["path"])
        found = found if where in found else f"{where}, {found}"
        return names, FieldProblem(path, found, error.allowed or "a source")
    if not names:
        return names, FieldProblem(path, f"{source['path']} without a file", "at least one file")
    return names, None


def _secrets(job: TrainingJob) -> list[FieldProblem]:
    envs = [("spec.training.env", job.spec.training.env)]
    envs += [(f"spec.roles[{n}].env", role.env) for n, role in enumerate(job.spec.roles)]
    allowed = "plain values: the local engine has no secrets"
    return [
        FieldProblem(f"{path}.{name}", f"a reference to secret {value.secretName}", allowed)
        for path, env in envs
        for name, value in env.items()
        if isinstance(value, SecretRef)
    ]


def _slots(deps: Deps, job: TrainingJob) -> list[FieldProblem]:
    total, needed = deps.engine.capacity().total, gang_slots(job.spec)
    if needed <= total:
        return []
    path = "spec.roles" if job.spec.roles else "spec.replicas"
    if job.spec.gang_size == 1:
        path = "spec.resources.gpu"
    return [FieldProblem(path, f"a gang of {needed} slots", f"at most {total}, this machine's "
                         "slots ([ffdl] slots)")]  # fmt: skip


def _checkpoints(deps: Deps, job: TrainingJob, job_id: str) -> list[FieldProblem]:
    path = job.spec.checkpoint.path
    if path is not None and not path.startswith("/"):
        return [FieldProblem("spec.checkpoint.path", repr(path), "an absolute path")]
    root = path or deps.roots.checkpoint_root
    folder = f"{root.rstrip('/')}/{job_id}"
    owner = protocol.read_json(f"{folder}/{protocol.OWNER}")
    if owner is None or (owner["job"], owner["ledger"]) == (job_id, deps.ledger.ledger_id):
        return []
    return [FieldProblem("spec.checkpoint.path", f"{folder}, owned by job {owner['job']} of ledger "
                         f"{owner['ledger']}", "a directory of this job's own")]  # fmt: skip
