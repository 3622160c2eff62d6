"""Preview: the plan that a job would be placed by, before it is submitted or its data fetched."""

from datetime import datetime
from pathlib import Path

from ffdl_airflow.core.errors import SpecError
from ffdl_airflow.core.job import TrainingJob, job_id_for
from ffdl_airflow.core.lifecycle import JobState, Phase
from ffdl_airflow.core.plan import GangPlan, Timing
from ffdl_airflow.engines.base import SupportsCheck
from ffdl_airflow.stages.deps import Job, Roots
from ffdl_airflow.stages.reserve import host_of, plan_of

GENERATION = "(generation)"
"""Stands where a prefetch would put the id of what it has fetched."""


def preview(job: TrainingJob, *, engine: object, roots: Roots, timing: Timing, at: datetime,
            cache_dir: Path) -> GangPlan:  # fmt: skip
    """The plan of the job's first placement. Raises SpecError where the engine cannot serve it."""
    problems = engine.check(job) if isinstance(engine, SupportsCheck) else ()
    if problems:
        raise SpecError(problems)
    fetched = [store.name for store in job.spec.dataStores]
    if job.spec.training.code is not None:
        fetched.append("code")
    stores = {name: {"path": f"{cache_dir}/{name}/{GENERATION}/data", "generation": GENERATION}
              for name in fetched}  # fmt: skip
    state = JobState(
        job_id=job_id_for(job.metadata.name, "preview"), placement=1, data={"stores": stores},
        story=((Phase.RESERVING, at),),
    )  # fmt: skip
    return plan_of(Job(state, job), roots=roots, timing=timing,
                   host=host_of(engine, state.placement_id))  # fmt: skip
