"""Submit: everything that can be checked is checked before anything is created."""

from __future__ import annotations

import errno
import json
import os
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.errors import InfrastructureError, SpecError, UserError
from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.job import TrainingJob
from ffdl_airflow.core.lifecycle import Phase
from ffdl_airflow.core.observation import Inventory
from ffdl_airflow.ledger.base import Batch
from ffdl_airflow.stages.submit import check, require_ledger, submit, user_name, warnings
from ffdl_airflow.testing.builders import job
from ffdl_airflow.testing.fake_engine import FakeEngine
from ffdl_airflow.testing.memory_ledger import MemoryLedger
from tests.stages.conftest import JOB, OWNER, World

TRAINING = {"framework": "jax", "entryPoint": "train.py"}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    for name in ("train.py", "model.py"):
        (folder / name).write_text("")
    return folder


def problems_of(world: World, submitted: TrainingJob) -> list[tuple[str, str, str]]:
    with pytest.raises(SpecError) as caught:
        world.submit(submitted)
    assert caught.value.exit_code == 2
    assert world.events() == []
    assert world.ledger.jobs() == []
    assert not (world.tmp / "checkpoints").exists()
    assert not (world.tmp / "state").exists()
    return [(p.path, p.found, p.allowed) for p in caught.value.problems]


def with_code(path: object, **training: Any) -> TrainingJob:
    return job(training={**TRAINING, "code": str(path), **training})


def test_a_good_job_is_submitted(world: World, code: Path) -> None:
    world.submit(with_code(code))
    (event,) = world.events()
    assert event.kind is Kind.SUBMITTED
    assert event.body["owner"] == OWNER
    assert event.body["ledger"] == world.ledger.ledger_id
    (row,) = world.ledger.jobs()
    assert (row.phase, row.summary["team"]) == ("Submitted", "nlp")


def test_the_entry_point_must_be_there(world: World, code: Path) -> None:
    ((path, found, allowed),) = problems_of(world, with_code(code, entryPoint="trian.py"))
    assert (path, found) == ("spec.training.entryPoint", "'trian.py'")
    assert allowed == f"a file in {code}, for example model.py, train.py"


def test_also_in_a_zip(world: World, code: Path) -> None:
    archive = code.parent / "code.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(code / "model.py", "model.py")
    ((path, _, allowed),) = problems_of(world, with_code(archive))
    assert path == "spec.training.entryPoint"
    assert "model.py" in allowed


def test_code_must_be_said_and_there(world: World, tmp_path: Path) -> None:
    ((path, found, allowed),) = problems_of(world, job(training=TRAINING))
    assert (path, found) == ("spec.training.code", "nothing")
    assert "train.py" in allowed
    ((path, found, _),) = problems_of(world, with_code(tmp_path / "nowhere"))
    assert path == "spec.training.code"
    assert str(tmp_path / "nowhere") in found
    (tmp_path / "empty").mkdir()
    ((path, _, allowed),) = problems_of(world, with_code(tmp_path / "empty"))
    assert (path, allowed) == ("spec.training.code", "at least one file")


def test_a_command_needs_no_code(world: World, code: Path) -> None:
    check(world.deps, job(), job_id=JOB)
    check(world.deps, job(training={"framework": "jax", "command": ["t"], "code": str(code)}),
          job_id=JOB)  # fmt: skip


def test_data_must_be_there(world: World, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    stores = [
        {"name": "code", "path": "/x"}, {"name": "a"}, {"name": "b", "path": f"{tmp_path}/nowhere"},
        {"name": "c", "path": f"{tmp_path}/empty"},
    ]  # fmt: skip
    found = problems_of(world, job(dataStores=stores))
    assert [problem[0] for problem in found] == [
        "spec.dataStores[0].name", "spec.dataStores[1].path", "spec.dataStores[2].path",
        "spec.dataStores[3].path",
    ]  # fmt: skip
    assert found[1][1:] == ("nothing", "the folder, file or archive with data")
    assert f"{tmp_path}/nowhere" in found[2][1]
    assert found[3][2] == "at least one file"


def test_the_local_engine_has_no_secrets(world: World) -> None:
    env = {"HF_TOKEN": {"secretName": "hub", "key": "token"}}
    training = {"framework": "jax", "command": ["t"], "env": env}
    roles = [{"name": "worker", "env": env}]
    found = problems_of(world, job(training=training, replicas=None, roles=roles))
    assert [problem[0] for problem in found] == [
        "spec.training.env.HF_TOKEN", "spec.roles[0].env.HF_TOKEN",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "path", "found"),
    [
        ({"replicas": 5}, "spec.replicas", "a gang of 5 slots"),
        ({"replicas": 1, "resources": {"gpu": 8}}, "spec.resources.gpu", "a gang of 8 slots"),
        ({"replicas": None, "roles": [{"name": "worker", "replicas": 3}, {"name": "ps",
          "replicas": 2}]}, "spec.roles", "a gang of 5 slots"),
    ],
)  # fmt: skip
def test_a_gang_must_fit(world: World, spec: Any, path: str, found: str) -> None:
    problem = problems_of(world, job(**spec))[0]
    assert problem[:2] == (path, found)
    assert problem[2].startswith("at most 4")


