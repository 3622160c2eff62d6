"""What the API server itself says to a job's pods, before anything of it is made.

For: all that only a cluster knows (its pod security, its limits, what its version takes as a pod).
One pod of each role is sent with ``dryRun``. What passes by itself, such as a full quota, is told
while the job waits; what the driver may not do is told by the doctor.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ffdl_airflow.core.errors import FieldProblem
from ffdl_airflow.core.job import TrainingJob
from ffdl_airflow.engines.kubernetes import render
from ffdl_airflow.engines.kubernetes.client import ApiError, AwayError
from ffdl_airflow.engines.kubernetes.cluster import Cluster, Document
from ffdl_airflow.engines.kubernetes.preview import sample
from ffdl_airflow.engines.kubernetes.refusals import is_final

_OWN = "as the engine renders it"


def problems(job: TrainingJob, cluster: Cluster) -> list[FieldProblem]:
    """What will be refused however often it is tried; nothing where nobody answers now."""
    plan = sample(job, cluster.settings)
    firsts = {replica.role: replica for replica in reversed(plan.replicas)}
    one_each = replace(plan, replicas=tuple(firsts[role] for role in sorted(firsts)))
    found: list[FieldProblem] = []
    for role, pod in zip(sorted(firsts), render.pods(one_each, cluster.settings), strict=True):
        try:
            error = refusal(cluster, pod)
        except AwayError:
            return found
        if error is not None and is_final(error):
            found += _told(role, error)
    return found


def refusal(cluster: Cluster, pod: Document) -> ApiError | None:
    """What the API server would answer to a pod; None: it lets it in. Raises AwayError."""
    try:
        cluster.client.call("POST", cluster.path("pods"), query={"dryRun": "All"}, body=pod)
    except ApiError as error:
        return error
    return None


def _told(role: str, error: ApiError) -> Iterator[FieldProblem]:
    """The fields that it names, else its words."""
    causes: Sequence[dict[str, str]] = error.details.get("causes") or ()
    for cause in causes:
        yield FieldProblem(f"the pods of {role}: {cause.get('field')}", _OWN,
                           str(cause.get("message")))  # fmt: skip
    if not causes:
        yield FieldProblem(f"the pods of {role}", _OWN, error.text)
