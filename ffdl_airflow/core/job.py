"""The job spec in its canonical form (frozen), and its identity.

For: what the user wants, fully checked, with every default filled in. Other dialects are read into
this form in ``core/manifests``. Not for: what the engine makes of it (``plan.py``). Field names are
those that users write (camelCase), so that the path in an error is the path in their file.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    model_validator,
)  # fmt: skip
from pydantic_core import PydanticCustomError

from ffdl_airflow.core.quantities import MEMORY_ALLOWED, parse_bytes, parse_milli_cpu
from ffdl_airflow.core.secret_text import (
    POD_REFERENCE,
    REFERENCE,
    looks_secret,
    secret_in,
    secret_option,
    secrets_within,
)  # fmt: skip

API_VERSION = "ffdl.cloud.ibm.com/v1"
FRAMEWORKS = ("pytorch", "jax", "tensorflow", "mpi", "caffe", "custom")
ROLES = ("chief", "master", "worker", "ps", "evaluator", "launcher")
SINGLE = ("chief", "master", "launcher")
"""Roles of which a gang has one at most: they lead the others."""
TRAINING = ("chief", "master", "worker", "launcher")
"""Roles that train, or start what trains; the others serve them."""
PRIORITIES = {"offline-batch": 100_000, "online-high": 1_000_000}
"""Classes and their values, where the place has none of its own."""
JOB_ID_LENGTH = 40
_DNS_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
_NOT_SLUG = re.compile(r"[^a-z0-9]+")
_UNFIT = re.compile("[\0\ud800-\udfff]")
"""What no process can be told and no database keeps: NUL, and halves of characters (UTF-16)."""
WRONG_FIELD = "wrong_field"
"""Type of the errors that name a field themselves; its context has field, found and allowed."""

MOST_REPLICAS, MOST_PROCESSES = 10_000, 1024
"""Of a role, and of a replica. Chosen: above any cluster and node that is known, and small enough
that a slip of the keyboard is told at once."""
DNS_LABEL = _DNS_LABEL.pattern
"""RFC 1123, section 2.1, in the form that Kubernetes' names have."""
DnsLabel = Annotated[str, Field(pattern=DNS_LABEL)]


def _wrong(field: str, found: str, allowed: str) -> PydanticCustomError:
    """The error of one field, raised by the part that the field belongs to."""
    context = {"field": field, "found": found, "allowed": allowed}
    return PydanticCustomError(WRONG_FIELD, "{allowed}", context)


def _cores(value: object) -> float:
    return parse_milli_cpu(value) / 1000


def _above_zero(value: int) -> int:
    if value <= 0:
        raise ValueError(f"allowed: above 0, {MEMORY_ALLOWED}")
    return value


def _no_truth(value: object) -> object:
    """``replicas: true`` is a mistake, although true counts as 1 in Python."""
    if isinstance(value, bool):
        raise ValueError("allowed: a number, not true or false")  # noqa: TRY004 - pydantic's form
    return value


def _processes(value: object) -> int | str:
    text = str(value)
    if text == "auto":
        return text
    number = int(text) if text.isdecimal() and len(text) < 10 else 0  # noqa: PLR2004 - enough digits
    if isinstance(value, bool) or not 0 < number <= MOST_PROCESSES:
        raise ValueError(f"allowed: a whole number from 1 to {MOST_PROCESSES}, or auto")
    return number


_NUMBER = BeforeValidator(_no_truth)
Bytes = Annotated[int, BeforeValidator(parse_bytes), AfterValidator(_above_zero)]
Cores = Annotated[float, BeforeValidator(_cores), Field(gt=0)]
_MOST_S = 315_576_000
"""Longest time that a spec may say: ten years. Chosen: what is longer is a slip of the unit."""
Seconds = Annotated[float, _NUMBER, Field(gt=0, le=_MOST_S)]
Count = Annotated[int, _NUMBER, Field(ge=0)]
Positive = Annotated[int, _NUMBER, Field(ge=1)]
Replicas = Annotated[int, _NUMBER, Field(ge=1, le=MOST_REPLICAS)]
Percent = Annotated[float, _NUMBER, Field(ge=0, le=100)]


