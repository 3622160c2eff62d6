"""The bed's daemons as children of this process, each with a log and a way to ask whether it works.

Conditions are polled with a generous limit; whoever waits for a daemon learns at once when it has
ended, and reads the end of its log in the error.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.cluster.cleanup import Journal
from tests.cluster.places import BedError, Layout, environment

READY_S = 120.0
"""The limit for each wait (chosen: twenty times what a busy machine of two cores needs)."""
END_S = 20.0
"""How long a killed program may take to go."""
TAIL_BYTES = 4000

T = TypeVar("T")


def wait_for(
    condition: Callable[[], T], what: str | Callable[[], str], *, timeout_s: float = READY_S
) -> T:
    """Call the condition until it gives something true, and return that. Raises BedError."""
    deadline = time.monotonic() + timeout_s
    pause = 0.01
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise BedError(f"not within {timeout_s:g} s: {what() if callable(what) else what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return found


def run(*words: str | Path, text: str = "", timeout_s: float = READY_S) -> str:
    """Run a program to its end and return what it printed. Raises BedError with its complaint."""
    done = subprocess.run(
        [str(word) for word in words], input=text, capture_output=True, text=True,
        timeout=timeout_s, check=False, env=environment(),
    )  # fmt: skip
    if done.returncode:
        line = " ".join(map(str, words))
        raise BedError(f"{line}\nended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def answers(url: str, *, verify: Any = False) -> bool:
    """Whether a GET says 200."""
    try:
        return httpx.get(url, verify=verify, trust_env=False, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@contextlib.contextmanager
def all_at_once() -> Iterator[Callable[..., None]]:
    """Calls side by side; the end waits for all of them and raises what the first has raised."""
    with ThreadPoolExecutor(8) as pool:
        futures = []
        yield lambda call, *words, **names: futures.append(pool.submit(call, *words, **names))
        for future in futures:
            future.result()


class Daemon:
    """One program of the bed. ``words`` may start with `nsenter` or `unshare --fork`, which then
    wait outside of the node for their only child.
    """

    def __init__(self, layout: Layout, journal: Journal, name: str, words: Sequence[Any]) -> None:
        self.name = name
        self.words = [str(word) for word in words]
        self.log = layout.logs / f"{name}.log"
        self._layout = layout
        self._journal = journal
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The program itself. Raises BedError while it has not begun."""
        if self._process is None:
            raise BedError(f"{self.name} was never started")
        pid = self._process.pid
        if self.words[0] != "nsenter" and "--fork" not in self.words:
            return pid
        try:
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
        except (ValueError, OSError):
            raise BedError(f"{self.name} does not run") from None

    def start(self) -> None:
        """Start it; a running one stays as it is. Its log goes on where it ended."""
        if self._process is not None and self._process.poll() is None:
            return
        work = self._layout.run / "work"
        work.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                cwd=work, env=environment(), start_new_session=True,
            )  # fmt: skip
        self._journal.process(self._process.pid)

    def wait_until(self, ready: Callable[[], T]) -> T:
        """Wait until ``ready`` says so. Raises BedError, at once when the program has ended."""

        def ready_or_dead() -> T:
            if self._process is not None and self._process.poll() is not None:
                raise BedError(f"{self.name} ended with {self._process.returncode}:\n{self.tail()}")
            return ready()

        return wait_for(ready_or_dead, lambda: f"{self.name} does not work:\n{self.tail()}")

    def kill(self) -> None:
        """End it the hard way. What waits for it outside of a node ends by itself, and not first:
        the machine's first process would inherit the child, and may be slow to bury it.
        """
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(BedError, ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait(self) -> None:
        """Wait until it has ended, for whatever reason."""
        if self._process is None:
            return
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def tail(self) -> str:
        """The end of the log."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            return log.read().decode(errors="replace")
