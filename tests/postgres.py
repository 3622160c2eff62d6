"""A PostgreSQL of the test's own: Debian's programs, a folder, loopback, a password."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa

from ffdl_airflow.testing.airflow_server import free_port
from tests.conftest import wait_for

USER = "tester"
_SERVER_USER = "postgres"
"""The server refuses to run as root; Debian's package makes this user."""


class MissingPostgresError(Exception):
    """The programs are not installed."""


class PostgresServer:
    """Databases are made by name; ``password`` is what every URL carries."""

    def __init__(self, folder: Path, *, password: str) -> None:
        self.folder = folder
        self.password = password
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.folder.mkdir(parents=True)
        secret = self.folder / "password"
        secret.write_text(self.password)
        if os.geteuid() == 0:
            owner = pwd.getpwnam(_SERVER_USER)
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            os.chown(secret, owner.pw_uid, owner.pw_gid)
            for parent in self.folder.parents:  # pytest's folders are for their owner only
                if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001:
                    parent.chmod(parent.stat().st_mode | 0o011)
        data = self.folder / "data"
        self._run(_program("initdb"), "-D", str(data), "-U", USER, "-A", "scram-sha-256",
                  f"--pwfile={secret}", "--no-sync")  # fmt: skip
        options = {"port": self.port, "listen_addresses": "127.0.0.1", "fsync": "off",
                   "unix_socket_directories": str(self.folder), "max_connections": 300}  # fmt: skip
        words = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*_as_user(), _program("postgres"), "-D", str(data), *words],
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        wait_for(self._answers, timeout=60, message=(self.folder / "log").read_text)

    def url(self, database: str, *, driver: str = "psycopg") -> str:
        """URL of a database, which is made where it is not there yet."""
        engine = sa.create_engine(self._url("postgres", driver="psycopg"),
                                  isolation_level="AUTOCOMMIT")  # fmt: skip
        with engine.connect() as connection:
            known = connection.execute(sa.text("SELECT datname FROM pg_database")).scalars().all()
            if database not in known:
                connection.execute(sa.text(f'CREATE DATABASE "{database}"'))
        engine.dispose()
        return self._url(database, driver=driver)

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGQUIT)
            self._process.wait(timeout=30)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            self.url("postgres")
        except sa.exc.OperationalError:
            return False
        return True

    def _url(self, database: str, *, driver: str) -> str:
        return f"postgresql+{driver}://{USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def _run(self, *words: str) -> None:
        subprocess.run([*_as_user(), *words], check=True, capture_output=True, cwd=self.folder)


def _as_user() -> Sequence[str]:
    if os.geteuid() != 0:
        return ()
    return ("setpriv", f"--reuid={_SERVER_USER}", f"--regid={_SERVER_USER}", "--clear-groups")


def _program(name: str) -> str:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name, path=os.pathsep.join(map(str, folders))) or shutil.which(name)
    if found is None:
        raise MissingPostgresError(f"{name}: not installed (Debian: apt-get install postgresql)")
    return found
