"""Names, labels and addresses of what a placement is made of. The same from every driver."""

import hashlib
import posixpath

from ffdl_airflow.core.plan import GangPlan, ReplicaPlan

PREFIX = "ffdl.airflow/"
JOB = PREFIX + "job"
PLACEMENT = PREFIX + "placement"
ROLE = PREFIX + "role"
REPLICA = PREFIX + "replica"
QUEUE = PREFIX + "queue"
TEAM = PREFIX + "team"
INSTALLATION = PREFIX + "installation"
ENDED = PREFIX + "ended"
"""Label of an anchor whose placement was ended: ``now`` or ``save``, as it was asked for."""
GANG = PREFIX + "gang"
"""Annotation of an anchor: ``podgroup`` where Kubernetes itself places the gang as a whole."""
MOVER = PREFIX + "mover"
"""Label of a Job that does data work, and of its pod: the Job's name."""
ANCHOR = PREFIX + "anchor"
"""Label of what stands for a placement, of whatever installation."""
STAGE = PREFIX + "stage"
"""Annotation of an anchor: how far its placement is."""

NODE_ROLE = PREFIX + "node-role"
"""Label of a node: ``online`` where training must not go, ``mixed`` where it goes by night."""

AGENT_PORT = 29400
"""Where the coordinator's agent listens. Chosen: beside PyTorch's 29500, and not a known service's
(IANA, service names and ports)."""
FREE = "an absolute path, but not /, and not /ffdl, /dev/shm or below"
"""Where in a pod a volume may be mounted that is not the engine's."""
_SLUG_LENGTH = 24
_LABEL_LENGTH = 63  # RFC 1123


def gang_name(placement_id: str) -> str:
    """Name of the anchor, of the headless service and of the secret: a DNS label.

    A job id ends in ten digits that make it unique, so its slug may be cut.
    """
    job_id, number = placement_id.rsplit("/", 1)
    slug, _, digits = job_id.rpartition("-")
    slug = slug[:_SLUG_LENGTH].rstrip("-")
    return "-".join(filter(None, ["ffdl", slug, digits, number]))


def pod_name(placement_id: str, replica: str) -> str:
    """Name of a replica's pod."""
    return f"{gang_name(placement_id)}-{replica}"


def host_of(placement_id: str) -> str:
    """Address of a replica within its namespace; ``{replica}`` stands for its name.

    It stays when the pod's address changes: the name is the headless service's.
    """
    return "{replica}." + gang_name(placement_id)


def installation_id(key: bytes) -> str:
    """Tells our objects from those of another installation in the same namespace."""
    return hashlib.sha256(b"ffdl installation" + key).hexdigest()[:16]


def gang_labels(plan: GangPlan, installation: str) -> dict[str, str]:
    """Labels of everything that belongs to a placement."""
    found = {
        JOB: plan.job_id, PLACEMENT: str(plan.placement), QUEUE: plan.queue,
        INSTALLATION: installation, TEAM: str(plan.labels.get("team", "none")),
    }  # fmt: skip
    return {name: label_value(value) for name, value in found.items()}


def pod_labels(plan: GangPlan, replica: ReplicaPlan, installation: str) -> dict[str, str]:
    """Labels of a replica's pod."""
    return {**gang_labels(plan, installation), ROLE: replica.role, REPLICA: replica.name}


def label_value(text: str) -> str:
    """``text`` as a label's value may be written: what is not allowed becomes ``-``."""
    allowed = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text)
    return allowed[:_LABEL_LENGTH].strip("-_.") or "none"


def cleaned(path: str) -> str:
    """An absolute path in the one form that each has."""
    return "/" + posixpath.normpath(path).lstrip("/")


def is_free(path: object) -> bool:
    """Whether a path is one of those that :data:`FREE` describes."""
    if not isinstance(path, str) or not path.startswith("/"):
        return False
    clean = cleaned(path)
    return clean != "/" and not f"{clean}/".startswith(("/ffdl/", "/dev/shm/"))  # noqa: S108 - in the pod
