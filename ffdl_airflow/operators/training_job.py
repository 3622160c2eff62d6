"""``TrainingJobOperator``: a whole job as one task."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.job import TrainingJob
from ffdl_airflow.operators.stage import Manifest, StageOperator, goal_of, require_number


class TrainingJobOperator(StageOperator):
    """Run a training job: prefetch, reserve, launch, register. Result: job, model, checkpoint.

    :param job: see :class:`~ffdl_airflow.operators.stage.StageOperator`; may be left out when
        ``command`` says all
    :param until: stage after which the task is done; default ``register``
    :param command: the program, for those who want no YAML; ``args``, ``env``, ``replicas``,
        ``gpu`` and ``image`` go with it, or change what ``job`` says
    """

    template_fields: Sequence[str] = ("job", "engine")
    clears: ClassVar[bool] = True

    def __init__(self, *, job: Manifest | None = None, until: str = Goal.REGISTER.value,
                 image: str | None = None, command: Sequence[str] | None = None,
                 args: Sequence[str] | None = None, env: Mapping[str, str] | None = None,
                 replicas: int | None = None, gpu: int | None = None,
                 **kwargs: Any) -> None:  # fmt: skip
        changes = {"image": image, "command": command, "args": args, "env": env}
        short = {key: value for key, value in changes.items() if value is not None}
        if job is None and command is None:
            raise ValueError("job, command: found neither, allowed: one of them or both")
        require_number("replicas", replicas, least=1)
        require_number("gpu", gpu, least=0)
        if job is None or short or replicas is not None or gpu is not None:
            job = with_shortcuts(
                job, name=kwargs["task_id"], training=short, replicas=replicas, gpu=gpu
            )
        super().__init__(job=job, goal=goal_of(until), **kwargs)


def with_shortcuts(job: Manifest | None, *, name: str, training: Mapping[str, Any],
                   replicas: int | None, gpu: int | None) -> dict[str, Any]:  # fmt: skip
    """A job's document with shortcuts in it; from nothing where there is none.

    Raises ValueError for a job that is text: what it says is not known before it is rendered.
    """
    if job is not None and not isinstance(job, (Mapping, TrainingJob)):
        raise ValueError(f"job: found {job!r:.80}, allowed beside shortcuts: a mapping, or none")
    if job is None:
        slug = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-") or "job"
        document: dict[str, Any] = {"metadata": {"name": slug[:63]}, "spec": {
            "training": {"framework": "custom"}}}  # fmt: skip
    else:
        document = dict(job) if isinstance(job, Mapping) else job.document()
    spec = dict(document.get("spec") or {})
    spec["training"] = {**(spec.get("training") or {}), **training}
    if replicas is not None:
        spec["replicas"] = replicas
    if gpu is not None:
        spec["resources"] = {**(spec.get("resources") or {}), "gpu": gpu}
    return {**document, "spec": spec}
