"""Register: the last checkpoint becomes an immutable model version that can be traced back."""

from pathlib import Path
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.errors import ErrorReport
from ffdl_airflow.core.events import Kind, NewEvent
from ffdl_airflow.core.failures.classes import FailureClass
from ffdl_airflow.core.failures.rules import Verdict
from ffdl_airflow.core.model import CheckpointRef, CodeRef, ModelMetadata, PublishRequest
from ffdl_airflow.registries.publisher import PublishState
from ffdl_airflow.stages.deps import Deps, Job, Step, Wait
from ffdl_airflow.stages.verdicts import decided

METRICS_FILE = "metrics.json"
"""What a trainer may leave in its output directory; numbers there go with the model."""
_LOOK_S = 0.1


def perform(deps: Deps, job: Job) -> Step:
    """See to it that the version exists; a retry finds the one that is there."""
    if job.state.checkpoint is None:
        return _refuse(deps, job, "no checkpoint was sealed, so there is nothing to register")
    asked = request_for(deps, job)
    state = deps.publishing.ensure(asked)
    if state.state == "running":
        far = f"{state.bytes_done}/{state.bytes_total} bytes" if state.bytes_total else state.phase
        what = f"the model is published ({far})"
        return Step(wait=Wait(what=what, at_most_s=_LOOK_S))
    if state.error is not None:
        deps.publishing.drop(asked)
        return _failed(deps, job, state.error)
    return Step(facts=(_registered(deps, job, state),))


def request_for(deps: Deps, job: Job) -> PublishRequest:
    """What is asked of the registry: the files, and the whole lineage."""
    state, spec = job.state, job.spec.spec
    checkpoint = state.checkpoint or {}
    stores = state.data.get("stores", {})
    code = stores.get("code")
    if spec.model is None:
        raise AssertionError(f"{state.job_id} has no spec.model")
    slo = {} if spec.slo.latency is None else {"latency": spec.slo.latency}
    return PublishRequest(
        name=spec.model.name, version=spec.model.version, job=state.job_id,
        attempts=state.attempt, directory=str(checkpoint["path"]),
        checkpoint=CheckpointRef(step=checkpoint["step"], sha256=checkpoint["sha256"]),
        data={name: e["generation"] for name, e in stores.items() if name != "code"},
        code=None if code is None else CodeRef(
            generation=code["generation"], gitCommit=code.get("gitCommit"),
            gitDirty=code.get("gitDirty"),
        ),
        image=spec.training.image,
        metadata=ModelMetadata(framework=spec.training.framework, version=spec.training.version),
        metrics=read_metrics(job.output_dir(deps.roots)), slo=slo,
        owner=job.spec.metadata.labels.get("team"), createdBy=str(state.owner.get("user") or ""),
        createdAt=_trained_at(job),
    )  # fmt: skip


def read_metrics(output_dir: str) -> dict[str, float]:
    """Numbers of the trainer's metrics file; empty where there is none."""
    document = protocol.read_json(str(Path(output_dir) / METRICS_FILE)) or {}
    return {
        name: float(value)
        for name, value in document.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _registered(deps: Deps, job: Job, state: PublishState) -> NewEvent:
    version = state.version
    if version is None:
        raise AssertionError("a ready publication has a version")
    body: dict[str, Any] = {
        "name": version.name, "version": version.version, "sha256": version.sha256,
        "path": str(state.path), "checkpoint": version.checkpoint.model_dump(),
        "metrics": dict(version.metrics),
    }  # fmt: skip
    key = f"model:{job.state.clears}:{version.name}:{version.version}"  # once after each clear
    return NewEvent(kind=Kind.MODEL_REGISTERED, at=deps.clock(), body=body, dedupe=key)


def _failed(deps: Deps, job: Job, error: ErrorReport) -> Step:
    user = error.fault == "user"
    verdict = Verdict(
        failure=FailureClass.CONFIG if user else FailureClass.STORAGE_TRANSIENT,
        cause=error.text, certain=user or not error.retryable, ran=False,
    )  # fmt: skip
    return Step(facts=tuple(decided(deps, job, verdict, to=None)))


def _refuse(deps: Deps, job: Job, cause: str) -> Step:
    verdict = Verdict(failure=FailureClass.CONFIG, cause=cause, certain=True, ran=True)
    return Step(facts=tuple(decided(deps, job, verdict, to=None)))


def _trained_at(job: Job) -> str:
    """When training ended: a retry asks with the same document."""
    at = next(moment for phase, moment in reversed(job.state.story) if phase == "Trained")
    return at.isoformat()
