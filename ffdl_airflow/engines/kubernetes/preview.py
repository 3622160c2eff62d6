"""What the engine would send for a job, told without a cluster and without its client library.

For: ``ffdl render``, golden files, and what can be checked of a job before anybody is asked.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.errors import FieldProblem
from ffdl_airflow.core.job import Metadata, TrainingJob, job_id_for
from ffdl_airflow.core.plan import GangPlan, Places, Timing, build
from ffdl_airflow.engines.kubernetes import names, render, template
from ffdl_airflow.engines.kubernetes.render import Document
from ffdl_airflow.engines.kubernetes.settings import KubernetesSettings

MOST_BYTES = 1_000_000
"""Of a plan. A Secret holds 1 MiB (Kubernetes' documentation), and the token has to fit as well."""
LEFT_OUT = "(left out)"
"""What stands for a token. Brackets cannot be in any name or token of ours."""

_UNSAID = Metadata.model_fields["namespace"].default
"""The ledger keeps it like one that was said, so that the two cannot be told apart."""


class Preview:
    """The engine, as far as it needs no cluster."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self.settings = settings

    def render(self, plan: GangPlan) -> Sequence[Mapping[str, Any]]:
        """See ``SupportsRender``."""
        return everything(plan, self.settings)

    def host(self, placement_id: str) -> str:
        """See ``SupportsHosts``."""
        return names.host_of(placement_id)

    def check(self, job: TrainingJob) -> Sequence[FieldProblem]:
        """See ``SupportsCheck``."""
        found = [*problems(job), *self._namespace(job)]
        return found or _size(job, self.settings)

    def _namespace(self, job: TrainingJob) -> list[FieldProblem]:
        """An installation has one namespace."""
        said, own = job.metadata.namespace, self.settings.namespace
        if said in (own, _UNSAID):
            return []
        allowed = f"{own}, the installation's ([ffdl] namespace), or nothing"
        return [FieldProblem("metadata.namespace", repr(said), allowed)]


def everything(plan: GangPlan, settings: KubernetesSettings) -> list[Document]:
    """All documents of a placement, in the order in which they are sent.

    In brackets stands what is not shown (the token) or what only the cluster knows: the value of
    the priority class, and the uids of owners. Where the spec leaves it to the engine how the gang
    is placed as a whole, this is what the turnstile sends.
    """
    made, name = render.pods(plan, settings), names.gang_name(plan.placement_id)
    anchor = render.anchor(plan, settings)
    anchor["data"] |= {"demand": render.demand(made),
                       "priority-value": f"(of PriorityClass {plan.priority})"}  # fmt: skip
    service = _owned(render.service(plan, settings), anchor)
    secret = _owned(render.secret(plan, settings), service)
    secret["stringData"][protocol.TOKEN_FILE] = LEFT_OUT
    groups = []
    if plan.gang == "podgroup":
        group = render.pod_group(name, len(made), plan.priority)
        group["metadata"]["namespace"] = settings.namespace
        groups, made = [group], [render.member(pod, name) for pod in made]
    return [anchor, service, secret, *(_owned(one, service) for one in (*groups, *made))]


def _owned(found: Document, owner: Document) -> Document:
    """With its owner as the API server would give it back, but for the uid."""
    kind = owner["kind"]
    known = {"kind": kind, "metadata": {"name": owner["metadata"]["name"], "uid": f"(of {kind})"}}
    return render.owned(found, known)


def sample(job: TrainingJob, settings: KubernetesSettings, *, run: str = "sample") -> GangPlan:
    """The plan of a job's gang with places that stand for those that it will have.

    ``run``: from which its id follows, where it is to be another each time.
    """
    job_id = job_id_for(job.metadata.name, run)
    places = Places(
        checkpoint_dir=f"{render.RUN_DIR}/{job_id}", output_dir=render.RUN_DIR,
        log_dir=render.RUN_DIR, python=settings.python, host=names.host_of(f"{job_id}/1"),
    )  # fmt: skip
    return build(job, job_id=job_id, placement=1, places=places, timing=Timing(), generations={})


def _size(job: TrainingJob, settings: KubernetesSettings) -> list[FieldProblem]:
    """The plan travels in a Secret, and etcd takes no large ones."""
    size = len(json.dumps(render.document(sample(job, settings))))
    if size <= MOST_BYTES:
        return []
    found = f"{job.spec.gang_size} replicas, whose plan has {size} bytes"
    return [FieldProblem("spec.replicas", found, f"a plan of at most {MOST_BYTES} bytes: fewer "
                         "replicas, or fewer processes in each")]  # fmt: skip


def problems(job: TrainingJob) -> list[FieldProblem]:
    """What no cluster could run: replicas without an image, templates that say too much."""
    found = list(template.problems(job))
    for number, role in enumerate(job.spec.all_roles):
        if (role.image or job.spec.training.image) is None:
            path = f"spec.roles[{number}].image" if job.spec.roles else "spec.training.image"
            found.append(FieldProblem(path, "nothing", "an image that has Python"))
    return found
