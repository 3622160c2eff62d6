"""The job spec in its canonical form (frozen), and its identity.

For: what the user wants, fully checked, with every default filled in. Other dialects are read into
this form in ``core/manifests``. Not for: what the engine makes of it (``plan.py``). Field names are
those that users write (camelCase), so that the path in an error is the path in their file.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ffdl_airflow.core.quantities import CPU_ALLOWED, MEMORY_ALLOWED, parse_bytes, parse_milli_cpu

API_VERSION = "ffdl.cloud.ibm.com/v1"
FRAMEWORKS = ("pytorch", "jax", "tensorflow", "mpi", "caffe", "custom")
ROLES = ("chief", "master", "worker", "ps", "evaluator", "launcher")
JOB_ID_LENGTH = 40
_DNS_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
_NOT_SLUG = re.compile(r"[^a-z0-9]+")
_SECRET_NAME = re.compile(r"(PASSWORD|SECRET|TOKEN|CREDENTIAL|API_?KEY|ACCESS_?KEY)", re.IGNORECASE)

DnsLabel = Annotated[str, Field(pattern=_DNS_LABEL.pattern)]


def _bytes(value: object) -> object:
    return value if value is None else parse_bytes(value)


def _milli(value: object) -> object:
    return value if value is None else parse_milli_cpu(value) / 1000


def _positive(value: int) -> int:
    if value <= 0:
        raise ValueError("must be above 0")
    return value


Bytes = Annotated[int, BeforeValidator(_bytes), AfterValidator(_positive),
                  Field(description=MEMORY_ALLOWED)]  # fmt: skip
Cores = Annotated[float, BeforeValidator(_milli), Field(gt=0, description=CPU_ALLOWED)]
Seconds = Annotated[float, Field(gt=0, description="seconds, above 0")]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class Spec(BaseModel):
    """Base of all spec parts: frozen, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class SecretRef(Spec):
    """A value that only its name is known of: (secret, key)."""

    secretName: DnsLabel
    key: str


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
    minGpuUtilization: Annotated[float, Field(ge=0, le=100)] = 30.0

    @model_validator(mode="before")
    @classmethod
    def _gpu_count(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "gpuCount" in data:
            if "gpu" in data:
                raise ValueError("gpu and gpuCount are the same field, give one of them")
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
    env: dict[str, str | SecretRef] = {}
    globalBatch: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _texts(cls, data: Any) -> Any:
        """Numbers in args and env are what YAML makes of ``- 5``; the process sees text anyway."""
        if isinstance(data, Mapping):
            data = dict(data)
            for key in ("args", "command"):
                if isinstance(data.get(key), (list, tuple)):
                    data[key] = [_scalar_text(item) for item in data[key]]
            if isinstance(data.get("env"), Mapping):
                data["env"] = {k: _scalar_text(v) for k, v in data["env"].items()}
        return data

    @model_validator(mode="after")
    def _one_command(self) -> "Training":
        if not self.entryPoint and not self.command:
            raise ValueError("entryPoint (a path in code) or command is required")
        if self.entryPoint and self.command:
            raise ValueError("entryPoint and command exclude each other")
        if self.entryPoint and (self.entryPoint.startswith("/") or ".." in self.entryPoint):
            raise ValueError("entryPoint is a path inside code, relative and without ..")
        for name, value in self.env.items():
            if isinstance(value, str) and value and _SECRET_NAME.search(name):
                raise ValueError(
                    f"env.{name} looks like a secret: give {{secretName, key}} instead of its value"
                )
        return self


class Role(Spec):
    """A kind of replica of a job with several kinds."""

    name: Literal["chief", "master", "worker", "ps", "evaluator", "launcher"]
    replicas: Positive = 1
    processesPerReplica: Positive | Literal["auto"] = "auto"
    resources: Resources | None = None
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str | SecretRef] = {}
    image: str | None = None
    podTemplate: dict[str, Any] = {}


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
    hangFactor: Annotated[float, Field(gt=1)] = 10.0
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
                raise ValueError(f"regex is not a regular expression: {error}") from None
            if "step" not in pattern.groupindex:
                raise ValueError("regex needs a group named step, (?P<step>[0-9]+)")
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
    masterPort: Annotated[int, Field(ge=1, le=65535)] = 29500


class JobSpec(Spec):
    """``spec`` of a TrainingJob."""

    training: Training
    replicas: Positive | None = None
    roles: tuple[Role, ...] = ()
    minReplicas: Positive | None = None
    maxReplicas: Positive | None = None
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
            raise ValueError("replicas and roles exclude each other")
        names = [role.name for role in self.roles]
        if len(set(names)) != len(names):
            raise ValueError("roles: each name once")
        stores = [store.name for store in self.dataStores]
        if len(set(stores)) != len(stores):
            raise ValueError("dataStores: each name once")
        low, high = self.minReplicas or 1, self.maxReplicas or self.replicas or 1
        if self.replicas is not None and not low <= self.replicas <= max(high, self.replicas):
            raise ValueError("minReplicas must not be above replicas")
        if self.maxReplicas is not None and self.maxReplicas < (self.replicas or 1):
            raise ValueError("maxReplicas must not be below replicas")
        return self

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
        """``gpuTimeLimit``: 3600 s (SPEC A1) where the job uses GPUs, else none unless set."""
        if self.resources.gpuTimeLimit is not None:
            return self.resources.gpuTimeLimit
        return 3600.0 if self.total_gpus else None


class TrainingJob(Spec):
    """A whole manifest in canonical form."""

    apiVersion: Literal["ffdl.cloud.ibm.com/v1"] = "ffdl.cloud.ibm.com/v1"
    kind: Literal["TrainingJob"] = "TrainingJob"
    metadata: Metadata
    spec: JobSpec

    def document(self) -> dict[str, Any]:
        """Plain data, defaults filled in; the same job always gives the same document."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @property
    def sha256(self) -> str:
        """Identity of the spec's content: SHA-256 of its canonical JSON."""
        text = json.dumps(self.document(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _scalar_text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


def job_id_for(name: str, scope: str) -> str:
    """Id of a job: slug of its name and 10 hex digits of SHA-256 of its scope.

    The scope is (DAG, run, group or operator task, map index), or a nonce on the command line.
    A DNS label of at most 40 characters.
    """
    slug = _NOT_SLUG.sub("-", name.lower()).strip("-")[: JOB_ID_LENGTH - 11].strip("-") or "job"
    return f"{slug}-{hashlib.sha256(scope.encode()).hexdigest()[:10]}"
