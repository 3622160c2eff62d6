"""The ledger contract, on the fake and on SQLite; and what only SQLite can do wrong."""

import hashlib
import multiprocessing
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from ffdl_airflow.core.errors import InfrastructureError, UserError
from ffdl_airflow.ledger import sql
from ffdl_airflow.ledger.base import Batch, Ledger
from ffdl_airflow.ledger.sql import SqlLedger
from ffdl_airflow.ledger.tables import HEAD, METADATA, VERSION_TABLE
from ffdl_airflow.testing.contracts.ledger import JOB, LedgerContract, new
from ffdl_airflow.testing.memory_ledger import MemoryLedger
from tests.postgres import PostgresServer


class TestMemory(LedgerContract):
    """The fake."""

    @pytest.fixture
    def ledger(self) -> MemoryLedger:
        return MemoryLedger()

    @pytest.fixture
    def reopened(self, ledger: Ledger) -> Ledger:
        return ledger


class DatabaseContract(LedgerContract):
    """What only those that have connections can do wrong."""

    def test_a_forked_process_has_connections_of_its_own(self, ledger: SqlLedger) -> None:
        """Airflow forks for every task. Both go on, also after the other has ended."""
        ledger.append(Batch(stream=JOB, expected_seq=0, events=[new()]))
        inherited = ledger._engine.pool.checkedin()
        ours, theirs = multiprocessing.get_context("fork").Pipe()

        def go_on() -> None:
            theirs.send(ledger._engine.pool.checkedin())
            ledger.append(Batch(stream=JOB, expected_seq=1, events=[new()]))
            theirs.send(len(ledger.read(JOB)))

        child = multiprocessing.get_context("fork").Process(target=go_on)
        child.start()
        assert (inherited, ours.recv()) == (1, 0)
        assert ours.recv() == 2
        child.join()
        assert child.exitcode == 0
        assert len(ledger.append(Batch(stream=JOB, expected_seq=2, events=[new()]))) == 1
        assert [event.seq for event in ledger.read(JOB)] == [1, 2, 3]


class TestSqlite(DatabaseContract):
    """The embedded default."""

    @pytest.fixture
    def ledger(self, tmp_path: Path) -> SqlLedger:
        return SqlLedger(f"sqlite:///{tmp_path / 'ledger.db'}")

    @pytest.fixture
    def reopened(self, tmp_path: Path, ledger: SqlLedger) -> SqlLedger:
        return SqlLedger(f"sqlite:///{tmp_path / 'ledger.db'}")


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    server = PostgresServer(tmp_path_factory.mktemp("ledger") / "postgres", password="pw")  # noqa: S106
    server.start()
    yield server
    server.stop()


class TestPostgres(DatabaseContract):
    """A real server: for installations of more than one host."""

    @pytest.fixture
    def url(self, postgres: PostgresServer, request: pytest.FixtureRequest) -> str:
        return postgres.url(hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12])

    @pytest.fixture
    def ledger(self, url: str) -> Iterator[SqlLedger]:
        ledger = SqlLedger(url)
        yield ledger
        ledger.close()

    @pytest.fixture
    def reopened(self, url: str, ledger: SqlLedger) -> Iterator[SqlLedger]:
        again = SqlLedger(url)
        yield again
        again.close()


def test_the_migrations_make_the_tables_of_the_code(tmp_path: Path) -> None:
    SqlLedger(f"sqlite:///{tmp_path / 'ledger.db'}")
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'ledger.db'}")
    made = sa.MetaData()
    made.reflect(engine)
    assert set(made.tables) - {VERSION_TABLE} == set(METADATA.tables)
    for name, table in METADATA.tables.items():
        shape = {c.name: (str(c.type), c.nullable, c.primary_key) for c in table.columns}
        found = {
            c.name: (str(c.type), c.nullable, c.primary_key) for c in made.tables[name].columns
        }
        assert found == shape
    with engine.connect() as connection:
        version = connection.execute(
            sa.select(sa.column("version_num")).select_from(sa.table(VERSION_TABLE))
        ).scalar()
    assert version == HEAD


def test_two_processes_may_make_the_ledger_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from ffdl_airflow.ledger.sql import SqlLedger; "
        "print(SqlLedger(sys.argv[1]).ledger_id)"
    )
    command = [sys.executable, "-c", code, f"sqlite:///{tmp_path / 'ledger.db'}"]
    env = {**os.environ, "PYTHONPATH": str(Path(sql.__file__).parents[2])}
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) for _ in range(3)
    ]
    answers = {process.communicate(timeout=60)[0].strip() for process in started}
    assert [process.returncode for process in started] == [0, 0, 0]
    assert len(answers) == 1


def test_a_ledger_of_another_host_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    SqlLedger(url)
    monkeypatch.setattr(sql, "host_id", lambda: "8c2f0f5e")
    monkeypatch.setattr(sql, "host_name", lambda: "worker-2")
    with pytest.raises(UserError, match=r"worker-2.*PostgreSQL"):
        SqlLedger(url)


def test_a_full_database_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = SqlLedger(f"sqlite:///{path}")
    ledger.append(Batch(stream=JOB, expected_seq=0, events=[new()]))
    ledger.close()
    limit = path.stat().st_size // 4096 + 2

    @sa.event.listens_for(ledger._engine, "connect")
    def limited(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(f"PRAGMA max_page_count={limit}")

    acknowledged = [1]

    def append_until_full() -> None:
        for number in range(1, 500):
            events = [new(step=number) for _ in range(20)]
            ledger.append(Batch(stream=JOB, expected_seq=sum(acknowledged), events=events))
            acknowledged.append(20)

    with pytest.raises(InfrastructureError, match=r"full.*make room") as caught:
        append_until_full()
    assert "nothing that was acknowledged is lost" in caught.value.next_step
    assert len(SqlLedger(f"sqlite:///{path}").read(JOB)) == sum(acknowledged)


def test_a_database_that_was_removed_is_not_written_on(tmp_path: Path) -> None:
    """Nobody would read what an open connection still takes."""
    ledger = SqlLedger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.append(Batch(stream=JOB, expected_seq=0, events=[new()]))
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    with pytest.raises(InfrastructureError, match="no such table"):
        ledger.append(Batch(stream=JOB, expected_seq=1, events=[new()]))


def test_a_database_that_cannot_be_opened_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in ("file", "nowhere/at/all"):
        with pytest.raises(UserError, match=f"{folder} is no folder, allowed"):
            SqlLedger(f"sqlite:///{tmp_path / folder / 'ledger.db'}")
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing was made"


def test_something_that_is_no_database_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("this is text, and long enough to be no header" * 100)
    with pytest.raises(InfrastructureError, match="not a database"):
        SqlLedger(f"sqlite:///{tmp_path / 'ledger.db'}")
