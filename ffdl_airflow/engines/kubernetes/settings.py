"""What the engine needs to know of its cluster and of the installation."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ffdl_airflow.core.errors import FieldProblem, SpecError
from ffdl_airflow.core.job import DNS_LABEL
from ffdl_airflow.engines.kubernetes import names

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_LABELS = rf"{_LABEL}(?:\.{_LABEL})*"
_DNS_NAME = rf"(?=.{{1,253}}$){_LABELS}"
"""RFC 1123, section 2.1, in the form that names of most objects have."""
_IMAGE = (
    r"(?:[A-Za-z0-9][\w.-]*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?(?:/\w[\w.-]*)*"
    r"(?::\w[\w.-]*)?(?:@[A-Za-z0-9+._-]+:[0-9A-Fa-f]+)?"
)
"""Host and port, path, tag, digest. Looser than a registry is."""
_AN_IMAGE = "the name of an image, for example registry.internal/team/image:1.0"
_FORMS: Mapping[str, tuple[str, str]] = {
    "namespace": (DNS_LABEL, "a DNS label"),
    "turnstile_namespace": (DNS_LABEL, "a DNS label"),
    "service_account": (_DNS_NAME, "a DNS name"),
    "agent_image": (_IMAGE, _AN_IMAGE),
    "mover_image": (_IMAGE, _AN_IMAGE),
    "pod_python": (r"[^\s;&|<>$`'\"()\\*?]+", "name or path of a program, without arguments"),
}
"""What a text has to look like, and that in words."""
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
"""What the value of a label is, and the name in its key."""
_VOLUME = re.compile(r"(?P<claim>[^:]*):(?P<path>/[^:]*?)(?P<ro>:ro)?")
_TOLERATION = re.compile(
    rf"(?P<key>(?:(?=[^/]{{1,253}}/){_LABELS}/)?{_WORD})(?:=(?P<value>(?:{_WORD})?))?"
    r":(?P<effect>NoSchedule|NoExecute|PreferNoSchedule)"
)
_MOST_ID = 2**31 - 1
"""Kubernetes takes no larger user or group."""


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A claim that every pod of a gang mounts at ``path``, for data, checkpoints and models."""

    claim: str
    path: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Toleration:
    """Of a taint that keeps nodes for training. ``value`` None: whatever its value is."""

    key: str
    value: str | None
    effect: str

    def document(self) -> dict[str, str]:
        """As a pod has it."""
        found = {"key": self.key, "effect": self.effect}
        if self.value is None:
            return {**found, "operator": "Exists"}
        return {**found, "operator": "Equal", "value": self.value}


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Which cluster, as whom. ``kubeconfig``: path of a file, or its content.

    None: the service account of the pod that we run in.
    """

    kubeconfig: str | None = field(default=None, repr=False)
    context: str | None = None


@dataclass(frozen=True, kw_only=True)
class KubernetesSettings:
    """One cluster and namespace, as one installation uses it.

    ``agent_image`` brings the agent; the user's image stays as it is. ``python`` is the interpreter
    in the user's image. ``run_as_user``, ``fs_group``: ids under which the replicas run; None
    leaves them to the image, which then has to name a user that is not root.
    ``turnstile_namespace``: where the Lease lies, one for all who place on the same nodes; None is
    the own namespace.
    ``shared``: whether this host sees the volumes under the same paths as the pods.
    ``folders``: setting → folder that the pods have to see as this host does.
    ``mover_image``: has this package, for data work in the cluster; None: it is done on this host.
    """

    credentials: Credentials
    namespace: str
    installation_key: bytes = field(repr=False)
    agent_image: str
    python: str = "python3"
    volumes: tuple[Volume, ...] = ()
    shared: bool = True
    mover_image: str | None = None
    service_account: str | None = None
    run_as_user: int | None = 1000
    fs_group: int | None = 1000
    tolerations: tuple[Toleration, ...] = ()
    turnstile_namespace: str | None = None

    @property
    def lease_namespace(self) -> str:
        """The turnstile's, the own one unless another is set."""
        return self.turnstile_namespace or self.namespace

    folders: tuple[tuple[str, str], ...] = ()

    def volume_of(self, folder: str) -> Volume | None:
        """The volume that pods see a folder on: the deepest mount above it counts."""
        mounts = {PurePosixPath(one.path): one for one in self.volumes}
        above = (PurePosixPath(folder), *PurePosixPath(folder).parents)
        return next((mounts[path] for path in above if path in mounts), None)


