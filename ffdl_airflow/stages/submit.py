"""Submit: check everything that can be checked before anything is created, then write it down."""

import errno
import getpass
import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.errors import FieldProblem, InfrastructureError, SpecError, UserError
from ffdl_airflow.core.events import Kind, NewEvent, recorded
from ffdl_airflow.core.job import PRIORITIES, SecretRef, TrainingJob
from ffdl_airflow.core.lifecycle import JobState, apply, fold
from ffdl_airflow.core.plan import gang_slots
from ffdl_airflow.core.quantities import format_bytes
from ffdl_airflow.core.rendezvous import reserved, surprises
from ffdl_airflow.engines.base import SupportsCheck
from ffdl_airflow.ledger.base import Batch, Conflict
from ffdl_airflow.stages.deps import Deps, Job, Step
from ffdl_airflow.stages.recording import batch_of
from ffdl_airflow.stores.adapters import open_store
from ffdl_airflow.stores.base import StoreError

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)
"""Errors that say nothing about the path: the same job may go well later."""
_PATH_SHOWN = 200
"""A longer path is not repeated whole in a message. Chosen."""


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
        *_place(deps, job),
        *_folders(deps, job),
        *_checkpoints(deps, job, job_id),
    ]
    if problems:
        raise SpecError(problems)


def warnings(deps: Deps, job: TrainingJob) -> list[str]:
    """What is allowed here and may still surprise: one sentence each."""
    wanted, found = job.spec.total_gpus, surprises(job.spec)
    if not wanted or isinstance(deps.engine, SupportsCheck) or deps.engine.capacity().gpus:
        return found
    named = "1 GPU is" if wanted == 1 else f"{wanted} GPUs are"
    text = f"spec.resources.gpu: {named} asked for and this machine has none"
    return [f"{text}; each counts as one CPU slot here", *found]


def validate(deps: Deps, job: Job) -> Step:
    """The same checks at the start of the life, and the claim on the checkpoint directory."""
    state = job.state
    try:
        check(deps, job.spec, job_id=state.job_id)
    except SpecError as error:
        return _refused(deps, error)
    try:
        own(job.checkpoint_dir(deps.roots), state.job_id, deps.ledger.ledger_id)
    except OSError as error:
        return _refused(deps, _unusable(deps, job, error))
    body: dict[str, Any] = {
        "slots": gang_slots(job.spec.spec), "replicas": job.spec.spec.gang_size,
        "gpus": job.spec.spec.total_gpus, "time_limit_s": job.spec.spec.time_limit_s,
        "backoff_limit": job.spec.spec.backoffLimit, "warnings": warnings(deps, job.spec),
    }  # fmt: skip
    return Step(facts=(NewEvent(kind=Kind.VALIDATED, at=deps.clock(), body=body),))


def _refused(deps: Deps, error: SpecError) -> Step:
    body = {"reason": error.cause, "problems": [str(problem) for problem in error.problems]}
    return Step(facts=(NewEvent(kind=Kind.REFUSED, at=deps.clock(), body=body),))


def _unusable(deps: Deps, job: Job, error: OSError) -> SpecError:
    """Whose fault it is: the disk's and the installation's are raised, the path's is returned."""
    folder = job.checkpoint_dir(deps.roots)
    if job.spec.spec.checkpoint.path is None or error.errno in _OF_THE_DISK:
        raise InfrastructureError(
            f"the checkpoint directory cannot be made: {error}", evidence=folder,
            next_step="make room there, or make it writable; then drive the job again",
        ) from error  # fmt: skip
    return SpecError([_not_usable("spec.checkpoint.path", folder, error)])


def require_ledger(deps: Deps, known: Mapping[str, Any] | None) -> None:
    """Refuse to go on in another ledger than the job is in: it would be a second job there."""
    if known is None or known["id"] == deps.ledger.ledger_id:
        return
    raise UserError(
        f"ledger_url: found the ledger of host {deps.source['host']}, the job is in that of host "
        f"{known['host']}; allowed: one ledger for all of Airflow's hosts",
        next_step="set [ffdl] ledger_url to a PostgreSQL database that all hosts reach; jobs of "
        "the engine local are driven on one host in any case",
    )


def own(checkpoint_dir: str, job_id: str, ledger_id: str) -> None:
    """Mark the directory as the job's own, before its first writer exists."""
    folder = Path(checkpoint_dir)
    folder.mkdir(parents=True, exist_ok=True)
    share(folder)
    if protocol.read_json(str(folder / protocol.OWNER)) is None:
        document = {"v": 1, "job": job_id, "ledger": ledger_id}
        protocol.write_json(str(folder / protocol.OWNER), document)


def share(folder: Path) -> None:
    """Let the group write, where the folder around it hands its group on (setgid).

    So Kubernetes makes a volume for its ``fsGroup``: who writes there is not who drives.
    """
    if folder.parent.stat().st_mode & stat.S_ISGID:
        folder.chmod(folder.stat().st_mode | stat.S_ISGID | stat.S_IRWXG)


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
    problems = _variables(job)
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


