"""Airflow and our ledger on PostgreSQL: the same jobs, and no secret where one could be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from ffdl_airflow.agent import protocol
from ffdl_airflow.testing.airflow_server import Run
from tests.conftest import wait_for
from tests.integration.conftest import World, now
from tests.postgres import PostgresServer

PASSWORD = "marked-password-7f3a9c"  # noqa: S105 - to be searched for
KEY = "marked-installation-key-51be02"


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    server = PostgresServer(tmp_path_factory.mktemp("server") / "postgres", password=PASSWORD)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def world(make_world: Callable[..., World], postgres: PostgresServer) -> World:
    """Airflow on PostgreSQL; the ledger's URL and the key come with the connection."""
    connection = {"conn_type": "ffdl", "password": KEY,
                  "extra": {"ledger_url": postgres.url("ledger")}}  # fmt: skip
    environ = {"AIRFLOW_CONN_FFDL_DEFAULT": json.dumps(connection)}
    hidden = {"ledger_url": postgres.url("ledger"), "installation_key": KEY}
    database = postgres.url("airflow", driver="psycopg2")
    return make_world(database=database, environ=environ, hidden=hidden)


@pytest.mark.parametrize("dag", ["operator", "group"])
def test_jobs_succeed_on_postgresql(world: World, dag: str) -> None:
    run = world.start(dag, name=f"pg-{dag}", delay="0.1", steps=30)
    world.wait_training(run)
    task = {"operator": "train", "group": "train.launch"}[dag]
    assert run.wait_task(task, "deferred")
    assert run.wait() == "success", run.story()
    world.require_right_model(run, steps=30)


def test_a_marked_task_stops_on_postgresql(world: World) -> None:
    run = world.start("operator", name="pg-marked", delay="0.2", steps=1000)
    world.wait_training(run)
    run.wait_task("train", "deferred")
    at = now()
    run.mark("train", "failed")
    world.wait_gone(run, since=at)
    wait_for(lambda: world.state(run).phase == "Stopped", message=lambda: world.log(run))


def test_no_secret_can_be_read_anywhere(world: World, postgres: PostgresServer) -> None:
    """While a job runs and after one has failed: task logs, XCom, rendered fields, the trigger's
    arguments, ledger, evidence, all our files, command lines, and what a trainer is given."""
    failed = world.start("operator", name="secret-fails", fail_at="6:3", backoff=0)
    assert failed.wait() == "failed"
    run = world.start("operator", name="secret-runs", delay="0.2", steps=1000)
    world.wait_training(run)
    run.wait_task("train", "deferred")
    marks = (PASSWORD, KEY, protocol.token_for(KEY.encode(), world.state(run).placement_id))
    places = {
        "log": {"failed": failed.log("train", 1), "running": run.log("train", 1)},
        "process list": {str(p.pid): " ".join(_words(p)) for p in psutil.process_iter()},
        "environment of ranks": {str(p.pid): str(p.environ()) for p in _trainers(world, run)},
        "file": _texts(world.home / "ffdl") | _texts(world.home / "logs"),
        "ledger": _rows(postgres.url("ledger")),
        "Airflow": _rows(postgres.url("airflow")),
        "trigger": {"kwargs": _trigger_arguments(postgres.url("airflow"))},
        "task": {"instance": str(world.server.call("GET", f"{run.path}/taskInstances/train"))},
    }
    run.mark("train", "failed")
    wait_for(lambda: world.state(run).terminal, message=lambda: world.log(run))
    empty = [where for where, texts in places.items() if not any(texts.values())]
    assert not empty, "nothing was searched there"
    assert "secret-runs" in places["trigger"]["kwargs"]
    assert len(places["environment of ranks"]) == 2
    # Where the agents of a placement have their token from: readable by its owner only.
    token = world.home / "ffdl" / "jobs" / world.row(run).job_id / "placements" / "1" / "token"
    assert token.stat().st_mode & 0o077 == 0
    assert places["file"].pop(str(token)) == marks[2]
    found = [(where, name) for where, texts in places.items() for name, text in texts.items()
             for mark in marks if mark in text]  # fmt: skip
    assert not found


def _trainers(world: World, run: Run) -> list[psutil.Process]:
    return [p for p in world.ranks_alive(run) if "counting.py" in " ".join(_words(p))]


def _trigger_arguments(url: str) -> str:
    """As they lie in the database: Airflow 3.3.2 does not encrypt them."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT kwargs FROM trigger")).scalars().all()
    engine.dispose()
    return "\n".join(rows)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _texts(folder: Path) -> dict[str, str]:
    return {str(path): path.read_bytes().decode("utf-8", "replace")
            for path in folder.rglob("*") if path.is_file()}  # fmt: skip


def _rows(url: str) -> dict[str, str]:
    """Table → all that is in it, as text."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        names = sa.inspect(engine).get_table_names()
        found = {name: str(connection.execute(sa.text(f'SELECT * FROM "{name}"')).all())  # noqa: S608
                 for name in names}  # fmt: skip
    engine.dispose()
    return found
