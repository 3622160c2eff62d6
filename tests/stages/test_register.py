"""Register: once for each checkpoint, with the lineage; failures are judged."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ffdl_airflow.core.errors import ErrorReport
from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import Phase
from ffdl_airflow.core.model import PublishRequest
from ffdl_airflow.registries.publisher import PublishState
from ffdl_airflow.stages.advance import Done, Ended, Waits
from ffdl_airflow.stages.deps import Job
from ffdl_airflow.stages.register import read_metrics, request_for
from ffdl_airflow.testing.builders import job
from ffdl_airflow.testing.instant import InstantPublisher
from tests.stages.conftest import JOB, World

ERROR = ErrorReport(code="DISK_FULL", text="no room for 3 GiB", found="x", allowed="y",
                     next_step="make room", fault="infrastructure", retryable=True)  # fmt: skip


class Slow(InstantPublisher):
    """Answers that the test has written down, then the real one."""

    def __init__(self, *answers: PublishState) -> None:
        super().__init__()
        self.answers = list(answers)
        self.dropped = 0

    def ensure(self, request: PublishRequest) -> PublishState:
        return self.answers.pop(0) if self.answers else super().ensure(request)

    def drop(self, request: PublishRequest) -> None:
        self.dropped += 1


def trained(world: World, **spec: Any) -> None:
    world.submit(job(**spec))
    world.advance(Goal.LAUNCH)
    world.seal(100)
    world.finish()
    world.advance(Goal.LAUNCH)
    assert world.state.phase is Phase.TRAINED


def failed(**fields: Any) -> PublishState:
    values = {name: getattr(ERROR, name) for name in ErrorReport.__dataclass_fields__} | fields
    return PublishState(state="failed", error=ErrorReport(**values))


def test_a_model_has_its_lineage(world: World) -> None:
    trained(world, slo={"latency": "20ms"})
    output = world.tmp / "state" / "jobs" / JOB / "output"
    output.mkdir(parents=True)
    metrics = {"accuracy": 0.97, "steps": 3, "name": "x", "done": True, "loss": None}
    (output / "metrics.json").write_text(json.dumps(metrics))
    request = request_for(world.deps, Job.of(world.state))
    assert (request.name, request.job, request.attempts) == ("bert-base", JOB, 1)
    assert (request.checkpoint.step, request.slo) == (100, {"latency": "20ms"})
    assert request.metrics == {"accuracy": 0.97, "steps": 3.0}
    assert (request.owner, request.createdBy) == ("nlp", "ada")
    assert request.createdAt == request_for(world.deps, Job.of(world.state)).createdAt
    assert isinstance(world.advance(), Done)
    (event,) = world.events(Kind.MODEL_REGISTERED)
    assert (event.body["version"], event.body["metrics"]) == (1, request.metrics)
    assert event.dedupe == "model:0:bert-base:1"


def test_no_metrics_are_no_metrics(world: World) -> None:
    assert read_metrics(str(world.tmp)) == {}


def test_a_publisher_is_waited_for(world: World) -> None:
    trained(world)
    first = PublishState(state="running", bytes_done=3)
    world.use(publishing=Slow(first, replace(first, bytes_total=9)))
    for text in ("(starting)", "(3/9 bytes)"):
        outcome = world.advance()
        assert isinstance(outcome, Waits)
        assert text in outcome.wait.what
    assert isinstance(world.advance(), Done)


def test_without_a_checkpoint_there_is_nothing_to_register(world: World) -> None:
    world.submit()
    world.advance(Goal.LAUNCH)
    world.finish()
    assert isinstance(world.advance(), Ended)
    assert "no checkpoint was sealed" in world.state.reason
    assert world.events(Kind.VERDICT)[0].body["class"] == "CONFIG"


def test_a_job_without_a_model_succeeds_without(world: World) -> None:
    trained(world, model=None)
    assert isinstance(world.advance(), Done)
    assert (world.state.model, world.events(Kind.REGISTER_INTENDED)) == (None, [])


def test_what_cannot_be_published_ends_the_job(world: World) -> None:
    trained(world)
    slow = Slow(failed(fault="user", text="version 1 is taken", retryable=False))
    world.use(publishing=slow)
    assert isinstance(world.advance(), Ended)
    assert "version 1 is taken" in world.state.reason
    assert slow.dropped == 1


def test_a_full_disk_is_tried_again(world: World) -> None:
    trained(world)
    world.use(publishing=Slow(failed()))
    assert isinstance(world.advance(), Done)
    assert world.events(Kind.VERDICT)[0].body["class"] == "STORAGE_TRANSIENT"
    assert world.state.phase is Phase.SUCCEEDED
