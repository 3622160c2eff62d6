"""Models: what the registry keeps of a version, and what is asked of it when one is published.

Pure. The document of a version (``MODEL.json``) is its lineage: job, attempts, checkpoint, data
generations, code, image. Field names are those of the ``Model`` manifest.
"""

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ffdl_airflow.core.job import Spec

MODEL_FILE = "MODEL.json"
AUDIT_FILE = "AUDIT.jsonl"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
VersionNumber = Annotated[int, Field(ge=1)]

_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
NAME_ALLOWED = "1 to 63 of a-z, 0-9, '-' and '.', a letter or digit first and last, no '..'"


def is_model_name(name: str) -> bool:
    """Whether ``name`` can name a model: it becomes a folder, so it must not be able to leave."""
    return bool(_DNS_NAME.fullmatch(name)) and ".." not in name


def _finite(value: object) -> object:
    """JSON has no NaN and no infinity; a diverged run must still be registrable."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Metric = Annotated[float | None, BeforeValidator(_finite)]
"""A number; None where it was not finite."""


class ModelFile(Spec):
    """One file of a version; ``size`` in bytes."""

    name: str
    size: Annotated[int, Field(ge=0)]
    sha256: Sha256


class CheckpointRef(Spec):
    """The checkpoint that the files are."""

    step: Annotated[int, Field(ge=0)]
    sha256: Sha256


class CodeRef(Spec):
    """The code that ran. ``gitCommit`` is None outside a checkout; ``gitDirty``: it had changes."""

    generation: str
    gitCommit: str | None = None
    gitDirty: bool | None = None


class ModelMetadata(Spec):
    """What a server needs to know of the model (``Model`` manifest, ``spec.metadata``)."""

    framework: str
    version: str | None = None
    inputShape: Any = None
    outputShape: Any = None
    preprocessing: Any = None
    postprocessing: Any = None


class AuditEntry(Spec):
    """One approval. ``approvedAt``: UTC, ISO 8601."""

    approvedBy: str
    approvedAt: str
    change: str


class ModelIdentity(Spec):
    """What makes two requests the same publication, so that a retry registers once."""

    name: str
    job: str
    checkpointSha256: Sha256


class ModelLineage(Spec):
    """Where a version comes from: known before it is published.

    ``data`` is {data store: generation}. ``createdAt``: UTC, ISO 8601. ``storage`` is a hint for
    people where the files lay at publication; nothing reads it, so a model root can be moved.
    """

    name: str
    job: str
    attempts: Annotated[int, Field(ge=1)]
    checkpoint: CheckpointRef
    data: dict[str, str] = Field(default_factory=dict)
    code: CodeRef | None = None
    image: str | None = None
    metadata: ModelMetadata
    metrics: dict[str, Metric] = Field(default_factory=dict)
    slo: dict[str, Any] = Field(default_factory=dict)
    owner: str | None = None
    createdBy: str | None = None
    createdAt: str


class PublishRequest(ModelLineage):
    """A version to be made of the files in ``directory``. ``version`` None means the next one."""

    directory: str
    version: VersionNumber | None = None

    def lineage(self) -> dict[str, Any]:
        """The part that is kept in the version's document."""
        return self.model_dump(exclude={"directory", "version"})


class ModelVersion(ModelLineage):
    """``MODEL.json``. ``sha256`` is one hash for all files, equal to the checkpoint's."""

    v: Literal[1] = 1
    version: VersionNumber
    sha256: Sha256
    files: tuple[ModelFile, ...]
    auditTrail: tuple[AuditEntry, ...] = ()