class SmallMachine(FakeEngine):
    """4 slots, 8 cores, 16 GiB and no GPU."""

    def capacity(self) -> Inventory:
        return replace(super().capacity(), cpu=8, memory_bytes=16 * 2**30)


@pytest.mark.parametrize(
    ("spec", "path", "found", "allowed"),
    [
        ({"resources": {"cpu": 9}}, "spec.resources.cpu", "9 cores for one replica",
         "at most 8, this machine's cores"),
        ({"resources": {"memory": "17Gi"}}, "spec.resources.memory", "17.0 GiB for one replica",
         "at most 16.0 GiB, this machine's memory"),
        ({"resources": {"memory": "9Gi"}}, "spec.resources.memory", "18.0 GiB for a gang of 2",
         "at most 16.0 GiB, this machine's memory"),
        ({"replicas": None, "roles": [{"name": "chief"}, {"name": "worker", "resources": {"memory":
          "20Gi"}}]}, "spec.roles[1].resources.memory", "20.0 GiB for one replica",
         "at most 16.0 GiB, this machine's memory"),
        ({"replicas": None, "roles": [{"name": "chief", "resources": {"memory": "9Gi"}}, {"name":
          "worker", "resources": {"memory": "9Gi"}}]}, "spec.roles", "18.0 GiB for a gang of 2",
         "at most 16.0 GiB, this machine's memory"),
    ],
)  # fmt: skip
def test_a_gang_must_fit_on_the_machine(
    world: World, spec: Any, path: str, found: str, allowed: str
) -> None:
    world.use(engine=SmallMachine(slots=4))
    assert problems_of(world, job(**spec)) == [(path, found, allowed)]
    world.submit(job(resources={"cpu": 8, "memory": "8Gi"}))


def test_what_is_not_known_of_a_machine_bounds_nothing(world: World) -> None:
    world.submit(job(resources={"cpu": 9999, "memory": "999Ti"}))


def test_gpus_on_a_machine_without_any_are_told(world: World) -> None:
    world.submit(job(resources={"gpu": 1}))
    world.advance(Goal.SUBMIT)
    (event,) = world.events(Kind.VALIDATED)
    (warning,) = event.body["warnings"]
    assert warning.startswith("spec.resources.gpu: 2 GPUs are asked for and this machine has none")


@pytest.mark.parametrize("part", ["file", "file/below"])
def test_a_checkpoint_path_must_be_a_directory(world: World, tmp_path: Path, part: str) -> None:
    (tmp_path / "file").touch()
    ((path, found, _),) = problems_of(world, job(checkpoint={"path": str(tmp_path / part)}))
    assert path == "spec.checkpoint.path"
    assert found == f"{tmp_path / part}, {tmp_path / 'file'} is not a directory"


