"""What only the local engine promises: no process outlives its placement, no secret goes along."""

from __future__ import annotations

import json
import os
import signal
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from ffdl_airflow.agent.processes import carrying
from ffdl_airflow.core.errors import InfrastructureError
from ffdl_airflow.core.observation import Presence
from ffdl_airflow.core.plan import GangPlan
from ffdl_airflow.engines import processes
from ffdl_airflow.engines.base import Ending, EndRequest, Granted, Over, Waiting
from ffdl_airflow.engines.local import engine as engine_module
from ffdl_airflow.engines.local.engine import LocalEngine
from ffdl_airflow.engines.local.sockets import MOST_BYTES
from ffdl_airflow.testing import builders
from ffdl_airflow.testing.contracts.engine import SLOTS, ended, gone, held, running, until

from .conftest import MakeEngine, Plan

MARK = "not-for-children"


@pytest.fixture
def hiding(plan: Plan, tmp_path: Path) -> tuple[GangPlan, Callable[[], int]]:
    """A gang whose program leaves a grandchild that ignores SIGTERM, and that one's pid."""
    file = tmp_path / "pid"
    training = {"command": builders.python(builders.DEAF, str(file))}
    return plan("hiding", training=training), lambda: int(
        until(lambda: file.exists() and file.read_text(), "the grandchild is there")
    )


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def mine(engine: LocalEngine, gang: GangPlan) -> list[psutil.Process]:
    return processes.find(engine.mark(gang.placement_id))


