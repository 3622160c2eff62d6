"""``make up``: a whole Airflow with this package and its examples, on this machine, for a look.

Its home is ``$XDG_STATE_HOME/ffdl/up`` and stays. It listens on loopback only. Ctrl-C ends every
component; jobs that run go on without it, and the next start takes them over. Not for: production.
"""

import argparse
import json
import secrets
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from ffdl_airflow import console, services
from ffdl_airflow.core.errors import FfdlError, InfrastructureError, UserError
from ffdl_airflow.core.quantities import format_duration
from ffdl_airflow.examples import (
    fernet_key,
    kept_secret,
    kept_slots,
    make_home,
    own_home,
    prepare_examples,
)
from ffdl_airflow.exclusive import exclusive
from ffdl_airflow.settings import from_environment
from ffdl_airflow.testing.airflow_server import (
    AirflowServer,
    NotReadyError,
    ServerSettings,
    end_children,
)

PORT = 8080
_LAST_PORT = 65535
USER = "admin"
FIRST = "training_from_ui"
_LOOK_S = 0.5
"""Time between two looks whether all components live. Chosen."""
_HEARTBEAT_S = 300
"""After this silence Airflow takes a task for dead: its own default, not that of quick tests, for
machines that are put to sleep."""

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Ended(Exception):
    """The user has ended it: Ctrl-C, SIGTERM, or the terminal is gone."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Start Airflow and keep it until it is ended; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ffdl_airflow.up", description=__doc__)
    parser.add_argument("--home", type=Path, default=own_home("up"), help="Airflow's home")
    parser.add_argument("--port", type=int, default=PORT, help=f"port on 127.0.0.1 ({PORT})")
    options = parser.parse_args(arguments)
    if not 0 < options.port <= _LAST_PORT:
        parser.error(f"argument --port: found {options.port}, allowed: 1 to {_LAST_PORT}")
    for number in _ENDS:
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)  # under nohup the end of the terminal is no end
    try:
        make_home(options.home, said="--home")
        with _only_one(options.home):
            _run(options.home.absolute(), options.port)
    except _Ended:
        return 0
    except FfdlError as error:
        sys.stderr.write(f"up: {error.message}\n")
        return error.exit_code
    except OSError as error:  # the disk is full, a file of the home is no file any more
        sys.stderr.write(f"up: {options.home} cannot be used: {error}\n")
        return InfrastructureError.exit_code
    return 0


def _end(number: int, frame: object) -> None:
    raise _Ended


def _run(home: Path, port: int) -> None:
    services.require(from_environment())
    _require_free(port)
    console.line(f"Airflow starts; its home is {home}")
    begun = time.monotonic()
    prepare_examples(home / "dags")
    password = kept_secret(home / "password", secrets.token_urlsafe(12))
    server = AirflowServer(_settings(home, port=port, password=password))
    try:
        server.start()
        console.line(_greeting(server.url, password, time.monotonic() - begun))
        _watch(server)
    except NotReadyError as error:
        raise InfrastructureError(str(error), next_step=f"see the logs in {home}") from error
    finally:
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)  # the end takes seconds; it is not to be cut off
        console.line("Airflow ends; jobs that run go on, the next start takes them over")
        server.stop()
        end_children()  # one whose start was cut off is not the server's yet


def _settings(home: Path, *, port: int, password: str) -> ServerSettings:
    known = home / "users.json"
    known.touch(mode=0o600)
    known.write_text(json.dumps({USER: password}))
    environ = {
        "CORE__FERNET_KEY": fernet_key(home / "fernet_key"),
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(known),
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(_HEARTBEAT_S),
        "FFDL__STATE_DIR": str(home / "ffdl"),
        "FFDL__SLOTS": str(kept_slots()),
    }
    return ServerSettings(
        home=home, dags=home / "dags", port=port, users={USER: "admin"},
        environ={f"AIRFLOW__{key}": value for key, value in environ.items()},
    )  # fmt: skip


def _greeting(url: str, password: str, seconds: float) -> str:
    return (
        f"ready after {format_duration(seconds)}\n\n"
        f"  {url}\n"
        f"    log in as {USER}, password {password}\n"
        f"  {url}/dags/{FIRST}\n"
        f"    press Trigger, look at the values, start a job\n"
        f"  {url}/ffdl/jobs\n"
        f"    all training jobs\n\n"
        f"Ctrl-C ends it."
    )


def _watch(server: AirflowServer) -> None:
    """Until the user ends it; a component that ends by itself is started again, a few times."""
    told = 0
    while True:
        server.revive()
        for name in server.revived[told:]:
            console.line(f"{name} has ended and is started again; see {server.log_of(name)}")
        told = len(server.revived)
        time.sleep(_LOOK_S)


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UserError(
                f"--port: found {port} ({error}), allowed: a port that nobody uses",
                next_step=f"python -m ffdl_airflow.up --port {port % _LAST_PORT + 1}",
            ) from None


def _only_one(home: Path) -> AbstractContextManager[None]:
    """Two of them in one home would share a database and write one another's logs."""
    refusal = UserError(
        f"--home: found {home} in use by another one, allowed: one at a time",
        next_step="end the other one, or give another --home",
    )
    return exclusive(home / "up.lock", refusal, mode=0o600)


if __name__ == "__main__":
    sys.exit(main())