def from_values(values: Mapping[str, str], *, installation_key: bytes,
                folders: Mapping[str, str] | None = None) -> KubernetesSettings:  # fmt: skip
    """Settings from text. Raises SpecError with every key that is wrong.

    ``volumes``: ``claim:/path`` or ``claim:/path:ro``, separated by commas. ``tolerations``:
    ``key=value:Effect`` or ``key:Effect``. ``run_as_user``, ``fs_group``: a number, or ``image``.
    """
    problems = [
        FieldProblem(key, repr(values[key]), allowed) for key, (form, allowed) in _FORMS.items()
        if values.get(key) and not re.fullmatch(form, values[key], re.ASCII)
    ]  # fmt: skip
    conn_id = values.get("kubernetes_conn_id")
    if conn_id and not values.get("kubeconfig"):  # in Airflow the hook has read it
        allowed = "nothing outside of Airflow: kubeconfig says which cluster"
        problems.append(FieldProblem("kubernetes_conn_id", repr(conn_id), allowed))
    if not values.get("agent_image"):
        allowed = "the image that brings the agent, see docker/agent/"
        problems.append(FieldProblem("agent_image", "nothing", allowed))
    found = KubernetesSettings(
        credentials=Credentials(
            kubeconfig=values.get("kubeconfig"), context=values.get("kube_context")
        ),
        namespace=values.get("namespace") or "default", installation_key=installation_key,
        folders=tuple(sorted((folders or {}).items())),
        agent_image=values.get("agent_image", ""), python=values.get("pod_python") or "python3",
        mover_image=values.get("mover_image"),
        volumes=_volumes(_listed(values, "volumes"), problems),
        service_account=values.get("service_account"),
        turnstile_namespace=values.get("turnstile_namespace"),
        run_as_user=_id(values, "run_as_user", problems, least=1),
        fs_group=_id(values, "fs_group", problems, least=0),
        tolerations=tuple(_toleration(text, problems) for text in _listed(values, "tolerations")),
    )  # fmt: skip
    if problems:
        raise SpecError(problems, source="[ffdl]")
    return found


def _listed(values: Mapping[str, str], key: str) -> list[str]:
    return [part.strip() for part in values.get(key, "").split(",") if part.strip()]


def _volumes(texts: Sequence[str], problems: list[FieldProblem]) -> tuple[Volume, ...]:
    found: dict[str, Volume] = {}
    for text in texts:
        volume = _volume(text, problems)
        where = names.cleaned(volume.path)
        if volume.path and where in found:
            problems.append(FieldProblem("volumes", f"{where} twice", "each path once"))
        found[where] = volume
    return tuple(found.values())


def _volume(text: str, problems: list[FieldProblem]) -> Volume:
    found = _VOLUME.fullmatch(text)
    if found is None:
        allowed = "claim:/path or claim:/path:ro"
    elif not re.fullmatch(_DNS_NAME, found["claim"]):
        allowed = "a DNS name as the claim's"
    elif not names.is_free(found["path"]) or re.search(r"\s|/\.\.(/|$)", found["path"]):
        allowed = f"{names.FREE}, without .. and white space"
    else:
        read_only = found["ro"] is not None
        return Volume(claim=found["claim"], path=found["path"], read_only=read_only)
    problems.append(FieldProblem("volumes", repr(text), allowed))
    return Volume(claim="", path="")


def _toleration(text: str, problems: list[FieldProblem]) -> Toleration:
    found = _TOLERATION.fullmatch(text)
    if found is None:
        allowed = (
            "key=value:Effect or key:Effect, with key and value as labels have them, and "
            "NoSchedule, NoExecute or PreferNoSchedule"
        )
        problems.append(FieldProblem("tolerations", repr(text), allowed))
        return Toleration(key="", value=None, effect="")
    return Toleration(key=found["key"], value=found["value"], effect=found["effect"])


def _id(values: Mapping[str, str], key: str, problems: list[FieldProblem], *,
        least: int) -> int | None:  # fmt: skip
    text = values.get(key) or "1000"
    if text == "image":
        return None
    number = int(text) if re.fullmatch("[0-9]{1,10}", text) else -1
    if not least <= number <= _MOST_ID:
        problems.append(FieldProblem(key, repr(text), f"{least} to {_MOST_ID}, or image"))
        return None
    return number