def test_agents_that_do_not_answer_are_killed(
    local: LocalEngine,
    hiding: tuple[GangPlan, Callable[[], int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stopped agent keeps its lock and its socket, and says nothing."""
    monkeypatch.setattr(engine_module, "_PATIENCE_S", 0.5)
    monkeypatch.setattr("ffdl_airflow.engines.client._CALL_S", 0.2)
    gang, grandchild = hiding
    held(local, gang)
    running(local, gang)
    pid = grandchild()
    for agent in carrying(local.mark(gang.placement_id), None):
        os.kill(agent.pid, signal.SIGSTOP)
    assert isinstance(local.end(gang.placement_id, EndRequest(why="test")), Ending)
    assert ended(local, gang).killed > 1
    assert not alive(pid)
    assert local.capacity().free == SLOTS


def test_a_gang_without_its_coordinator_is_gone(
    local: LocalEngine, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though another agent is still there, because it has been stopped; ``end`` sees to that."""
    monkeypatch.setattr(engine_module, "_PATIENCE_S", 0.5)
    gang = plan("headless", replicas=2)
    held(local, gang)
    agents = {psutil.Process(found.pid).cmdline()[-1]: found.pid
              for found in carrying(local.mark(gang.placement_id), None)}  # fmt: skip
    os.kill(agents["worker-1"], signal.SIGSTOP)
    os.kill(agents["worker-0"], signal.SIGKILL)
    until(gone(local, gang), "the gang is gone")
    assert alive(agents["worker-1"])
    assert ended(local, gang).killed == 1
    assert not alive(agents["worker-1"])


def test_orphans_of_killed_agents_are_gone_when_the_next_job_has_their_slots(
    local: LocalEngine, plan: Plan, hiding: tuple[GangPlan, Callable[[], int]]
) -> None:
    gang, grandchild = hiding
    held(local, gang)
    running(local, gang)
    pid = grandchild()
    orphans = [process.pid for process in mine(local, gang)]
    for agent in carrying(local.mark(gang.placement_id), None):
        os.kill(agent.pid, signal.SIGKILL)
    until(gone(local, gang), "the agents are gone")
    assert alive(pid)
    held(local, plan("next", replicas=4))
    assert not any(alive(orphan) for orphan in orphans)
    assert isinstance(local.reserve(gang), Over)


@pytest.mark.parametrize("step", ["_ended", "_write_fence", "_start_agent"])
def test_a_driver_killed_on_the_way_does_not_keep_its_slots(
    make_engine: MakeEngine, plan: Plan, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the grant and the fence, after the folder was made, and before the first agent."""
    engine, other = make_engine(young_s=1.0), plan("other", replicas=4)
    gang = plan("killed", replicas=2)
    pid = os.fork()
    if pid == 0:
        doomed = make_engine()
        calls = iter(range(10))
        original = getattr(doomed, step)

        def die(*args: Any) -> Any:
            if step != "_ended" or next(calls) == 1:  # the second look comes after the grant
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args)

        monkeypatch.setattr(doomed, step, die)
        doomed.reserve(gang)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert engine.capacity().free == SLOTS - 2
    answer = engine.reserve(other)
    assert isinstance(answer, Waiting)
    assert gang.placement_id in answer.reason
    until(lambda: isinstance(engine.reserve(other), Granted), "the slots are reclaimed")
    assert isinstance(engine.reserve(gang), Over)
    assert mine(engine, gang) == []


@pytest.mark.parametrize("step", ["_ended", "_write_fence", "_start_agent"])
def test_the_next_driver_goes_on_where_one_was_killed(
    make_engine: MakeEngine, plan: Plan, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = plan("repaired", replicas=2)
    pid = os.fork()
    if pid == 0:
        doomed = make_engine()
        calls = iter(range(10))
        original = getattr(doomed, step)

        def die(*args: Any) -> Any:
            if next(calls) == 1 or step == "_write_fence":  # with _start_agent: after the first
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args)

        monkeypatch.setattr(doomed, step, die)
        doomed.reserve(gang)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    engine = make_engine()
    seen = held(engine, gang)
    assert seen.facts[0].body["joined"] == ["worker-0", "worker-1"]
    assert len(carrying(engine.mark(gang.placement_id), None)) == 2


def test_no_child_sees_airflows_settings(
    local: LocalEngine, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "AIRFLOW_CONN_FFDL_DEFAULT",
                 "AIRFLOW__CORE__FERNET_KEY", "FFDL_LEDGER_URL", "AIRFLOW__FFDL__LEDGER_URL",
                 "PGPASSWORD", "AWS_SECRET_ACCESS_KEY"):  # fmt: skip
        monkeypatch.setenv(name, MARK)
    gang = plan("secrets", replicas=2, training={"env": {"OWN": "yes"}})
    held(local, gang)
    running(local, gang)
    family = until(lambda: len(found := mine(local, gang)) == 4 and found, "two agents, two ranks")
    environments = [process.environ() for process in family]
    assert sum(env.get("OWN") == "yes" for env in environments) == 2
    for env in environments:
        assert MARK not in env.values()
        assert not [name for name in env if name.startswith("AIRFLOW")]
    for path in (local.settings.state_dir / "jobs").rglob("*"):
        assert not path.is_file() or MARK not in path.read_text(errors="replace"), path


def test_sockets_fit_whatever_the_folders_are_called(
    make_engine: MakeEngine, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """107 bytes are all there are; state and temporary folders are 200 deep."""
    deep = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 8)
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    engine = make_engine(state_dir=deep / "state")
    gang = plan("deep", replicas=2)
    held(engine, gang)
    for replica in _document(engine, gang)["replicas"]:
        assert Path(replica["socket"]).is_socket() or replica["index"]
        assert len(replica["socket"]) <= MOST_BYTES
    running(engine, gang)


def test_token_and_sockets_are_for_their_owner_only(local: LocalEngine, plan: Plan) -> None:
    before = os.umask(0)
    try:
        gang = plan("modes")
        held(local, gang)
    finally:
        os.umask(before)
    folder = local.settings.state_dir / "jobs" / gang.job_id / "placements" / "1"
    home = Path(_document(local, gang)["coordinator"]["unix"]).parent
    assert _mode(folder / "token") == 0o600
    assert _mode(home) == _mode(home.parent) == 0o700
    ended(local, gang)
    assert not home.exists()


def test_a_socket_folder_of_somebody_else_is_refused(
    local: LocalEngine, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = Path(tempfile.mkdtemp(prefix="ffdl-"))
    open_to_all = short / f"ffdl-{os.getuid()}"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    gang = plan("squat")
    with pytest.raises(InfrastructureError, match=r"mode 777.*Next: remove it"):
        local.reserve(gang)
    open_to_all.rmdir()
    held(local, gang)
    ended(local, gang)
    open_to_all.rmdir()
    short.rmdir()


def test_a_state_folder_by_another_name_is_the_same_installation(
    make_engine: MakeEngine, plan: Plan, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "state")
    one, two = make_engine(), make_engine(state_dir=tmp_path / "link")
    gang = plan("link")
    held(one, gang)
    running(one, gang)
    assert two.observe(gang.placement_id, 0).gang_state == "running"
    ended(two, gang)
    assert mine(one, gang) == []


def test_a_dead_waiter_blocks_nobody(
    make_engine: MakeEngine, plan: Plan, local: LocalEngine
) -> None:
    """A driver that waited for all four slots was killed; a smaller gang need not wait for it."""
    held(local, plan("small", replicas=2))
    pid = os.fork()
    if pid == 0:
        answer = make_engine().reserve(plan("big", replicas=4))
        os._exit(0 if isinstance(answer, Waiting) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    held(local, plan("late", replicas=2))


def test_what_is_drawn_is_what_is_started(local: LocalEngine, plan: Plan) -> None:
    gang = plan("drawn", replicas=2)
    (drawn,) = local.render(gang)
    assert local.observe(gang.placement_id, 0).presence is Presence.ABSENT
    assert not (local.settings.state_dir / "jobs").exists()
    held(local, gang)
    assert json.loads(json.dumps(drawn)) == _document(local, gang)


def test_end_is_quick(local: LocalEngine, plan: Plan) -> None:
    """One call does nothing long: it asks, and says that it has to be asked again."""
    gang = plan("quick", replicas=2)
    held(local, gang)
    running(local, gang)
    began = time.monotonic()
    local.end(gang.placement_id, EndRequest(why="test"))
    assert time.monotonic() - began < 2.0


def _document(engine: LocalEngine, gang: GangPlan) -> dict[str, Any]:
    folder = engine.settings.state_dir / "jobs" / gang.job_id / "placements" / str(gang.placement)
    found: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    return found


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
