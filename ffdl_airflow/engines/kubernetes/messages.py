"""The texts of scheduler, kubelet and container runtimes, read here and nowhere else.

For: one text → what it means, with its numbers. Kubernetes gives a code to some reasons only; for
the rest the words are all that there is. Not for: which text belongs to which pod.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ffdl_airflow.core.quantities import QuantityError
from ffdl_airflow.engines.kubernetes import needs


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a container used of a resource that ran out, and what it had requested."""

    container: str
    used: int
    request: int


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a text says of a pod's end. The fields are those of ``pod_end.PodEnd``.

    ``ran`` None: the text does not tell.
    """

    what: str
    text: str
    resource: str | None = None
    usage: tuple[Usage, ...] = ()
    own: bool = False
    ran: bool | None = None


GPU = "nvidia.com/gpu"
_LOW = re.compile(r"node was low on resource: ([\w./-]*\w)")
_CONDITION = re.compile(r"[Tt]he node had condition: \[(.+?)\]")
_USING = re.compile(
    r"Container (\S+) was using ([^\s,]+), (?:which exceeds its request of|request is) "
    r"([^\s,]+?)[.,]?(?:\s|$)"
)
_EMPTY_DIR = re.compile(r"Usage of EmptyDir volume \"?([^\"\s]+)\"? exceeds the limit")
_OWN_DISK = re.compile(
    r"exceeded its local ephemeral storage limit|storage usage exceeds the total"
)
_SHUTDOWN = re.compile(r"node is shutting down|node shutdown")
_OUT_OF = "OutOf"
_BY_REASON = {"Preempting": "preempted", "DeadlineExceeded": "deadline"}
_AT_ADMISSION = ("NodeAffinity", "TopologyAffinityError", "NodeShutdown")
_DEVICES = re.compile(r"([\w.-]+\.[\w.-]+/[\w.-]*\w)")
_DEVICE_BROKEN = re.compile(r"rpc failed|nvml|GPU is lost")


def kubelet(reason: str, message: str) -> Said | None:
    """A pod's ``status.reason`` and message; None where they are not the kubelet's own words."""
    if reason.startswith(_OUT_OF):
        return Said(
            what="admission", text=message, resource=reason.removeprefix(_OUT_OF), ran=False
        )
    if reason in _BY_REASON:
        return Said(what=_BY_REASON[reason], text=message)
    if reason == "Evicted":
        return _evicted(message)
    return _refused(message) if reason == "UnexpectedAdmissionError" else _other(reason, message)


def termination(message: str) -> Said | None:
    """The message of a disruption that the kubelet announced; None where it does not tell."""
    if _LOW.search(message):
        return _evicted(message)
    if "critical pod" in message:
        return Said(what="preempted", text=message)
    return _other("", message)


def _other(reason: str, message: str) -> Said | None:
    if reason in _AT_ADMISSION or "Pod was rejected" in message:
        return Said(what="admission", text=message, ran=False)
    return Said(what="node-lost", text=message) if _SHUTDOWN.search(message) else None


def _evicted(message: str) -> Said:
    if condition := _CONDITION.search(message):
        text = f"refused by the kubelet: its node has {condition.group(1)}"
        return Said(what="admission", text=text, resource=condition.group(1), ran=False)
    if volume := _EMPTY_DIR.search(message):
        return Said(what="evicted", text=message, resource=f"emptyDir {volume.group(1)}", own=True)
    if _OWN_DISK.search(message):
        return Said(what="evicted", text=message, resource="ephemeral-storage", own=True)
    low = _LOW.search(message)
    resource = low.group(1) if low else None
    return Said(what="evicted", text=message, resource=resource, usage=_usage(resource, message))


def _usage(resource: str | None, message: str) -> tuple[Usage, ...]:
    found = []
    for container, used, request in _USING.findall(message):
        try:
            numbers = [needs.amount(resource or "memory", value) for value in (used, request)]
        except QuantityError:
            continue
        found.append(Usage(container=container, used=numbers[0], request=numbers[1]))
    return tuple(found)


def _refused(message: str) -> Said:
    """A broken device must not be tried again at once, one that is only taken may."""
    device = _DEVICES.search(message)
    resource = device.group(1) if device else None
    if _DEVICE_BROKEN.search(message):
        return Said(what="node-setup", text=message, resource=resource or GPU, ran=False)
    return Said(what="admission", text=message, resource=resource, ran=False)


_EXEC = re.compile(r"exec:? \"?([^\":\s]+)\"?: (.+?)(?:: unknown)?$")
_NO_PROGRAM = re.compile(
    r"executable file not found|no such file or directory|permission denied|exec format error"
)
_NODE_SIDE = re.compile(
    r"nvidia-container|nvml|driver/library version mismatch|unsatisfied condition: cuda|CDI device"
)


def start_error(message: str, image: str) -> Said:
    """Why a container of an image could not be started."""
    if _NODE_SIDE.search(message):
        return Said(what="node-setup", text=message, ran=False)
    missing = _EXEC.search(message)
    if missing is None or not _NO_PROGRAM.search(missing.group(2)):
        return Said(what="start-error", text=message, ran=False)
    program, why = missing.groups()
    if "exec format error" in why:
        text = f"image {image} is built for another processor: {program}: {why}"
        return Said(what="image", text=text, ran=False)
    if program.rpartition("/")[2].startswith("python"):
        text = f"image {image} has no usable {program}, which the agent needs ({why})"
        return Said(what="image", text=text, ran=False)
    text = f"{program} cannot be executed in image {image}: {why}"
    return Said(what="start-error", text=text, ran=False)


# Registries and networks that recover come first: their texts hold words such as `not found` too.
_PULL_WAITS = re.compile(
    r"toomanyrequests|rate limit|QPS exceeded|no such host|i/o timeout|[Tt]imeout|timed out"
    r"|connection re(?:fused|set)|\bEOF\b|deadline exceeded|server misbehaving|handshake"
    r"|unexpected status(?: code)?:? 5\d\d|no space left",
)
_PULL_REFUSED = re.compile(
    r"\b40[13]\b|[Uu]nauthorized|authentication required|no basic auth credentials|denied"
)
_PULL_MISSING = re.compile(
    r"not found|manifest unknown|no such manifest|does not exist|no match for platform"
    r"|invalid reference format"
)


_PULL_PREFIX = re.compile(
    r"^Back-off pulling image \"[^\"]*\"(?:: \w+)?:? ?|^Failed to pull image \"[^\"]*\": "
)


def pull_cause(text: str) -> str:
    """What is behind it, the same in each of the words that the kubelet finds in turn."""
    return _PULL_PREFIX.sub("", text)


def pull_error(text: str) -> str | None:
    """Why an image cannot be had for good: ``missing``, ``refused``; else ``waits``.

    None where the text does not tell.
    """
    for word, pattern in (
        ("waits", _PULL_WAITS),
        ("refused", _PULL_REFUSED),
        ("missing", _PULL_MISSING),
    ):
        if pattern.search(text):
            return word
    return None


_MISSING = re.compile(
    r"(?P<kind>[Ss]ecret|[Cc]onfig[Mm]ap) \"(?P<name>[^\"]+)\" not found"
    r"|couldn't find key (?P<key>\S+) in (?P<kind2>Secret|ConfigMap) (?P<name2>\S+)"
    r"|references non-existent (?P<kind3>secret|config) key: (?P<key3>\S+)"
)


def missing_object(message: str) -> dict[str, str] | None:
    """The Secret or ConfigMap that is not there: ``kind``, and ``name`` or ``key`` or both."""
    match = _MISSING.search(message)
    if match is None:
        return None
    found: dict[str, str] = {}
    for group, value in match.groupdict().items():
        if value:
            found[group.rstrip("23")] = value.rpartition("/")[2]
    return found


_AVAILABLE = re.compile(
    r"^(\d+)/(\d+) nodes are available: (.*?)(?:\.\s+preemption: .*|\.)?\s*$", re.DOTALL
)
_PART = re.compile(r"^(\d+) (.+)$", re.DOTALL)
_CLAIM = re.compile(r"persistentvolumeclaims? \"([^\"]+)\" (not found|is being deleted)")


@dataclass(frozen=True, kw_only=True)
class Unschedulable:
    """The scheduler's message. ``lacking``: reason → how many of ``nodes`` it takes away.

    ``missing_claim``: a volume claim that is not there. ``unbound``: claims wait for a volume.
    ``zone``: every node is in another zone than a volume.
    """

    text: str
    nodes: int | None = None
    lacking: Mapping[str, int] = field(default_factory=dict)
    missing_claim: str | None = None
    unbound: bool = False
    zone: bool = False


def unschedulable(message: str) -> Unschedulable:
    """Read ``0/5 nodes are available: 3 Insufficient nvidia.com/gpu, …``; other texts stay."""
    claim = _CLAIM.search(message)
    match = _AVAILABLE.match(message)
    if match is None:
        return Unschedulable(text=message, missing_claim=claim.group(1) if claim else None)
    nodes, reasons = int(match.group(2)), match.group(3)
    lacking: dict[str, int] = {}
    for part in re.split(r",\s+(?=\d+ )", reasons):
        if counted := _PART.match(part):
            lacking[counted.group(2)] = int(counted.group(1))
    text = ", ".join(f"{count} of {nodes}: {why}" for why, count in lacking.items())
    return Unschedulable(
        text=f"no node is free for it ({text or reasons})", nodes=nodes, lacking=lacking,
        missing_claim=claim.group(1) if claim else None,
        unbound="unbound immediate PersistentVolumeClaims" in reasons,
        zone=any("volume node affinity" in why and n == nodes for why, n in lacking.items()),
    )  # fmt: skip
