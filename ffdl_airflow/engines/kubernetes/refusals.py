"""What the API server's refusals mean to a person: whose fault it is, and what to do about it.

A 403 comes from three places, and only its words tell from which: from the authorizer (a right is
missing), from a quota, or from another admission check.
"""

import re

from ffdl_airflow.core.errors import FfdlError, InfrastructureError, UserError
from ffdl_airflow.engines.kubernetes.client import ApiError, AwayError

_NO_RIGHT = re.compile(r'User "[^"]*" cannot \w+ (?:resource|path) ')
_NO_WAY = re.compile(r"no route to host|dial tcp|network is unreachable")
_BAD_WAY = (502, 503, 504)
_BAD_REQUEST, _INVALID = 400, 422
_NO_PRIORITY = re.compile(r"no PriorityClass with name (\S+) was found")
_GO_ON = "a job goes on with `ffdl run --job JOB`, or with its task's next try"


class OverQuota(InfrastructureError):
    """The namespace's quota refuses what was to be created; it may have room later."""


def lacks_a_right(error: ApiError) -> bool:
    """Whether it was RBAC, or another authorizer, that said no."""
    return error.forbidden and _NO_RIGHT.search(error.text) is not None


def over_quota(text: str) -> bool:
    """Whether a ResourceQuota said no: that passes when others leave."""
    return "exceeded quota" in text


def is_final(error: ApiError) -> bool:
    """Whether what was to be created is refused for what it is, so that no later try helps."""
    if error.forbidden:
        known = _NO_PRIORITY.search(error.text) is not None  # a class may be made at any time
        return not (over_quota(error.text) or lacks_a_right(error) or known)
    return error.status in (_BAD_REQUEST, _INVALID)


def no_way_to_pods(error: ApiError) -> bool:
    """Whether the API server says that it has no way to a pod; not that nobody listens there.

    A pod's own agent does not answer with these either: its errors are no Status.
    """
    named = _NO_WAY.search(error.text) is not None
    return (error.status in _BAD_WAY or named) and "connection refused" not in error.text


def explain(  # noqa: PLR0911 - one return a refusal
    error: ApiError | AwayError, *, doing: str, host: str
) -> FfdlError:
    """The error in the form that all of ours have."""
    if isinstance(error, AwayError):
        return InfrastructureError(
            f"the Kubernetes API server cannot be reached: {error}", evidence=host,
            next_step=f"check the address in the connection; what runs goes on; {_GO_ON}",
        )  # fmt: skip
    where = f"{host}, {error.status} {error.reason}"
    if error.forbidden and over_quota(error.text):
        return OverQuota(
            f"cannot {doing}: {error.text}", evidence=where,
            next_step=f"wait for the quota or have it raised; {_GO_ON}",
        )  # fmt: skip
    if lacks_a_right(error):
        return InfrastructureError(
            f"not allowed to {doing}: {error.text}", evidence=where,
            next_step="give the driver's account the Role of docker/kubernetes/; "
            "`ffdl doctor --cluster` lists what is missing",
        )  # fmt: skip
    if error.unauthorized:
        return InfrastructureError(
            f"the API server does not know us: {error.text}", evidence=where,
            next_step="renew the credentials of the connection",
        )  # fmt: skip
    if error.namespace_missing:
        return UserError(
            f"cannot {doing}: {error.text}", evidence=where,
            next_step="create the namespace, or name another one in the connection",
        )  # fmt: skip
    priority = _NO_PRIORITY.search(error.text)
    if priority is not None:
        return UserError(
            f"spec.priority: found {priority.group(1)!r}, allowed: a PriorityClass of the cluster",
            evidence=where, next_step="create the class (docker/kubernetes/ has two), or name one",
        )  # fmt: skip
    return InfrastructureError(
        f"cannot {doing}: {error.text}", evidence=where,
        next_step=f"read the API server's answer; {_GO_ON}",
    )  # fmt: skip