def _variables(job: TrainingJob) -> list[FieldProblem]:
    allowed = "names that the launcher does not set itself; it knows where the gang meets"
    return [FieldProblem(f"spec.{path}.env.{name}", "a value", allowed)
            for path, name in reserved(job.spec)]  # fmt: skip


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
        found, where = error.found or error.cause, str(source["path"])[:_PATH_SHOWN]
        found = found if where in found else f"{where}, {found}"
        return names, FieldProblem(path, found, error.allowed or "a source")
    if not names:
        return names, FieldProblem(path, f"{source['path']} without a file", "at least one file")
    return names, None


def _place(deps: Deps, job: TrainingJob) -> list[FieldProblem]:
    """What the place where gangs run cannot serve."""
    if isinstance(deps.engine, SupportsCheck):
        return list(deps.engine.check(job))
    return [*_priority(job), *_secrets(job), *_slots(deps, job), *_machine(deps, job)]


def _priority(job: TrainingJob) -> list[FieldProblem]:
    if job.spec.priority in PRIORITIES:
        return []
    allowed = ", ".join(PRIORITIES)
    return [FieldProblem("spec.priority", repr(job.spec.priority), allowed)]


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
                         "slots ([ffdl] slots, FFDL_SLOTS)")]  # fmt: skip


def _machine(deps: Deps, job: TrainingJob) -> list[FieldProblem]:
    """One replica has to find its cores here, and the whole gang its memory."""
    has = deps.engine.capacity()
    problems, memory = [], 0
    for number, role in enumerate(job.spec.all_roles):
        wants = job.spec.resources_of(role)
        memory += role.replicas * (wants.memory or 0)
        path = f"spec.roles[{number}].resources" if role.resources else "spec.resources"
        if has.cpu is not None and wants.cpu > has.cpu:
            problems.append(FieldProblem(f"{path}.cpu", f"{wants.cpu:g} cores for one replica",
                                         f"at most {has.cpu}, this machine's cores"))  # fmt: skip
        if has.memory_bytes is not None and (wants.memory or 0) > has.memory_bytes:
            problems.append(
                _too_much(path, wants.memory or 0, who="one replica", has=has.memory_bytes)
            )
    if has.memory_bytes is not None and memory > has.memory_bytes:
        path = "spec.roles" if job.spec.roles else "spec.resources"
        told = any(problem.path.endswith("memory") for problem in problems)
        gang = f"a gang of {job.spec.gang_size}"
        problems += [] if told else [_too_much(path, memory, who=gang, has=has.memory_bytes)]
    return list(dict.fromkeys(problems))


def _too_much(path: str, wanted: int, *, who: str, has: int) -> FieldProblem:
    field = path if path == "spec.roles" else f"{path}.memory"
    return FieldProblem(field, f"{format_bytes(wanted)} for {who}",
                        f"at most {format_bytes(has)}, this machine's memory")  # fmt: skip


def _folders(deps: Deps, job: TrainingJob) -> list[FieldProblem]:
    """Settings of folders that the job could not write to, hours later; a full disk may be mended.

    Not those that it needs no more: a job with a checkpoint path of its own, or without a model.
    """
    needed = {"cache_dir": True, "checkpoint_root": job.spec.checkpoint.path is None,
              "model_root": job.spec.model is not None}  # fmt: skip
    problems = []
    for key, folder in deps.roots.written.items():
        try:
            if needed[key]:
                _require_usable(Path(folder))
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) not in _OF_THE_DISK:
                problems.append(_not_usable(f"[ffdl] {key}", folder, error))
    return problems


def _checkpoints(deps: Deps, job: TrainingJob, job_id: str) -> list[FieldProblem]:
    path = job.spec.checkpoint.path
    if path is not None and not path.startswith("/"):
        return [FieldProblem("spec.checkpoint.path", repr(path), "an absolute path")]
    root = path or deps.roots.checkpoint_root
    folder = f"{root.rstrip('/')}/{job_id}"
    if path is not None:
        try:
            _require_usable(Path(folder))
        except (OSError, ValueError) as error:
            return [_not_usable("spec.checkpoint.path", path, error)]
    owner = protocol.read_json(f"{folder}/{protocol.OWNER}")
    if owner is None or (owner["job"], owner["ledger"]) == (job_id, deps.ledger.ledger_id):
        return []
    return [FieldProblem("spec.checkpoint.path", f"{folder}, owned by job {owner['job']} of ledger "
                         f"{owner['ledger']}", "a directory of this job's own")]  # fmt: skip


def _require_usable(folder: Path) -> None:
    """Raise OSError where ``folder`` is no directory, or where it can neither be used nor made.

    What leads there is tried by making a directory in it, which goes again at once: a mode or an
    owner tells nothing of a read-only mount or of /proc.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        folder.lstat()  # says so where the path itself is impossible
    nearest = folder
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    if not nearest.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{nearest} is not a directory")
    if nearest != folder:
        Path(tempfile.mkdtemp(prefix=".ffdl-", dir=nearest)).rmdir()
    elif not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, f"{folder} is not writable")


def _not_usable(field: str, path: str, error: OSError | ValueError) -> FieldProblem:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    allowed = f"a directory that user {os.geteuid()} can make or write"
    return FieldProblem(field, f"{path[:_PATH_SHOWN]}, {why}", allowed)
