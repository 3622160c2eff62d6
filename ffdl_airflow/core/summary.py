"""A job in one row, for lists and tables: what the projection of the ledger holds."""

from typing import Any

from ffdl_airflow.core.job import TrainingJob
from ffdl_airflow.core.lifecycle import JobState
from ffdl_airflow.core.plan import gang_slots


def summary(state: JobState, job: TrainingJob) -> dict[str, Any]:
    """Plain data; what is not known yet is None."""
    labels = job.metadata.labels
    stores = {k: v for k, v in state.data.get("stores", {}).items() if k != "code"}
    return {
        "name": job.metadata.name,
        "namespace": job.metadata.namespace,
        "team": labels.get("team", "none"),
        "project": labels.get("project", "none"),
        "phase": str(state.phase),
        "framework": job.spec.training.framework,
        "engine": state.engine,
        "owner": dict(state.owner),
        "replicas": job.spec.gang_size,
        "gpus": job.spec.total_gpus,
        "slots": gang_slots(job.spec),
        "placement": state.placement,
        "placed": state.placed,
        "attempt": state.attempt,
        "step": state.step,
        "checkpoint_step": state.checkpoint["step"] if state.checkpoint else None,
        "generations": {name: entry["generation"] for name, entry in stores.items()},
        "model": dict(state.model) if state.model else None,
        "cpu_percent": _cpu_percent(state, job),
        "waiting": state.waiting,
        "warning": state.warned["reason"] if state.warned else None,
        "reason": state.reason,
        "submitted_at": state.story[0][1].isoformat() if state.story else None,
        "ended_at": state.story[-1][1].isoformat() if state.terminal else None,
    }


def _cpu_percent(state: JobState, job: TrainingJob) -> float | None:
    """Mean CPU use of a replica over the attempts that have ended, in percent of one core."""
    if not state.cpu_s or not state.running_s:
        return None
    return 100 * state.cpu_s / (state.running_s * job.spec.gang_size)
