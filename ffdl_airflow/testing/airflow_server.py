"""A real Airflow on this host: API server, scheduler, DAG processor and triggerers, as processes.

For: tests of what only a real Airflow does, and ``make up``. It listens on loopback only, keeps
everything in one folder, and is driven over REST. Not for: production.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import httpx
import psutil

READY_S = 180.0
"""Longest start of all components. Seen: 15 to 20 s quiet on two cores, minutes under load."""
STOP_S = 10.0
"""Time for a component to end by itself before it is killed. Chosen."""
_POLL_S = 0.1
_REVIVALS = 3
"""How often a component may end by itself. Chosen."""
_PAGE = 100
"""Rows of one answer; more is not to be had by Airflow's defaults."""
FINAL = ("success", "failed", "skipped", "upstream_failed", "removed")


class NotReadyError(Exception):
    """A component ended or did not answer in time; the text has the end of its log."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Where and how this Airflow runs.

    ``database``: SQLAlchemy URL of Airflow's own database, None for SQLite in ``home``. ``users``:
    user name → role of the simple auth manager; each password is the user's name. ``environ``:
    added to the environment of all components.
    """

    home: Path
    dags: Path
    database: str | None = None
    triggerers: int = 1
    users: Mapping[str, str] = field(default_factory=lambda: {"admin": "admin"})
    port: int | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    quick: bool = True


