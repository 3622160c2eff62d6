"""What all tests share: a home of their own, waiting with a limit, and a search for survivors."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

SURVIVORS_LEAVE_S = 10.0
"""How long processes of ended tests may take to go, measured from the end of the session."""

hypothesis.settings.register_profile(
    "quick",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=2000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="full counts instead of small samples")
    parser.addoption("--cluster", action="store_true", help="also what needs the test cluster")


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("soak" if config.getoption("--soak") else "quick")
    # Airflow makes files in its home when it is imported: not in the home of who runs the tests.
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="ffdl-airflow-home-")
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    # A shell starts what runs in its background with SIGINT ignored, and so would all ours be.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(os.environ.get("AIRFLOW_HOME", ""), ignore_errors=True)


@pytest.fixture(scope="session")
def rounds(request: pytest.FixtureRequest) -> Callable[..., int]:
    """``rounds(few, soak=many)``: how often a test repeats; many only in `make soak`."""

    def choose(few: int, *, soak: int) -> int:
        return soak if request.config.getoption("--soak") else few

    return choose


@pytest.fixture
def ffdl_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh installation: state, cache, checkpoints and models in a folder, 4 slots.

    Set through FFDL_* as a person would on the command line. Returns the folder that has ``state``,
    ``cache``, ``checkpoints`` and ``models``.
    """
    for name in [name for name in os.environ if name.startswith(("FFDL_", "AIRFLOW__FFDL__"))]:
        monkeypatch.delenv(name)
    folders = {
        "FFDL_STATE_DIR": tmp_path / "state",
        "FFDL_CACHE_DIR": tmp_path / "cache",
        "FFDL_CHECKPOINT_ROOT": tmp_path / "checkpoints",
        "FFDL_MODEL_ROOT": tmp_path / "models",
    }
    for name, folder in folders.items():
        folder.mkdir()
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("FFDL_SLOTS", "4")
    return tmp_path


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., Any]:
    """``wait_until(condition, timeout=60, message="…")``: see `wait_for`."""
    return wait_for


def wait_for(
    condition: Callable[[], Any],
    timeout: float = 60.0,
    message: str | Callable[[], str] = "",
) -> Any:
    """Call the condition until it is true and return what it gave; fail after ``timeout`` seconds.

    ``message`` tells what was waited for; a function is called at the end, to show the state then.
    """
    deadline = time.monotonic() + timeout
    pause = 0.005
    while not (found := condition()):
        if time.monotonic() > deadline:
            text = message() if callable(message) else message
            pytest.fail(f"not within {timeout:g} s: {text or condition}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return found


def processes_under(root: Path) -> list[psutil.Process]:
    """Return the live processes of placements that were started under a folder.

    They carry FFDL_PLACEMENT, and the folder is found in their environment or command line.
    """
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            words = [*environment.values(), *process.cmdline(), process.cwd()]
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
        except (psutil.Error, OSError):
            continue
        if "FFDL_PLACEMENT" in environment and any(str(root) in word for word in words):
            found.append(process)
    return found


def lives(process: psutil.Process) -> bool:
    """Whether a process still runs; one that has ended and waits for its parent does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def environ_of(process: psutil.Process) -> Mapping[str, str]:
    """The environment of a process; empty for one that has gone meanwhile."""
    try:
        found: Mapping[str, str] = process.environ()
    except (psutil.Error, OSError):
        return {}
    return found


@pytest.fixture(scope="session", autouse=True)
def no_survivors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail at the end of the session if a process of a placement is left; end it first."""
    root = tmp_path_factory.getbasetemp()
    yield
    deadline = time.monotonic() + SURVIVORS_LEAVE_S
    while (left := processes_under(root)) and time.monotonic() < deadline:
        time.sleep(0.2)
    if not left:
        return
    story = [f"{process.pid} {describe(process)}" for process in left]
    for process in left:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    pytest.fail("processes were left by the tests, and are killed now:\n" + "\n".join(story))


def describe(process: psutil.Process) -> str:
    try:
        return f"{process.environ().get('FFDL_PLACEMENT')}: {' '.join(process.cmdline())}"
    except (psutil.Error, OSError):
        return "(gone)"