def test_a_try_leaves_nothing(world: World, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    check(world.deps, job(checkpoint={"path": str(tmp_path / "a" / "b")}), job_id=JOB)
    assert sorted(tmp_path.iterdir()) == before


def test_a_checkpoint_directory_that_cannot_be_made_after_all(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path's fault ends the job; the disk's is told, and the job may go on later."""

    def own(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("ffdl_airflow.stages.submit.own", own)
    world.submit(job(checkpoint={"path": str(tmp_path / "ckpt")}))
    number = errno.ENOSPC
    with pytest.raises(InfrastructureError, match="No space left on device"):
        world.advance()
    assert world.state.phase is Phase.SUBMITTED
    number = errno.EROFS
    world.advance()
    (event,) = world.events(Kind.REFUSED)
    assert "spec.checkpoint.path: found" in event.body["reason"]
    assert "Read-only file system" in event.body["reason"]
    assert world.state.phase is Phase.FAILED


def test_what_the_launcher_sets_is_not_the_users_to_set(world: World) -> None:
    training = {"framework": "jax", "command": ["t"], "env": {"WORLD_SIZE": "4", "SEED": "1"}}
    roles = [{"name": "worker", "env": {"JAX_PROCESS_ID": "0", "TF_CONFIG": "{}"}}]
    found = problems_of(world, job(training=training, replicas=None, roles=roles))
    assert [path for path, _, _ in found] == [
        "spec.training.env.WORLD_SIZE", "spec.roles[0].env.JAX_PROCESS_ID",
    ]  # fmt: skip


def test_gpus_that_nobody_will_use_are_told_of(world: World) -> None:
    training = {"framework": "pytorch", "command": ["python", "ddp.py"]}
    told = warnings(world.deps, job(training=training, resources={"gpu": 2}))
    assert len(told) == 2
    assert "2 of 4 GPUs will be unused" in told[1]


def test_a_checkpoint_directory_has_one_owner(world: World, tmp_path: Path) -> None:
    ((path, _, allowed),) = problems_of(world, job(checkpoint={"path": "ckpt"}))
    assert (path, allowed) == ("spec.checkpoint.path", "an absolute path")
    folder = tmp_path / "ckpt" / JOB
    folder.mkdir(parents=True)
    (folder / protocol.OWNER).write_text(json.dumps({"v": 1, "job": "x-1", "ledger": "elsewhere"}))
    ((path, found, allowed),) = problems_of(world, job(checkpoint={"path": str(tmp_path / "ckpt")}))
    assert path == "spec.checkpoint.path"
    assert found == f"{folder}, owned by job x-1 of ledger elsewhere"
    assert allowed == "a directory of this job's own"


def test_the_same_job_of_another_ledger_is_another_owner(world: World, tmp_path: Path) -> None:
    world.submit()
    world.advance(Goal.SUBMIT)
    other = World(tmp_path)
    with pytest.raises(SpecError, match="owned by job"):
        other.submit()


def test_all_problems_are_told_at_once(world: World) -> None:
    training = {**TRAINING, "env": {"RANK": "0"}}
    broken = job(training=training, replicas=9, dataStores=[{"name": "a"}])
    assert [problem[0] for problem in problems_of(world, broken)] == [
        "spec.training.env.RANK", "spec.training.code", "spec.dataStores[0].path", "spec.replicas",
    ]  # fmt: skip


def test_the_owner_goes_on_and_nobody_else(world: World) -> None:
    world.submit()
    world.submit()
    assert len(world.events()) == 1
    with pytest.raises(UserError, match="found another owner") as caught:
        world.submit(owner={"key": "airflow nightly/run-1/train/-1"})
    assert caught.value.exit_code == 2
    assert "command line" in caught.value.cause
    assert len(world.events()) == 1


def test_a_changed_spec_is_an_event(world: World) -> None:
    world.submit()
    world.submit(job(replicas=3))
    world.submit(job(replicas=3))
    assert [event.kind for event in world.events()] == [Kind.SUBMITTED, Kind.SPEC_CHANGED]
    assert world.state.spec["spec"]["replicas"] == 3
    with pytest.raises(SpecError, match="at most 4"):
        world.submit(job(replicas=5))
    assert len(world.events()) == 2


def test_a_job_that_failed_goes_on_with_the_corrected_spec(world: World) -> None:
    world.submit()
    event = world.events()[0]
    failed = type(event)(**{**vars(event), "kind": Kind.FAILED, "dedupe": None, "body": {}})
    world.ledger.append(Batch(stream=JOB, expected_seq=1, events=[failed]))  # type: ignore[list-item]
    world.submit(job(backoffLimit=9))
    assert world.state.phase is Phase.FAILED
    assert world.state.spec["spec"]["backoffLimit"] == 9


class SlowToAppend(MemoryLedger):
    """Another submit comes between the first one's read and its append."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.between = between

    def append(self, *batches: Batch) -> Any:
        between, self.between = self.between, None
        if between is not None:
            between()
        return super().append(*batches)


def test_of_two_submits_at_once_one_is_the_first(tmp_path: Path) -> None:
    ledger = SlowToAppend(lambda: submit(world.deps, job(), job_id=JOB, owner=OWNER))
    world = World(tmp_path, ledger)
    world.submit()
    assert [event.kind for event in world.events()] == [Kind.SUBMITTED]
    ledger.between = None
    other = SlowToAppend(lambda: submit(world.deps, job(), job_id=JOB, owner={"key": "another"}))
    world = World(tmp_path / "other", other)
    with pytest.raises(UserError, match="another owner"):
        world.submit()
    (row,) = world.ledger.jobs()
    assert row.summary["owner"] == {"key": "another"}


def test_many_submits_at_once_make_one_job(world: World) -> None:
    threads = [threading.Thread(target=world.submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.kind for event in world.events()] == [Kind.SUBMITTED]


def test_validation_claims_the_checkpoint_directory(world: World) -> None:
    world.run_to(Goal.SUBMIT)
    owner = json.loads((world.checkpoints / protocol.OWNER).read_text())
    assert owner == {"v": 1, "job": JOB, "ledger": world.ledger.ledger_id}
    (event,) = world.events(Kind.VALIDATED)
    assert event.body == {
        "slots": 2, "replicas": 2, "gpus": 0, "time_limit_s": None, "backoff_limit": 3,
        "warnings": [],
    }  # fmt: skip


def test_what_has_become_wrong_since_is_refused(world: World, code: Path) -> None:
    world.submit(with_code(code))
    (code / "train.py").unlink()
    world.advance()
    (event,) = world.events(Kind.REFUSED)
    assert "spec.training.entryPoint" in event.body["reason"]
    assert event.body["problems"]
    assert world.state.phase is Phase.FAILED
    assert not world.checkpoints.exists()


def test_a_job_stays_in_its_ledger(world: World) -> None:
    require_ledger(world.deps, None)
    require_ledger(world.deps, {"id": world.ledger.ledger_id, "host": "lab-1"})
    world.use(source={"host": "lab-2"})
    with pytest.raises(
        UserError, match="found the ledger of host lab-2, the job is in that of host"
    ):
        require_ledger(world.deps, {"id": "another", "host": "lab-1"})


def test_who_asks_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    assert user_name() == "ada"