class AirflowServer:
    """Components by name: ``api-server``, ``scheduler``, ``dag-processor``, ``triggerer-N``."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.port = settings.port or free_port()
        self.components: dict[str, subprocess.Popen[bytes]] = {}
        self.revived: list[str] = []
        self._tokens: dict[str, str] = {}
        self._client = httpx.Client(base_url=self.url, timeout=60.0)
        self._secret = secrets.token_hex(32)
        self._fernet = urlsafe_b64encode(secrets.token_bytes(32)).decode()

    @property
    def url(self) -> str:
        """Base address, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    def _triggerers(self) -> list[str]:
        return [f"triggerer-{number}" for number in range(self.settings.triggerers)]

    def start(self) -> None:
        """Make the database and start everything; returns when all components are healthy.

        Raises NotReadyError with the end of the log of what did not come up.
        """
        home = self.settings.home
        (home / "logs").mkdir(parents=True, exist_ok=True)
        passwords = {name: name for name in self.settings.users}
        self._passwords.write_text(json.dumps(passwords))
        self._run("db", "migrate")
        for name in ("api-server", "scheduler", "dag-processor", *self._triggerers()):
            self.start_component(name)
        self.wait_healthy()

    def start_component(self, name: str) -> None:
        """Start one component; does not wait."""
        with self.log_of(name).open("ab") as log:
            self.components[name] = self._popen(name, log)

    def stop_component(self, name: str, *, how: signal.Signals = signal.SIGTERM) -> None:
        """End a component with what it has started; SIGKILL leaves it no time."""
        process = self.components.pop(name)
        members = _family(process.pid)
        _signal(members, how)
        if how is not signal.SIGKILL:
            _gone, alive = psutil.wait_procs(members, timeout=STOP_S)
            _signal(alive, signal.SIGKILL)
        process.wait(timeout=STOP_S)

    def freeze(self, name: str) -> None:
        """Stop a component with all its processes, as a host does that swaps."""
        _signal(_family(self.components[name].pid), signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let a frozen component go on."""
        _signal(_family(self.components[name].pid), signal.SIGCONT)

    def revive(self) -> None:
        """Start a component again that has ended by itself, as a service manager does.

        Airflow 3.3.2's scheduler can end so: on SQLite it may read a task's state from before the
        task's own last word, and trips over the row that has changed since (seen). Raises
        NotReadyError where one ends more than three times.
        """
        for name, process in list(self.components.items()):
            if process.poll() is None:
                continue
            self.revived.append(name)
            if self.revived.count(name) > _REVIVALS:
                end = _end(self.log_of(name))
                raise NotReadyError(f"{name} ended with {process.returncode}:\n{end}")
            self.start_component(name)

    def stop(self) -> None:
        """End everything that was started here."""
        self._client.close()
        members = [m for p in self.components.values() for m in _family(p.pid)]
        _signal(members, signal.SIGCONT)
        _signal(members, signal.SIGTERM)
        _gone, alive = psutil.wait_procs(members, timeout=STOP_S)
        _signal(alive, signal.SIGKILL)
        for process in self.components.values():
            process.wait(timeout=STOP_S)
        self.components.clear()

    def log_of(self, name: str) -> Path:
        """What a component prints."""
        return self.settings.home / f"{name}.log"

    def wait_healthy(self) -> None:
        """Until every component says that it is healthy and the first DAGs are known."""

        def healthy() -> bool:
            self._require_alive()
            with suppress(httpx.HTTPError):
                found = self._client.get("/api/v2/monitor/health").json()
                wanted = ("metadatabase", "scheduler", "triggerer", "dag_processor")
                return all(found.get(part, {}).get("status") == "healthy" for part in wanted)
            return False

        wait_for(healthy, timeout=READY_S, what=self._logs)

    def call(self, method: str, path: str, *, user: str | None = None, **options: Any) -> Any:
        """One call of the REST API below ``/api/v2``, as a user; the JSON that it answers.

        Raises httpx.HTTPStatusError where the answer is an error.
        """
        answer = self.request(method, f"/api/v2{path}", user=user, **options)
        if answer.is_error:
            raise httpx.HTTPStatusError(f"{answer.status_code} {method} {path}: {answer.text}",
                                        request=answer.request, response=answer)  # fmt: skip
        return answer.json() if answer.content else None

    def request(self, method: str, path: str, *, user: str | None = None, **options: Any,
                ) -> httpx.Response:  # fmt: skip
        """One call as a user (default: the first one), whatever the answer."""
        self.revive()
        token = self.token(user or next(iter(self.settings.users)))
        headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
        return self._client.request(method, path, headers=headers, **options)

    def token(self, user: str) -> str:
        """A token of the user's, made once."""
        if user not in self._tokens:
            answer = self._client.post("/auth/token", json={"username": user, "password": user})
            answer.raise_for_status()
            self._tokens[user] = answer.json()["access_token"]
        return self._tokens[user]

    def run_dag(self, dag_id: str, *, conf: Mapping[str, Any] | None = None) -> "Run":
        """Trigger a DAG, which is unpaused for it; waits until Airflow knows it."""

        def known() -> bool:
            return self.request("GET", f"/api/v2/dags/{dag_id}").status_code == httpx.codes.OK

        wait_for(known, timeout=READY_S, what=lambda: f"DAG {dag_id}\n{self.import_errors()}")
        self.call("PATCH", f"/dags/{dag_id}", json={"is_paused": False})
        body = {"logical_date": None, "conf": dict(conf or {})}
        made = self.call("POST", f"/dags/{dag_id}/dagRuns", json=body)
        return Run(self, dag_id, made["dag_run_id"])

    def import_errors(self) -> str:
        """What the DAG processor could not read."""
        found = self.call("GET", "/importErrors")["import_errors"]
        return "\n".join(error["stack_trace"] for error in found)

    def command(self, *words: str) -> str:
        """Output of an ``airflow`` command; raises CalledProcessError where it fails."""
        return self._run(*words)

    def environ(self) -> dict[str, str]:
        """The environment of all components."""
        kept = {k: v for k, v in os.environ.items()
                if not k.startswith(("AIRFLOW", "_AIRFLOW", "FFDL_"))}  # fmt: skip
        return kept | self._configuration() | dict(self.settings.environ)

    @property
    def _passwords(self) -> Path:
        return self.settings.home / "passwords.json"

    def _configuration(self) -> dict[str, str]:
        home, users = self.settings.home, self.settings.users
        database = self.settings.database or f"sqlite:///{home / 'airflow.db'}"
        values = {
            "CORE__DAGS_FOLDER": self.settings.dags,
            "CORE__LOAD_EXAMPLES": False,
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": 8,
            "CORE__MAX_ACTIVE_TASKS_PER_DAG": 128,
            "CORE__FERNET_KEY": self._fernet,
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{n}:{r}" for n, r in users.items()),
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": self._passwords,
            "DATABASE__SQL_ALCHEMY_CONN": database,
            "API__HOST": "127.0.0.1",
            "API__PORT": self.port,
            "API__BASE_URL": self.url,
            "API__WORKERS": 1,
            "API__SECRET_KEY": self._secret,
            "API_AUTH__JWT_SECRET": self._secret,
            "DAG_PROCESSOR__REFRESH_INTERVAL": 2,
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": 30,
            "DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": 1,
            **(_QUICK if self.settings.quick else {}),
        }  # fmt: skip
        found = {f"AIRFLOW__{key}": str(value) for key, value in values.items()}
        return found | {"AIRFLOW_HOME": str(home), "PYTHONUNBUFFERED": "1"}

    def _popen(self, name: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
        words = ["triggerer" if name.startswith("triggerer") else name]
        if words[0] in ("scheduler", "triggerer"):
            words.append("--skip-serve-logs")  # it would listen on all addresses; logs are here
        return subprocess.Popen(
            [sys.executable, "-m", "airflow", *words], stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, env=self.environ(), start_new_session=True,
        )  # fmt: skip

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *words], check=False, text=True,
            capture_output=True, env=self.environ(),
        )  # fmt: skip
        if done.returncode:
            raise NotReadyError(f"airflow {' '.join(words)}: {done.stdout}\n{done.stderr}")
        return done.stdout

    def _require_alive(self) -> None:
        for name, process in self.components.items():
            if process.poll() is not None:
                end = _end(self.log_of(name))
                raise NotReadyError(f"{name} ended with {process.returncode}:\n{end}")

    def _logs(self) -> str:
        return "\n".join(f"--- {name}\n{_end(self.log_of(name))}" for name in self.components)


