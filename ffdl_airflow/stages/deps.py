"""What a stage works with, and what it answers. No stage knows a concrete adapter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from ffdl_airflow.core.events import NewEvent
from ffdl_airflow.core.job import TrainingJob
from ffdl_airflow.core.lifecycle import JobState
from ffdl_airflow.core.manifests.ffdl import read_job
from ffdl_airflow.core.model import PublishRequest
from ffdl_airflow.core.plan import Timing
from ffdl_airflow.engines.base import Engine
from ffdl_airflow.ledger.base import Ledger
from ffdl_airflow.registries.publisher import PublishState
from ffdl_airflow.stores.cache import MoveState


@dataclass(frozen=True, kw_only=True)
class Roots:
    """Folders of an installation, as this host sees them, and ``python`` as the replicas do.

    ``written``: setting → folder that jobs write to, checked before one is submitted.
    """

    state_dir: str
    checkpoint_root: str
    output_root: str
    python: str
    written: Mapping[str, str] = field(default_factory=dict)


class Generations(Protocol):
    """Where data become generations; :class:`ffdl_airflow.stores.cache.GenerationCache` is one."""

    def ensure(self, store: str, source: Mapping[str, Any], *, job: str) -> MoveState:
        """Claim the generation of the source, start its mover, say how far it is."""
        ...

    def drop(self, store: str, source: Mapping[str, Any], *, job: str) -> None:
        """Forget what was answered."""
        ...

    def release_all(self, *, job: str) -> None:
        """The job is over."""
        ...


class Publisher(Protocol):
    """Where models are published; :class:`ffdl_airflow.registries.publisher.Publishing` is one."""

    def ensure(self, request: PublishRequest) -> PublishState:
        """Claim the version, start its publisher, say how far it is."""
        ...

    def drop(self, request: PublishRequest) -> None:
        """Forget what was answered."""
        ...


@dataclass(frozen=True, kw_only=True)
class Deps:
    """Ready adapters and the clock. ``source`` says who drives (host, pid, Airflow task).

    ``one_host``: the engine's gangs can be seen on the host that they were begun on, and nowhere
    else.
    """

    ledger: Ledger
    engine: Engine
    engine_name: str
    cache: Generations
    publishing: Publisher
    roots: Roots
    timing: Timing
    clock: Callable[[], datetime]
    source: Mapping[str, Any]
    one_host: bool = False


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Nothing to do now. ``placement_id``: its coordinator's status is worth waiting for."""

    what: str
    at_most_s: float
    placement_id: str | None = None
    status: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """What came of an action: facts to append, and, when there are none, what to wait for."""

    facts: tuple[NewEvent, ...] = ()
    wait: Wait | None = None


@dataclass(frozen=True)
class Job:
    """A job that is being driven: its state and its spec, read."""

    state: JobState
    spec: TrainingJob = field(compare=False)

    @classmethod
    def of(cls, state: JobState) -> "Job":
        """From the fold."""
        return cls(state, read_job(state.spec, source=f"the recorded spec of {state.job_id}"))

    def checkpoint_dir(self, roots: Roots) -> str:
        """The job's own checkpoint directory; the job id is always the last part."""
        root = self.spec.spec.checkpoint.path or roots.checkpoint_root
        return f"{root.rstrip('/')}/{self.state.job_id}"

    def output_dir(self, roots: Roots) -> str:
        """Where the ranks put results that are no checkpoints."""
        return f"{roots.output_root}/{self.state.job_id}/output"

    def grace_s(self, timing: Timing) -> float:
        """Time for a save before a stop, in seconds."""
        return self.spec.spec.gracePeriod or timing.grace_s
