"""``python -m ffdl_airflow.up``: starts, says how to get in, and leaves nothing behind."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from ffdl_airflow import demo, examples, up
from ffdl_airflow.testing.airflow_server import free_port
from tests.conftest import lives

READY_S = 180.0
ENDS_S = 60.0


class Up:
    """The command in a process of its own."""

    def __init__(self, home: Path, port: int) -> None:
        self.output = home.parent / "output"
        self.url = f"http://127.0.0.1:{port}"
        words = ["--home", str(home), "--port", str(port)]
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ffdl_airflow.up", *words], stdout=file, stderr=file
            )
        self.started = time.monotonic()

    @property
    def said(self) -> str:
        return self.output.read_text()

    def ready(self) -> bool:
        assert self.process.poll() is None, self.said
        return "Ctrl-C ends it" in self.said


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], Up]]:
    made: list[Up] = []

    def begin(port: int) -> Up:
        made.append(Up(tmp_path / "home", port))
        return made[-1]

    yield begin
    for one in made:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGINT)
            one.process.wait(timeout=ENDS_S)


def test_it_starts_lets_the_user_in_and_ends_with_all_its_children(
    start: Callable[[int], Up], wait_until: Callable[..., Any], tmp_path: Path
) -> None:
    running = start(free_port())
    wait_until(running.ready, timeout=READY_S, message=lambda: running.said)
    print(re.findall(r"ready after \S+", running.said))
    user, password = re.findall(r"log in as (\w+), password (\S+)", running.said)[0]
    with httpx.Client(base_url=running.url, timeout=60.0) as client:
        wrong = client.post("/auth/token", json={"username": user, "password": user})
        assert wrong.status_code == 401, "the password is nobody's guess"
        token = client.post("/auth/token", json={"username": user, "password": password})
        client.headers["Authorization"] = f"Bearer {token.json()['access_token']}"
        assert client.get("/ffdl/api/v1/status").json()["jobs"] == {}

        def known() -> bool:
            dags = {dag["dag_id"]: dag for dag in client.get("/api/v2/dags").json()["dags"]}
            return "training_from_ui" in dags and not dags["training_from_ui"]["is_paused"]

        wait_until(known, timeout=READY_S, message="the examples")
        assert client.get("/api/v2/importErrors").json()["import_errors"] == []
    other = subprocess.run(
        [sys.executable, "-m", "ffdl_airflow.up", "--home", str(tmp_path / "home")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (other.returncode, "one at a time" in other.stderr) == (2, True), other
    family = psutil.Process(running.process.pid).children(recursive=True)
    listening = {c.laddr.ip for p in family for c in listeners(p)}
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(timeout=ENDS_S) == 0, running.said
    assert "Traceback" not in running.said
    assert len(family) >= 4
    assert [process for process in family if lives(process)] == []
    assert listening == {"127.0.0.1"}


def listeners(process: psutil.Process) -> list[Any]:
    try:
        return [c for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    except psutil.Error:
        return []


def test_ctrl_c_while_it_starts_leaves_nothing(start: Callable[[int], Up], tmp_path: Path) -> None:
    running = start(free_port())
    log = tmp_path / "home" / "scheduler.log"
    while running.process.poll() is None and not log.exists():
        time.sleep(0.0005)  # the log is made just before the component: between the two, or after
    family = psutil.Process(running.process.pid).children(recursive=True)
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(timeout=ENDS_S) == 0, running.said
    assert [process for process in family if lives(process)] == []


def test_a_port_in_use_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code = up.main(["--home", str(tmp_path / "home"), "--port", str(port)])
    assert code == 2
    assert f"--port: found {port}" in capsys.readouterr().err


@pytest.fixture
def told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    """The exit code of a main function and what it has said, in a process that goes on."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def call(main: Callable[..., int], *arguments: object) -> tuple[int, str]:
        code = main(*arguments)
        return code, capsys.readouterr().err

    return call


Told = Callable[..., tuple[int, str]]


def test_a_home_that_cannot_be(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for home, why in (("file", "it is no folder"), ("file/home", "Not a directory")):
        code, said = told(up.main, ["--home", str(tmp_path / home), "--port", str(free_port())])
        assert code == 2
        assert said.startswith(f"up: --home: found {tmp_path / home} ({why}), allowed: a folder")
        assert said.count("\n") == 1
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    code, said = told(demo.main)
    assert code == 2
    assert said.startswith("demo: XDG_STATE_HOME: found /proc/nowhere/ffdl/demo (No such file")
    assert said.count("\n") == 1


@pytest.mark.parametrize("port", ["0", "99999", "-1"])
def test_a_port_that_is_none(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        up.main([f"--port={port}"])
    assert ended.value.code == 2
    assert f"--port: found {port}, allowed: 1 to 65535" in capsys.readouterr().err


def test_the_slots_are_those_that_were_asked_for(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFDL_SLOTS", "3")
    assert examples.kept_slots() == 3
    monkeypatch.setenv("FFDL_SLOTS", "many")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    code, said = told(demo.main)
    assert (code, "slots: found 'many', allowed: a whole" in said) == (2, True)
    monkeypatch.setenv("FFDL_SLOTS", "1")
    code, said = told(demo.main)
    assert (code, "FFDL_SLOTS: found 1, allowed: 2 at least" in said) == (2, True)
    monkeypatch.delenv("FFDL_SLOTS")
    assert examples.kept_slots() >= 2


def test_an_engine_that_there_is_not(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__FFDL__ENGINE", "wrong")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    home = ["--home", str(tmp_path / "up"), "--port", str(free_port())]
    for main, words in ((demo.main, ()), (up.main, (home,))):
        code, said = told(main, *words)
        assert (code, said.count("\n")) == (2, 1)
        assert "engine: found 'wrong', allowed: local" in said