_QUICK: Mapping[str, Any] = {
    "WORKERS__MIN_HEARTBEAT_INTERVAL": 1,
    "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": 0.1,
    "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": 1,
    "SCHEDULER__JOB_HEARTBEAT_SEC": 2,
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": 20,
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": 2,
    "SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": 2,
    "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": 10,
    "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": 30,
    "TRIGGERER__JOB_HEARTBEAT_SEC": 2,
}
"""Intervals that make a test of seconds out of minutes; what they drive stays the same."""


@dataclass(frozen=True)
class Run:
    """One DAG run."""

    server: AirflowServer
    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        """Its resource in the REST API."""
        return f"/dags/{self.dag_id}/dagRuns/{self.run_id}"

    def state(self) -> str:
        """State of the run."""
        return str(self.server.call("GET", self.path)["state"])

    def tasks(self) -> dict[str, Mapping[str, Any]]:
        """Task id (with ``[map index]`` where mapped) → its instance."""
        found: dict[str, Mapping[str, Any]] = {}
        while True:
            page = {"limit": _PAGE, "offset": len(found), "order_by": "id"}
            path = f"{self.path}/taskInstances"
            rows = self.server.call("GET", path, params=page)["task_instances"]
            found |= {_name(task): task for task in rows}
            if len(rows) < _PAGE:
                return found

    def states(self) -> dict[str, str | None]:
        """Task id → state."""
        return {name: task["state"] for name, task in self.tasks().items()}

    def wait(self, *, timeout: float = 180.0) -> str:
        """Until the run has ended; its state."""
        return str(wait_for(self._ended, timeout=timeout, what=self.story))

    def wait_task(self, task_id: str, *states: str, timeout: float = 120.0) -> Mapping[str, Any]:
        """Until a task is in one of these states; the instance."""

        def found() -> Mapping[str, Any] | None:
            task = self.tasks().get(task_id)
            return task if task and task["state"] in states else None

        answer: Mapping[str, Any] = wait_for(found, timeout=timeout, what=self.story)
        return answer

    def mark(self, task_id: str, state: str) -> None:
        """What a person does in the UI: mark a task as failed or as success."""
        self.server.call("PATCH", f"{self.path}/taskInstances/{task_id}", json={"new_state": state})

    def mark_run(self, state: str) -> None:
        """Mark the whole run."""
        self.server.call("PATCH", self.path, json={"state": state})

    def clear(self, *task_ids: str) -> list[str]:
        """Clear tasks, also those that run or wait; the ids that Airflow cleared."""
        body = {"dry_run": False, "task_ids": list(task_ids), "dag_run_id": self.run_id,
                "only_failed": False, "only_running": False, "reset_dag_runs": True,
                "include_downstream": False, "include_upstream": False}  # fmt: skip
        path = f"/dags/{self.dag_id}/clearTaskInstances"
        found = self.server.call("POST", path, json=body)["task_instances"]
        return sorted(_name(task) for task in found)

    def xcom(self, task_id: str, key: str = "return_value") -> Any:
        """A value that a task has left; None where there is none."""
        path = f"/api/v2{self.path}/taskInstances/{task_id}/xcomEntries/{key}"
        answer = self.server.request("GET", path, params={"deserialize": True})
        return answer.json()["value"] if answer.status_code == httpx.codes.OK else None

    def log(self, task_id: str, attempt: int) -> str:
        """The task log of one try, as the UI shows it."""
        path = f"/api/v2{self.path}/taskInstances/{task_id}/logs/{attempt}"
        answer = self.server.request("GET", path, params={"full_content": True})
        if answer.is_error:
            return ""
        return "\n".join(_line(line) for line in answer.json()["content"])

    def story(self) -> str:
        """States and the logs of what did not succeed, for the message of a failed test."""
        parts = [f"{self.dag_id} {self.run_id}: {self.state()}"]
        for name, task in self.tasks().items():
            parts.append(f"--- {name}: {task['state']}, try {task['try_number']}")
            if task["state"] != "success" and task["try_number"]:
                parts.append(self.log(task["task_id"], task["try_number"])[-3000:])
        return "\n".join(parts)

    def _ended(self) -> str | None:
        state = self.state()
        return state if state in FINAL else None


