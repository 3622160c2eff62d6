"""The ledger on SQLAlchemy: SQLite for one host, PostgreSQL for more.

SQLite: WAL, synchronous FULL and ``BEGIN IMMEDIATE``; a plain ``BEGIN`` (read, then append) failed
473 of 600 appends of four writers with "locked", this form none (measured). Local disk only, and
one host only: the first writer's host is written down and another one is refused.
"""

import os
import socket
import uuid
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from ffdl_airflow.core.errors import InfrastructureError, UserError
from ffdl_airflow.core.events import Event, Kind, NewEvent, iso, parse_iso, recorded
from ffdl_airflow.ledger.base import Batch, Conflict, JobRow
from ffdl_airflow.ledger.tables import EVENTS, HEAD, JOBS, META, STATUS, VERSION_TABLE
from ffdl_airflow.ledger.url import ledger_url, require_folder

_BUSY_MS = 30_000
_FULL_BYTES = 1 << 20
"""With less room SQLite's log cannot grow. Chosen: a WAL file of a few hundred pages."""
_STATUSES = 2000
"""Jobs whose status as written last is remembered. Chosen: more than one process drives."""
_KEPT = 8
"""Open connections that are kept for the next call: to open one and set it up costs as much as a
read. Chosen; more are opened where more threads come at once."""
_INHERITED: list[sa.Pool] = []
_APPEND_TRIES = 50
"""Tries of an append without an expected seq. Chosen: far above the number of drivers of a job."""


class SqlLedger:
    """See :mod:`ffdl_airflow.ledger.base` for what is promised."""

    def __init__(self, url: str) -> None:
        self._url = ledger_url(url)
        self._sqlite = self._url.get_backend_name() == "sqlite"
        self._engine = self._make_engine()
        self._reader = self._engine.execution_options(ffdl_reads=True)
        self._statuses: dict[str, Mapping[str, Any]] = {}
        with self._translated():
            self._migrate()
            self._ledger_id = self._identify()

    @property
    def ledger_id(self) -> str:
        """Identity of this ledger."""
        return self._ledger_id

    def read(self, stream: str, after: int = 0) -> list[Event]:
        """Events of the stream with ``seq`` > ``after``, in order."""
        query = (
            sa.select(EVENTS)
            .where(EVENTS.c.stream == stream, EVENTS.c.seq > after)
            .order_by(EVENTS.c.seq)
        )
        with self._translated(), self._reader.connect() as connection:
            return [_event(row) for row in connection.execute(query).mappings()]

    def append(self, *batches: Batch) -> list[Event]:
        """Append all batches in one transaction and return what was written."""
        for left in reversed(range(_APPEND_TRIES)):
            try:
                with self._translated(), self._engine.begin() as connection:
                    written = []
                    for batch in batches:
                        written += _append(connection, batch)
                    return written
            except Conflict:
                if left == 0 or any(batch.expected_seq is not None for batch in batches):
                    raise
        raise AssertionError  # pragma: no cover - the last try returns or raises

    def jobs(self, job_id: str | None = None) -> list[JobRow]:
        """Rows of all jobs, newest first, or of the one."""
        columns = [column for column in JOBS.c if job_id is not None or column.key != "snapshot"]
        query = (
            sa.select(*columns, STATUS.c.document)
            .outerjoin(STATUS, STATUS.c.job_id == JOBS.c.job_id)
            .order_by(JOBS.c.created_at.desc(), JOBS.c.job_id)
        )
        if job_id is not None:
            query = query.where(JOBS.c.job_id == job_id)
        with self._translated(), self._reader.connect() as connection:
            return [_job_row(row) for row in connection.execute(query).mappings()]

    def put_status(self, job_id: str, document: Mapping[str, Any]) -> None:
        """Replace the live status; what was written here last is not written again.

        A driver that sees nothing new has nothing to say, and a write waits for the disk.
        """
        if self._statuses.get(job_id) == document:
            return
        change = sa.update(STATUS).where(STATUS.c.job_id == job_id).values(document=document)
        with self._translated():
            try:
                with self._engine.begin() as connection:
                    if connection.execute(change).rowcount == 0:
                        values = {"job_id": job_id, "document": document}
                        connection.execute(sa.insert(STATUS).values(values))
            except IntegrityError:
                return  # another driver has just written a newer one
        if len(self._statuses) >= _STATUSES:
            self._statuses.clear()
        self._statuses[job_id] = document

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def _make_engine(self) -> sa.Engine:
        if not self._sqlite:
            engine = sa.create_engine(self._url, pool_pre_ping=True)
            _leave_behind_in_forks(engine)
            return engine
        require_folder(self._url)
        engine = sa.create_engine(
            self._url, pool_size=_KEPT, max_overflow=-1,
            connect_args={"timeout": _BUSY_MS / 1000, "check_same_thread": False},
        )  # fmt: skip
        _leave_behind_in_forks(engine)
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "checkout", _require_same_file)
        sa.event.listen(engine, "begin", _begin)
        return engine

    def _migrate(self) -> None:
        """Bring the tables to HEAD. Alembic is imported only where there is something to do."""
        if self._version() == HEAD:
            return
        from alembic import command  # noqa: PLC0415 - 150 ms that a ready ledger does not need
        from alembic.config import Config  # noqa: PLC0415

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        with self._engine.begin() as connection:
            if not self._sqlite:
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(738221)"))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def _version(self) -> str | None:
        table = sa.table(VERSION_TABLE, sa.column("version_num"))
        try:
            with self._reader.connect() as connection:
                return connection.execute(sa.select(table.c.version_num)).scalar_one_or_none()
        except DBAPIError as error:
            if "readonly" in str(error.orig) or "unable to open" in str(error.orig):
                raise
            return None

    def _identify(self) -> str:
        host = host_id()
        with self._engine.begin() as connection:
            rows = connection.execute(sa.select(META)).mappings()
            known = {row["key"]: row["value"] for row in rows}
            if "ledger_id" not in known:
                known = {"ledger_id": uuid.uuid4().hex, "host": host, "host_name": host_name()}
                values = [{"key": key, "value": value} for key, value in known.items()]
                connection.execute(sa.insert(META), values)
        if self._sqlite and known["host"] != host:
            raise UserError(
                f"ledger_url: found a SQLite ledger of host {known['host_name']}, this is "
                f"{host_name()}; allowed: one host for SQLite, PostgreSQL for several",
                next_step="set [ffdl] ledger_url to a PostgreSQL database",
            )
        return str(known["ledger_id"])

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The one door through which the database's errors come."""
        try:
            yield
        except IntegrityError:
            raise
        except (OperationalError, DBAPIError) as error:
            raise _storage_error(self._url.render_as_string(hide_password=True), error) from error


