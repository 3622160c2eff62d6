"""``spec.podTemplate``: what a user adds to the pods of his gang, and what he may not say there.

Merged last. Mappings are merged, lists of named things grow; what the engine itself needs to know
or to be sure of is refused, with the field of the job spec that says it instead.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from ffdl_airflow.core.errors import FieldProblem
from ffdl_airflow.core.job import DNS_LABEL, TrainingJob
from ffdl_airflow.core.quantities import API_ALLOWED, parse_kubernetes
from ffdl_airflow.engines.kubernetes import names, shapes
from ffdl_airflow.engines.kubernetes.shapes import ANYTHING, TEXT, Shape, listed, mapping

Plain = Mapping[str, Any]

TRAINER = "trainer"
"""Name of the container in which the agent and the user's program run."""
_INSTEAD = {
    "restartPolicy": "nothing: a gang restarts as a whole, see spec.backoffLimit",
    "terminationGracePeriodSeconds": "spec.gracePeriod",
    "priorityClassName": "spec.priority",
    "hostNetwork": "spec.network.hostNetwork",
    "resources": "spec.resources, or that of a role",
    "image": "spec.training.image, or that of a role",
    "command": "spec.training.command, or that of a role",
    "args": "spec.training.args, or those of a role",
    "nodeName": "nodeSelector or affinity",
    "activeDeadlineSeconds": "spec.deadlines or spec.resources.gpuTimeLimit",
    "serviceAccountName": "[ffdl] service_account",
    "automountServiceAccountToken": "nothing: a gang's pods have no token of the API",
}


def _quantity(value: Any) -> bool:
    try:
        return 0 <= parse_kubernetes(value) < 2**63
    except (ValueError, ArithmeticError):
        return False


def _named(*taken: str) -> Shape:
    """A name beside the engine's own, which are given as patterns."""
    own = re.compile("|".join(taken))
    return Shape(
        fits=lambda text: isinstance(text, str) and bool(re.fullmatch(DNS_LABEL, text))
        and not own.fullmatch(text),
        allowed=f"a DNS label, and none of the engine's: {', '.join(taken)}",
    )  # fmt: skip


_MAPPING, _MAPPINGS, _TEXTS = mapping(), listed(mapping()), mapping(each=TEXT)
_EXPRESSIONS = listed(mapping({"values": listed(ANYTHING)}))
_TERM = mapping({"matchExpressions": _EXPRESSIONS, "matchFields": _EXPRESSIONS})
_OF_NODE = mapping({"requiredDuringSchedulingIgnoredDuringExecution":
                    mapping({"nodeSelectorTerms": listed(_TERM)})})  # fmt: skip
_TOLERATION = mapping(dict.fromkeys(("key", "operator", "value", "effect"), TEXT))
_VOLUME = {"name": _named("placement", "run", "agent", "shm", "volume-[0-9]+")}
_QUANTITIES = mapping(each=Shape(fits=_quantity, allowed=API_ALLOWED))
_MOUNT = {"mountPath": Shape(fits=names.is_free, allowed=names.FREE)}
_CONTAINER: Mapping[str, Shape] = {
    "env": listed(mapping({"name": TEXT, "value": TEXT}, required=("name",))),
    "envFrom": _MAPPINGS, "volumeMounts": _MAPPINGS, "volumeDevices": _MAPPINGS,
    "ports": listed(mapping({"name": _named("agent")})), "securityContext": _MAPPING,
    "imagePullPolicy": TEXT,
}  # fmt: skip
"""Of a container, whichever it is."""
_TRAINER: Mapping[str, Shape] = {
    "name": Shape(
        fits=lambda value: value == TRAINER,
        allowed=f"one container, {TRAINER}; a sidecar is an init container that goes on",
    ),
    **_CONTAINER, "volumeMounts": listed(mapping(_MOUNT, required=("mountPath",))),
}  # fmt: skip
_INIT: Mapping[str, Shape] = {
    **_CONTAINER, "name": _named("agent", TRAINER), "image": TEXT,
    "command": listed(TEXT), "args": listed(TEXT),
    "resources": mapping({"requests": _QUANTITIES, "limits": _QUANTITIES}),
}  # fmt: skip
_POD: Mapping[str, Shape] = {
    "nodeSelector": _TEXTS,
    "affinity": mapping({"nodeAffinity": _OF_NODE, "podAffinity": _MAPPING,
                         "podAntiAffinity": _MAPPING}),
    "tolerations": listed(_TOLERATION), "volumes": listed(mapping(_VOLUME, required=("name",))),
    "topologySpreadConstraints": _MAPPINGS, "imagePullSecrets": _MAPPINGS,
    "initContainers": listed(mapping(_INIT, required=("name", "image"))),
    "hostAliases": _MAPPINGS, "dnsConfig": _MAPPING, "securityContext": _MAPPING,
    "runtimeClassName": TEXT, "schedulerName": TEXT,
    "containers": listed(mapping(_TRAINER, required=("name",), closed=_INSTEAD)),
}  # fmt: skip
_METADATA: Mapping[str, Shape] = {"labels": _TEXTS, "annotations": _TEXTS}
_TEMPLATE = mapping({"metadata": mapping(_METADATA, closed=_INSTEAD),
                     "spec": mapping(_POD, closed=_INSTEAD)}, closed=_INSTEAD)  # fmt: skip


def problems(job: TrainingJob) -> list[FieldProblem]:
    """Everything in the templates of a job that cannot be used."""
    found = list(_of_template("spec.podTemplate", job.spec.podTemplate))
    for number, role in enumerate(job.spec.roles):
        found += _of_template(f"spec.roles[{number}].podTemplate", role.podTemplate)
    return found


def merged(pod: Plain, templates: Sequence[Plain]) -> dict[str, Any]:
    """The pod with the templates on it, in their order."""
    result: dict[str, Any] = deepcopy(dict(pod))
    for template in templates:
        metadata = dict(template.get("metadata") or {})
        spec = dict(template.get("spec") or {})
        trainer: Plain = next(iter(spec.pop("containers", ())), {})
        result["metadata"] = _merge(result["metadata"], metadata)
        containers = [
            _merge(c, trainer) if c["name"] == TRAINER else c for c in result["spec"]["containers"]
        ]
        result["spec"] = _merge({**result["spec"], "containers": containers}, spec)
    return result


def _merge(base: Plain, extra: Plain) -> dict[str, Any]:
    found = dict(base)
    for key, value in extra.items():
        known = found.get(key)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            found[key] = _merge(known, value)
        elif isinstance(known, list) and isinstance(value, list):
            found[key] = [*known, *value]
        else:
            found[key] = deepcopy(value)
    return found


def _of_template(path: str, template: Plain) -> Iterator[FieldProblem]:
    yield from shapes.problems(path, template, _TEMPLATE)
    metadata = _inside(template, "metadata")
    for part in _METADATA:
        for key in _inside(metadata, part):
            if str(key).startswith(names.PREFIX):
                allowed = f"no name with {names.PREFIX}"
                yield FieldProblem(f"{path}.metadata.{part}", repr(key), allowed)
    containers = _inside(template, "spec").get("containers")
    if isinstance(containers, list) and len(containers) > 1:
        found = f"{len(containers)} containers"
        yield FieldProblem(f"{path}.spec.containers[1]", found, _TRAINER["name"].allowed)


def _inside(part: Plain, key: str) -> Plain:
    found = part.get(key)
    return found if isinstance(found, Mapping) else {}