def wait_for(condition: Callable[[], Any], *, timeout: float, what: Callable[[], str]) -> Any:
    """Call the condition until it is true; raises NotReadyError after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise NotReadyError(f"not within {timeout:g} s: {what()}")
        time.sleep(_POLL_S)
    return found


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _name(task: Mapping[str, Any]) -> str:
    mapped = task["map_index"]
    return str(task["task_id"]) + (f"[{mapped}]" if mapped >= 0 else "")


def _line(line: Any) -> str:
    if not isinstance(line, Mapping):
        return str(line)
    return f"{line.get('timestamp') or ''} {line.get('level') or ''} {line.get('event')}" + "".join(
        f" {key}={line[key]}" for key in line if key not in ("timestamp", "level", "event")
    )


def _end(path: Path) -> str:
    return path.read_text(errors="replace")[-2000:] if path.exists() else "(no log)"


def _family(pid: int) -> list[psutil.Process]:
    """A process and its descendants; those in a placement of ours live by themselves."""
    try:
        head = psutil.Process(pid)
        found = [head, *head.children(recursive=True)]
    except psutil.Error:
        return []
    return [process for process in found if not _is_gang(process)]


def end_children() -> None:
    """End what this process has started and nobody keeps: a signal may have cut off a start."""
    members = [member for member in _family(os.getpid()) if member.pid != os.getpid()]
    _signal(members, signal.SIGKILL)
    psutil.wait_procs(members, timeout=STOP_S)


def _is_gang(process: psutil.Process) -> bool:
    try:
        return "FFDL_PLACEMENT" in process.environ()
    except psutil.Error:
        return False


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)
