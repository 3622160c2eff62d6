"""The port for model registries, and their errors.

::

    RegistryError            has ``code`` beside what FfdlError has
    ├── PublishRefused       the user's input: a bad name, a version that is taken
    ├── ModelNotFound        no such model or version
    └── RegistryUnusable     the place: disk full, not writable, a damaged checkpoint
"""

from collections.abc import Sequence
from typing import Protocol

from ffdl_airflow.core.errors import CodedError, InfrastructureError, NotFoundError, UserError
from ffdl_airflow.core.model import AuditEntry, ModelIdentity, ModelVersion, PublishRequest

# Reasons, ``code`` of a RegistryError.
BAD_NAME = "BAD_NAME"
VERSION_TAKEN = "VERSION_TAKEN"
NO_FILES = "NO_FILES"
RESERVED_NAME = "RESERVED_NAME"
NOT_FOUND = "NOT_FOUND"
CHECKPOINT_CHANGED = "CHECKPOINT_CHANGED"
DISK_FULL = "DISK_FULL"
UNUSABLE = "UNUSABLE"
BROKEN_VERSION = "BROKEN_VERSION"
PUBLISHER_DIED = "PUBLISHER_DIED"


class RegistryError(CodedError):
    """Base."""


class PublishRefused(RegistryError, UserError):
    """What was asked for cannot be published."""

    default_next_step = "correct spec.model and register again; the checkpoint stays"


class ModelNotFound(RegistryError, NotFoundError):
    """No such model or version."""

    default_next_step = "`ffdl registry` shows what is there"


class RegistryUnusable(RegistryError, InfrastructureError):
    """The registry or the checkpoint failed."""


class Registry(Protocol):
    """Where model versions are published and found again.

    Promised: a version never changes once ``get`` has shown it; versions of a name count up from 1;
    ``publish`` with an identity (name, job, checkpoint SHA-256) that is there returns that version
    and makes none, also when several call it at once or one was killed in the middle. Undefined:
    the order in which two different identities that come at once are numbered. May be refused: a
    name or version by PublishRefused.
    """

    def find(self, identity: ModelIdentity) -> ModelVersion | None:
        """The version that this identity was published as, or None."""
        ...

    def publish(self, request: PublishRequest) -> ModelVersion:
        """Make a version of the files in ``request.directory``. Takes as long as they are large."""
        ...

    def get(self, name: str, version: int | None = None) -> ModelVersion:
        """A version with its audit trail, the newest without number. Raises ModelNotFound."""
        ...

    def list(self, name: str | None = None) -> Sequence[ModelVersion]:
        """All versions, by name and number; those of one name; empty where there is none."""
        ...

    def append_audit(self, name: str, version: int, entry: AuditEntry) -> ModelVersion:
        """Add an approval. Nothing is ever taken out of the trail."""
        ...
