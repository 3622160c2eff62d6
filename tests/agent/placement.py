"""A placement as an engine makes it, for tests: folder, plan, token, agents from the zipapp."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ffdl_airflow.agent import processes, protocol
from tests.conftest import wait_for

QUICK = {
    "hold_s": 60, "placement_s": 20, "heartbeat_s": 0.1, "silent_s": 2.5, "grace_s": 5,
    "first_step_s": 60, "hang_factor": 10, "hang_floor_s": 60, "term_s": 1.5, "settle_s": 0.3,
    "survivor_term_s": 0.5, "slot_wait_s": 0.5, "evaluator_grace_s": 10,
}  # fmt: skip
TOKEN = protocol.token_for(b"installation key", "digits-0a1b2c3d4e/1")


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("ffdl", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


class Placement:
    """``replicas`` agents, each with ``processes`` ranks of one Python file."""

    def __init__(self, root: Path, bundle: Path, *, python: str = sys.executable) -> None:
        self.root = root
        self.bundle = bundle
        self.python = python
        self.dir = root / "placement"
        self.checkpoints = root / "checkpoints"
        self.sockets = Path(tempfile.mkdtemp(prefix="ffdl-test-"))
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.plan: dict[str, Any] = {}
        # Unique for each test, because clean-up looks for processes by this name.
        self.id = f"digits-{self.sockets.name[-8:]}/1"

    def prepare(
        self,
        trainer: str | Path,
        *,
        replicas: int = 1,
        ranks: int = 1,
        args: tuple[str, ...] = (),
        **changes: Any,
    ) -> Placement:
        """Write folder, token and plan. ``trainer`` is Python source text or a file."""
        self.dir.mkdir()
        if isinstance(trainer, str):
            file = self.root / "trainer.py"
            file.write_text(trainer)
        else:
            file = trainer
        (self.dir / protocol.TOKEN_FILE).write_text(TOKEN)
        names = [f"worker-{index}" for index in range(replicas)]
        self.plan = {
            "v": 1, "job": self.id.split("/", maxsplit=1)[0], "placement": 1,
            "placement_id": self.id, "local": True, **QUICK,
            "checkpoint_dir": str(self.checkpoints),
            "journal": str(self.checkpoints / "journal" / "1.jsonl"), "keep": 3,
            "generation": None, "required_paths": [], "deciding": names,
            "evaluators": [], "progress_regex": None, "min_free_bytes": 0,
            "coordinator": {"unix": str(self.sockets / "worker-0.sock")},
            "replicas": [self._replica(name, index, ranks, [str(file), *args])
                         for index, name in enumerate(names)],
        }  # fmt: skip
        self.plan.update(changes)
        self.write_plan()
        return self

    def write_plan(self) -> None:
        (self.dir / protocol.PLAN_FILE).write_text(json.dumps(self.plan))

    def _replica(self, name: str, index: int, ranks: int, words: list[str]) -> dict[str, Any]:
        folder = self.dir / "agents" / name
        folder.mkdir(parents=True)
        first = index * ranks
        return {
            "name": name, "role": "worker", "index": index, "dir": str(folder),
            "socket": str(self.sockets / f"{name}.sock"), "slot_locks": [],
            "cwd": str(self.root), "command": [self.python, *words],
            "env": {"PYTHONUNBUFFERED": "1"},
            "processes": [
                {"rank": first + local, "local_rank": local,
                 "env": {"RANK": str(first + local), "MASTER_PORT": "{{PORT worker-0}}"}}
                for local in range(ranks)
            ],
        }  # fmt: skip

    @property
    def names(self) -> list[str]:
        return [replica["name"] for replica in self.plan["replicas"]]

    def start(self, *names: str) -> Placement:
        """Start the agents (all of them unless named), each as an engine would."""
        for name in names or self.names:
            self.agents[name] = self.start_agent(name)
        return self

    def start_agent(self, name: str, **options: Any) -> subprocess.Popen[bytes]:
        env = {**os.environ, "FFDL_PLACEMENT": self.id, "AIRFLOW__CORE__FERNET_KEY": "secret"}
        log = self.dir / "agents" / name / protocol.AGENT_LOG
        with log.open("ab") as file:
            return subprocess.Popen(
                [self.python, "-S", "-E", str(self.bundle), str(self.dir), name],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
                env=env, **options,
            )  # fmt: skip

    def up(self) -> Placement:
        """Start all agents and wait until the gang holds."""
        self.start()
        self.wait_state(protocol.HOLDING)
        return self

    def request(
        self, method: str, path: str, body: Any = None, *, token: str = TOKEN
    ) -> tuple[int, dict[str, Any]]:
        """One request to the coordinator; (0, {}) where nobody answers."""
        connection = UnixConnection(self.plan["coordinator"]["unix"])
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {protocol.TOKEN_HEADER: token})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException):
            return 0, {}
        finally:
            connection.close()

    def status(self, after: int = -1, wait: float = 0) -> dict[str, Any]:
        code, document = self.request("GET", f"{protocol.PATH_STATUS}?after={after}&wait={wait}")
        return document if code == 200 else {"state": None, "seq": -1}

    def go(self, attempt: int = 1, **more: Any) -> tuple[int, dict[str, Any]]:
        body = {"attempt": attempt, "resume_from": None, "resume_step": None,
                "time_left_s": None, "env": {}, **more}  # fmt: skip
        return self.request("POST", protocol.PATH_GO, body)

    def stop(self, mode: str = "now", then: str = "hold") -> int:
        body = {"mode": mode, "why": "test", "then": then}
        return self.request("POST", protocol.PATH_STOP, body)[0]

    def wait_state(self, *states: str, timeout: float = 20.0) -> dict[str, Any]:
        return wait_for(
            lambda: (found := self.status())["state"] in states and found, timeout, self.story
        )

    def wait_journal(
        self, kind: str, *, attempt: int | None = None, count: int = 1, timeout: float = 20.0
    ) -> dict[str, Any]:
        """Wait for the ``count``-th entry of a kind and return it."""

        def find() -> dict[str, Any] | None:
            found = [e for e in self.journal(kind) if attempt in (None, e["attempt"])]
            return found[count - 1] if len(found) >= count else None

        return wait_for(find, timeout, lambda: f"{kind}: {self.story()}")

    def journal(self, *kinds: str) -> list[dict[str, Any]]:
        entries = protocol.read_journal(self.plan["journal"], 0)
        return [entry for entry in entries if not kinds or entry["kind"] in kinds]

    def ended(self, attempt: int = 1, timeout: float = 20.0) -> dict[str, Any]:
        """Body of AttemptEnded."""
        return self.wait_journal("AttemptEnded", attempt=attempt, timeout=timeout)["body"]

    def wait_gone(self, timeout: float = 20.0) -> None:
        """Wait until every agent has ended and no process of the placement is left."""
        wait_for(
            lambda: (
                all(agent.poll() is not None for agent in self.agents.values())
                and not self.survivors()
            ),
            timeout,
            self.story,
        )

    def survivors(self) -> set[int]:
        """Processes of user commands of this placement."""
        found: set[int] = set()
        for name in self.names:
            found |= {member.pid for member in processes.carrying(self.id, name)}
        return found

    def rank_log(self, rank: int = 0, attempt: int = 1) -> str:
        found = list(self.dir.glob(f"agents/*/rank-{rank}.attempt-{attempt}.log"))
        return found[0].read_text() if found else ""

    def agent_log(self, name: str) -> str:
        path = self.dir / "agents" / name / protocol.AGENT_LOG
        return path.read_text() if path.exists() else ""

    def story(self) -> str:
        """Everything a person would look at after a failed test."""
        parts = [f"status {self.status()}"]
        parts += [f"journal {entry}" for entry in self.journal()]
        parts += [f"-- agent {name}\n{self.agent_log(name)}" for name in self.plan["deciding"]]
        parts += [f"-- {path.name}\n{path.read_text()[-2000:]}"
                  for path in self.dir.glob("agents/*/*.attempt-*.log")]  # fmt: skip
        return "\n".join(parts)

    def clean(self) -> None:
        """Kill what a failed test has left."""
        for agent in self.agents.values():
            if agent.poll() is None:
                agent.send_signal(signal.SIGKILL)
            agent.wait()
        wait_for(self._kill_survivors, 10.0, "survivors could not be killed")
        shutil.rmtree(self.sockets, ignore_errors=True)

    def _kill_survivors(self) -> bool:
        found = self.survivors()
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not found


MakePlacement = Callable[..., Placement]
