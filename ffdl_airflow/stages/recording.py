"""What is written with events: the row that lists show, and the state for who starts cold."""

from collections.abc import Sequence

from ffdl_airflow.core.events import NewEvent
from ffdl_airflow.core.lifecycle import JobState
from ffdl_airflow.core.snapshot import take
from ffdl_airflow.core.summary import summary
from ffdl_airflow.ledger.base import Batch
from ffdl_airflow.stages.deps import Job


def batch_of(events: Sequence[NewEvent], *, before: JobState, after: JobState) -> Batch:
    """Events of one job that lead from one state to another, to be appended as they are."""
    return Batch(
        stream=after.job_id,
        expected_seq=before.seq,
        events=events,
        projection=summary(after, Job.of(after).spec),
        snapshot=take(after),
    )