def host_id() -> str:
    """Identity of this host: its machine id, else its name."""
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip() or host_name()
    except OSError:
        return host_name()


def host_name() -> str:
    """Name of this host."""
    return socket.gethostname()


def _leave_behind_in_forks(engine: sa.Engine) -> None:
    """A forked process opens connections of its own, and never touches those that it has got.

    SQLite forbids to carry one across a fork, even to close it there; a server's would be shared.
    """
    known = weakref.ref(engine)

    def begin_anew() -> None:
        forked = known()
        if forked is not None:
            _INHERITED.append(forked.pool)
            forked.dispose(close=False)

    os.register_at_fork(after_in_child=begin_anew)


def _prepare_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy's begin event says BEGIN IMMEDIATE itself
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={_BUSY_MS}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
    record.info["file"] = _file_of(connection)


def _require_same_file(connection: Any, record: Any, _: object) -> None:
    """A connection to a file that was removed or replaced writes where nobody will read."""
    if record.info["file"] != _file_of(connection):
        raise sa.exc.DisconnectionError


def _file_of(connection: Any) -> tuple[int, int] | None:
    """What lies now at the path of a connection."""
    (_, _, path) = connection.execute("PRAGMA database_list").fetchone()
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _begin(connection: sa.Connection) -> None:
    reads = connection.get_execution_options().get("ffdl_reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _append(connection: sa.Connection, batch: Batch) -> list[Event]:
    last = connection.execute(
        sa.select(sa.func.max(EVENTS.c.seq)).where(EVENTS.c.stream == batch.stream)
    ).scalar()
    last = last or 0
    if batch.expected_seq is not None and batch.expected_seq != last:
        raise Conflict(batch.stream, batch.expected_seq, last)
    fresh = _without_known(connection, batch)
    now = datetime.now(timezone.utc)
    events = [
        recorded(batch.stream, last + n, new, recorded_at=now)
        for n, new in enumerate(fresh, start=1)
    ]
    if events:
        try:
            connection.execute(sa.insert(EVENTS), [_row(event) for event in events])
        except IntegrityError:
            raise Conflict(batch.stream, last, None) from None
    _project(connection, batch, written=events, seq=last + len(events))
    return events


def _without_known(connection: sa.Connection, batch: Batch) -> list[NewEvent]:
    keys = {event.dedupe for event in batch.events if event.dedupe is not None}
    if not keys:
        return list(batch.events)
    query = sa.select(EVENTS.c.dedupe).where(
        EVENTS.c.stream == batch.stream, EVENTS.c.dedupe.in_(keys)
    )
    known = set(connection.execute(query).scalars())
    fresh = []
    for event in batch.events:
        if event.dedupe is None or event.dedupe not in known:
            fresh.append(event)
            known.add(event.dedupe)
    return fresh


def _project(connection: sa.Connection, batch: Batch, *, written: list[Event], seq: int) -> None:
    now = datetime.now(timezone.utc)
    values: dict[str, Any] = {"seq": seq, "updated_at": iso(now)}
    if batch.snapshot is not None and len(written) == len(batch.events):
        values["snapshot"] = dict(batch.snapshot)
    if batch.projection is not None:
        values |= {"phase": batch.projection["phase"], "summary": dict(batch.projection)}
    change = sa.update(JOBS).where(JOBS.c.job_id == batch.stream).values(values)
    if connection.execute(change).rowcount == 0 and batch.projection is not None:
        values |= {"job_id": batch.stream, "created_at": iso(now)}
        connection.execute(sa.insert(JOBS).values(values))


def _row(event: Event) -> dict[str, Any]:
    return {
        "stream": event.stream, "seq": event.seq, "kind": event.kind.value, "v": event.v,
        "attempt": event.attempt, "at": iso(event.at), "recorded_at": iso(event.recorded_at),
        "source": dict(event.source), "dedupe": event.dedupe, "body": dict(event.body),
    }  # fmt: skip


def _event(row: sa.RowMapping) -> Event:
    return Event(
        stream=row["stream"], seq=row["seq"], kind=Kind(row["kind"]), v=row["v"],
        attempt=row["attempt"], at=parse_iso(row["at"]), recorded_at=parse_iso(row["recorded_at"]),
        source=row["source"], dedupe=row["dedupe"], body=row["body"],
    )  # fmt: skip


def _job_row(row: sa.RowMapping) -> JobRow:
    return JobRow(
        job_id=row["job_id"], seq=row["seq"], phase=row["phase"], summary=row["summary"],
        created_at=parse_iso(row["created_at"]), updated_at=parse_iso(row["updated_at"]),
        status=row["document"], snapshot=row.get("snapshot"),
    )  # fmt: skip


def _disk_is_full(where: str) -> bool:
    """SQLite says "disk I/O error" or "unable to open" where it finds no room for its WAL."""
    path = sa.make_url(where).database if "://" in where else where
    try:
        found = os.statvfs(Path(path or "").parent)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _FULL_BYTES


def _storage_error(where: str, error: Exception) -> InfrastructureError:
    text = " ".join(str(getattr(error, "orig", None) or error).split())  # psycopg2: several lines
    if "readonly" in text or "read-only" in text or isinstance(error, PermissionError):
        step = f"make the ledger writable for {os.environ.get('USER') or 'this user'}"
    elif "full" in text or "No space" in text or _disk_is_full(where):
        step = "make room on the ledger's disk"
    else:
        step = "check [ffdl] ledger_url and that the database is there"
    return InfrastructureError(
        f"the ledger cannot be used: {text}", evidence=f"ledger_url {where}",
        next_step=f"{step}; nothing that was acknowledged is lost, running gangs go on",
    )  # fmt: skip
