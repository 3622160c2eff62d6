"""Where a pod may go: selectors, required node affinity, taints, the state of a node.

For: one sentence's worth of why a node is out, and groups of replicas that are alike. Not for:
numbers (``needs.py``), and not for what looks at other pods: required pod (anti-)affinity and hard
topology spread are named by :func:`not_understood`, for they can only take nodes away.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ffdl_airflow.engines.kubernetes.needs import Amounts, Plain, labels_of, name_of, requests_of
from ffdl_airflow.engines.kubernetes.needs import spec_of as _spec

# Taints that Kubernetes and cloud providers put on a node for a while.
_PASSING_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_HARD_EFFECTS = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Replicas that are alike. ``each`` is what one takes, ``where`` what it demands of a node.

    ``names`` of the pods, empty where only the demand is known. :meth:`document` and :meth:`read`
    carry a demand as JSON, for example in an annotation.
    """

    count: int
    each: Amounts
    where: Plain = field(default_factory=dict)
    names: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Plain data, without the names."""
        return {"count": self.count, "each": dict(self.each), "where": dict(self.where)}

    @classmethod
    def read(cls, document: Plain) -> "Group":
        """What :meth:`document` wrote."""
        each = {str(name): int(need) for name, need in document["each"].items()}
        return cls(count=int(document["count"]), each=each, where=document.get("where") or {})


def groups_of(pods: Iterable[Plain]) -> list[Group]:
    """The pods by what they need and where they may go, in the order of their first pod."""
    found: dict[str, tuple[Amounts, Plain, list[str]]] = {}
    for pod in pods:
        each, where = requests_of(pod), where_of(pod)
        shape = json.dumps([each, where], sort_keys=True)
        found.setdefault(shape, (each, where, []))[2].append(name_of(pod))
    return [
        Group(count=len(names), each=each, where=where, names=tuple(names))
        for each, where, names in found.values()
    ]


def where_of(pod: Plain) -> dict[str, Any]:
    """What a pod demands of a node, as far as it is understood."""
    spec = _spec(pod)
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    found = {
        "nodeSelector": spec.get("nodeSelector"),
        "terms": required.get("nodeSelectorTerms"),
        "tolerations": spec.get("tolerations"),
    }
    return {name: value for name, value in found.items() if value}


def not_understood(pod: Plain) -> str | None:
    """A demand of the pod that is not judged here, in words; None where there is none."""
    spec = _spec(pod)
    affinity = spec.get("affinity") or {}
    for name in ("podAffinity", "podAntiAffinity"):
        if (affinity.get(name) or {}).get("requiredDuringSchedulingIgnoredDuringExecution"):
            return f"required {name}"
    for spread in spec.get("topologySpreadConstraints") or ():
        if spread.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule":
            return f"topology spread over {spread.get('topologyKey')}"
    return "resourceClaims" if spec.get("resourceClaims") else None


def obstacle(where: Plain, node: Plain, *, ever: bool = False) -> str | None:
    """Why the node is out, in words; None where it is not.

    ``ever``: only what stays. A node that is not ready or cordoned, or has a taint that Kubernetes
    itself sets and takes away, may come back.
    """
    return _demanded(where, node) or _tainted(where, node, ever=ever) or _away(node, ever=ever)


def _demanded(where: Plain, node: Plain) -> str | None:
    labels = labels_of(node)
    for key, value in (where.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            return f"selector {key}={value}"
    terms = where.get("terms")
    if terms and not any(_term(term, node) for term in terms):
        return f"required node affinity {'; or '.join(map(_term_text, terms))}"
    return None


def _tainted(where: Plain, node: Plain, *, ever: bool) -> str | None:
    tolerations = where.get("tolerations") or ()
    for taint in _taints(node):
        passing = str(taint.get("key")).startswith(_PASSING_TAINTS)
        if not (ever and passing) and not any(_tolerates(t, taint) for t in tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"taint {taint.get('key')}{value}:{taint.get('effect')}"
    return None


def _away(node: Plain, *, ever: bool) -> str | None:
    return None if ever or ready(node) == "True" else "not ready"


def ready(node: Plain) -> str:
    """Status of the node's condition Ready: ``True``, ``False``, or ``Unknown`` (also if none)."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return str(next((c.get("status") for c in conditions if c.get("type") == "Ready"), "Unknown"))


def _taints(node: Plain) -> Iterator[Plain]:
    """Taints that keep pods away. A cordoned node is one with a taint, as the scheduler sees it."""
    spec = _spec(node)
    if spec.get("unschedulable"):
        yield {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    for taint in spec.get("taints") or ():
        if taint.get("effect") in _HARD_EFFECTS:
            yield taint


def _tolerates(toleration: Plain, taint: Plain) -> bool:
    effect, key = toleration.get("effect"), toleration.get("key")
    if (effect and effect != taint.get("effect")) or (key and key != taint.get("key")):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(key) and (toleration.get("value") or "") == (taint.get("value") or "")


def _term(term: Plain, node: Plain) -> bool:
    """All expressions of a term; a term without any matches no node."""
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    names = {"metadata.name": name_of(node)}
    return bool(expressions or fields) and (
        all(matches(expression, labels_of(node)) for expression in expressions)
        and all(matches(expression, names) for expression in fields)
    )


def matches(expression: Plain, labels: Plain) -> bool:
    """One expression ``{key, operator, values}`` of a selector; an unknown operator matches not."""
    operator, values = expression.get("operator"), expression.get("values") or ()
    value = labels.get(str(expression.get("key")))
    if operator in ("Gt", "Lt"):
        return _compares(operator, value, values)
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }.get(str(operator), False)


def _compares(operator: str, value: object, values: Iterable[object]) -> bool:
    try:
        have, (bound,) = int(str(value)), map(int, map(str, values))
    except ValueError:  # no label, no number, or not one number to compare with
        return False
    return have > bound if operator == "Gt" else have < bound


def _term_text(term: Plain) -> str:
    expressions = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
    return " and ".join(map(_expression_text, expressions))


def _expression_text(expression: Plain) -> str:
    values = ",".join(map(str, expression.get("values") or ()))
    return f"{expression.get('key')} {expression.get('operator')} {values}".rstrip()