def _texts_in(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, text) of every text in plain data; of a key its mapping's path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts_in(key if isinstance(key, str) else "", path or "(document)")
            yield from _texts_in(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from _texts_in(inner, f"{path}[{number}]")


class Spec(BaseModel):
    """Base of all spec parts: frozen, and unknown fields are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False
    )


class SecretRef(Spec):
    """A value that only its name is known of: (secret, key)."""

    secretName: DnsLabel
    key: str


def _kind_of_value(value: object) -> str:
    return "(secret)" if isinstance(value, (Mapping, SecretRef)) else "(text)"


EnvValue = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[SecretRef, Tag("(secret)")],
    Discriminator(_kind_of_value),
]
"""What a variable is set to. The tags stand in brackets, which no field's name has: the reader of
errors leaves them out of the path."""


class Metadata(Spec):
    """Name and labels. ``labels.team`` and ``labels.project`` are used for accounting."""

    name: DnsLabel
    namespace: DnsLabel = "default"
    labels: dict[str, str] = {}


class Resources(Spec):
    """What one replica needs. Bytes and cores may be written as quantities."""

    gpu: Count = 0
    cpu: Cores = 1.0
    memory: Bytes | None = None
    gpuMemory: Bytes | None = None
    gpuType: str | None = None
    gpuTopology: Literal["nvlink"] | None = None
    sharedMemory: Bytes | None = None
    gpuTimeLimit: Seconds | None = None
    minGpuUtilization: Percent = 30.0

    @model_validator(mode="before")
    @classmethod
    def _gpu_count(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "gpuCount" in data:
            if "gpu" in data:
                raise _wrong("gpuCount", "a second number of GPUs", "gpu or gpuCount, not both")
            data = {("gpu" if key == "gpuCount" else key): value for key, value in data.items()}
        return data


class Training(Spec):
    """Which program trains, and with what arguments."""

    framework: Literal["pytorch", "jax", "tensorflow", "mpi", "caffe", "custom"]
    version: str | None = None
    entryPoint: str | None = None
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    code: str | None = None
    image: str | None = None
    env: dict[str, EnvValue] = {}
    globalBatch: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _texts(cls, data: Any) -> Any:
        return _as_texts(data)

    @model_validator(mode="after")
    def _one_command(self) -> "Training":
        if not self.entryPoint and not self.command:
            raise _wrong("entryPoint", "nothing", "a path in code, or command instead")
        if self.entryPoint and self.command:
            raise _wrong("command", "a command beside entryPoint", "one of the two")
        if self.entryPoint and _leads_out(self.entryPoint):
            raise _wrong(
                "entryPoint", repr(self.entryPoint), "a relative path that stays inside code"
            )
        _require_fit(self.env, command=self.command, args=self.args)
        return self


class Role(Spec):
    """A kind of replica of a job with several kinds."""

    name: Literal["chief", "master", "worker", "ps", "evaluator", "launcher"]
    replicas: Replicas = 1
    processesPerReplica: Annotated[int | Literal["auto"], PlainValidator(_processes)] = "auto"
    resources: Resources | None = None
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, EnvValue] = {}
    image: str | None = None
    podTemplate: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _texts(cls, data: Any) -> Any:
        return _as_texts(data)

    @model_validator(mode="after")
    def _checked(self) -> "Role":
        if self.resources is not None and self.resources.gpuTimeLimit is not None:
            allowed = "only spec.resources.gpuTimeLimit: it is a limit of the whole job"
            raise _wrong("resources.gpuTimeLimit", f"{self.resources.gpuTimeLimit:g}", allowed)
        if self.name in SINGLE and self.replicas > 1:
            raise _wrong("replicas", str(self.replicas), f"1: a gang has one {self.name}")
        _require_fit(self.env, command=self.command, args=self.args)
        _require_no_secret(self.podTemplate)
        return self


class DataStoreRef(Spec):
    """A data set by the name of its DataStore, or by a path where that is all there is."""

    name: DnsLabel
    mountPath: str | None = None
    readOnly: bool = True
    path: str | None = None


class Checkpoint(Spec):
    """Every how many steps, how many are kept, where, and what a clear does."""

    every: Positive = 1000
    keep: Positive = 3
    path: str | None = None
    onClear: Literal["resume", "fresh"] = "resume"


class ModelRef(Spec):
    """The name under which the model is registered; version default: the next."""

    name: DnsLabel
    version: Positive | None = None


class Slo(Spec):
    """Carried to the model."""

    latency: str | None = None


class Watchdog(Spec):
    """Utilization ladder and hang detection. Times in seconds."""

    window: Seconds = 60.0
    aggregate: Literal["mean", "min", "max"] = "mean"
    action: Literal["downgrade", "warn", "stop", "observe"] = "downgrade"
    minGpu: Positive | None = None
    cooldown: Seconds = 600.0
    maxActionsPerDay: Count = 4
    hangFactor: Annotated[float, _NUMBER, Field(gt=1)] = 10.0
    hangFloor: Seconds = 60.0
    firstStep: Seconds = 1800.0


class Reservation(Spec):
    """How the gang is held and queued. Times in seconds."""

    minHold: Literal["none", "soft", "quota", "node"] = "none"
    hold: Seconds | None = None
    placement: Seconds | None = None
    queue: DnsLabel = "default"
    gang: Literal["auto", "podgroup", "turnstile"] = "auto"


class Progress(Spec):
    """For trainers without the ``ffdl`` module: a pattern with the groups ``step`` and ``loss``."""

    regex: str | None = None
    metrics: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _compiles(self) -> "Progress":
        if self.regex is not None:
            try:
                pattern = re.compile(self.regex)
            except re.error as error:
                raise _wrong("regex", f"{self.regex!r} ({error})", "a regular expression") from None
            if "step" not in pattern.groupindex:
                allowed = "a pattern with a group named step, (?P<step>[0-9]+)"
                raise _wrong("regex", repr(self.regex), allowed)
        return self


class Deadlines(Spec):
    """Longest time of a stage, in seconds; none where not set."""

    prefetch: Seconds | None = None
    reserve: Seconds | None = None
    launch: Seconds | None = None
    register_: Seconds | None = Field(default=None, alias="register")


class Network(Spec):
    """Network of the gang."""

    hostNetwork: bool = False
    interface: str | None = None
    masterPort: Annotated[int, _NUMBER, Field(ge=1, le=65535)] = 29500


class JobSpec(Spec):
    """``spec`` of a TrainingJob. ``replicas`` and its bounds are None where ``roles`` are given."""

    training: Training
    roles: tuple[Role, ...] = ()
    replicas: Replicas | None = Field(default_factory=lambda data: None if data.get("roles") else 1)
    minReplicas: Replicas | None = Field(default_factory=lambda data: data.get("replicas"))
    maxReplicas: Replicas | None = Field(default_factory=lambda data: data.get("replicas"))
    successPolicy: Literal["chief", "allWorkers"] | None = None
    evaluatorGrace: Seconds = 600.0
    resources: Resources = Resources()
    watchdog: Watchdog = Watchdog()
    dataStores: tuple[DataStoreRef, ...] = ()
    checkpoint: Checkpoint = Checkpoint()
    model: ModelRef | None = None
    slo: Slo = Slo()
    backoffLimit: Count = 3
    noAdvanceLimit: Positive = 5
    reservation: Reservation = Reservation()
    priority: str = "offline-batch"
    gracePeriod: Seconds | None = None
    progress: Progress = Progress()
    deadlines: Deadlines = Deadlines()
    network: Network = Network()
    podTemplate: dict[str, Any] = {}

    @model_validator(mode="after")
    def _consistent(self) -> "JobSpec":
        if self.roles and self.replicas is not None:
            raise _wrong("replicas", f"{self.replicas} beside roles", "one of the two")
        named: dict[str, list[str]] = {
            "roles": [role.name for role in self.roles],
            "dataStores": [store.name for store in self.dataStores],
        }
        for field, names in named.items():
            twice = next((n for n in range(len(names)) if names[n] in names[:n]), None)
            if twice is not None:
                path = f"{field}[{twice}].name"
                raise _wrong(path, f"{names[twice]!r} for the second time", "each name once")
        self._require_trainer()
        self._require_bounds()
        _require_no_secret(self.podTemplate)
        return self

    def _require_trainer(self) -> None:
        if not self.roles and self.replicas is None:
            raise _wrong("replicas", "nothing", "a whole number, or no such field: that is 1")
        names = [role.name for role in self.roles]
        if names and not set(names) & set(TRAINING):
            allowed = f"one that trains among them: {', '.join(TRAINING)}"
            raise _wrong("roles", f"only {', '.join(names)}", allowed)
        most = max(self.resources_of(role).gpu for role in self.all_roles)
        if self.watchdog.minGpu is not None and self.watchdog.minGpu > most:
            allowed = f"at most {most}, the GPUs of a replica"
            raise _wrong("watchdog.minGpu", str(self.watchdog.minGpu), allowed)

    def _require_bounds(self) -> None:
        if self.replicas is None:
            return
        if self.minReplicas is not None and self.minReplicas > self.replicas:
            raise _wrong("minReplicas", str(self.minReplicas), f"at most replicas {self.replicas}")
        if self.maxReplicas is not None and self.maxReplicas < self.replicas:
            raise _wrong("maxReplicas", str(self.maxReplicas), f"at least replicas {self.replicas}")

    @property
    def all_roles(self) -> tuple[Role, ...]:
        """The roles, or the one role ``worker`` that ``replicas`` stands for."""
        return self.roles or (Role(name="worker", replicas=self.replicas or 1),)

    def resources_of(self, role: Role) -> Resources:
        """What one replica of the role needs."""
        return role.resources or self.resources

    @property
    def gang_size(self) -> int:
        """Number of replicas of all roles."""
        return sum(role.replicas for role in self.all_roles)

    @property
    def total_gpus(self) -> int:
        """GPUs of all replicas."""
        return sum(role.replicas * self.resources_of(role).gpu for role in self.all_roles)

    @property
    def time_limit_s(self) -> float | None:
        """``gpuTimeLimit``: 3600 s where the job uses GPUs, else none unless set."""
        if self.resources.gpuTimeLimit is not None:
            return self.resources.gpuTimeLimit
        return 3600.0 if self.total_gpus else None


class TrainingJob(Spec):
    """A whole manifest in canonical form."""

    apiVersion: Literal["ffdl.cloud.ibm.com/v1"] = "ffdl.cloud.ibm.com/v1"
    kind: Literal["TrainingJob"] = "TrainingJob"
    metadata: Metadata
    spec: JobSpec

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, data: Any) -> Any:
        """No text of it, however deep, is one that cannot be passed on or must not be shown."""
        for path, text in _texts_in(data):
            if (unfit := _UNFIT.search(text)) is not None:
                allowed = "text without NUL and without halves of characters"
                raise _wrong(path, f"{unfit[0]!r} in a text", allowed)
            if (secret := secret_in(text)) is not None:
                raise _wrong(path, f"{secret} in plain text", REFERENCE)
        return data

    def document(self) -> dict[str, Any]:
        """Plain data, defaults filled in; the same job always gives the same document."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @property
    def sha256(self) -> str:
        """Identity of the spec's content: SHA-256 of its canonical JSON."""
        text = json.dumps(self.document(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _as_texts(data: Any) -> Any:
    """Numbers in args, command and env are what YAML makes of ``- 5``; the process sees text.

    Where the reader has kept how a number was written (``3.10``), that is the text.
    """
    if not isinstance(data, Mapping):
        return data
    data = dict(data)
    for key in ("args", "command"):
        if isinstance(data.get(key), (list, tuple)):
            data[key] = [_scalar_text(item) for item in data[key]]
    if isinstance(data.get("env"), Mapping):
        data["env"] = {k: _scalar_text(v) for k, v in data["env"].items()}
    return data


def _scalar_text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return getattr(value, "written", None) or str(value)
    return value


def _leads_out(path: str) -> bool:
    return path.startswith("/") or ".." in path.split("/")


def _require_fit(env: Mapping[str, Any], **words: Sequence[str]) -> None:
    """What a process is told: variables with names, and no secret among them or in a command."""
    for name, value in env.items():
        if not name or "=" in name:
            raise _wrong("env", f"the name {name!r}", "names of one character or more, without =")
        if isinstance(value, str) and value and looks_secret(name):
            raise _wrong(f"env.{name}", "a plain value of what looks like a secret",
                         "{secretName, key} of a secret that holds it")  # fmt: skip
    for field, line in words.items():
        given = secret_option(line)
        if given is not None:
            found = f"a plain value of {given[1]}, which looks like a secret"
            raise _wrong(f"{field}[{given[0]}]", found, REFERENCE)


def _require_no_secret(template: Mapping[str, Any]) -> None:
    """What the containers of a template are told is told as little."""
    for path, found in secrets_within(template, "podTemplate"):
        raise _wrong(path, found, POD_REFERENCE)


def job_id_for(name: str, scope: str) -> str:
    """Id of a job: slug of its name and 10 hex digits of SHA-256 of its scope.

    The scope is (DAG, run, group or operator task, map index), or a nonce on the command line.
    A DNS label of at most 40 characters.
    """
    slug = _NOT_SLUG.sub("-", name.lower()).strip("-")[: JOB_ID_LENGTH - 11].strip("-") or "job"
    return f"{slug}-{hashlib.sha256(scope.encode()).hexdigest()[:10]}"
