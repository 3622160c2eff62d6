"""The link from a task to the page of its job.

Airflow asks for it at the end of every segment of a task in a worker and keeps the answer (tried),
so a task that defers has its link while it waits.
"""

from typing import Any

from airflow.sdk import BaseOperatorLink, conf
from airflow.sdk.execution_time.xcom import XCom

XCOM_JOB_ID = "ffdl_job_id"
"""Key under which a task leaves the id of its job, before it waits for anything."""


class TrainingJobLink(BaseOperatorLink):
    """To the page of the task's training job."""

    name = "Training job"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Address of the job's page; empty where the task has submitted no job."""
        job_id = XCom.get_value(ti_key=ti_key, key=XCOM_JOB_ID)
        base = conf.get("api", "base_url", fallback="")
        return f"{base.rstrip('/')}/ffdl/jobs/{job_id}" if job_id else ""
