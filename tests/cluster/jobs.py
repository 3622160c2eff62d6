"""Jobs on the cluster, driven in this process: without Airflow, so that a fault hits one thing.

The trainer counts (`tests/trainers/counting.py`), so what its weights have to be is known, and each
of its ranks beats on the shared volume, so from when to when it lived is known too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ffdl_airflow import services
from ffdl_airflow.core.errors import FfdlError
from ffdl_airflow.core.events import Event, Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.job import job_id_for
from ffdl_airflow.core.lifecycle import JobState, fold
from ffdl_airflow.core.manifests.ffdl import read_job
from ffdl_airflow.settings import from_values
from ffdl_airflow.stages.advance import Driver, Outcome, Waits
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.drive import drive
from ffdl_airflow.stages.submit import submit
from tests.cluster import images
from tests.cluster.installation import Installation
from tests.cluster.processes import wait_for
from tests.integration.conftest import Life, lives_in
from tests.trainers.counting import WEIGHTS_FILE, weights_after

GROUP = 1000
"""Under which the replicas run, as the engine has it."""
TRAINERS = Path(__file__).parents[1] / "trainers"
FAULTS = 1000
"""Looks in a row that may fail: who drives here waits for as long as the test does."""
LIMIT_S = 120.0


class Stop(Exception):
    """The driver of a test is to go, as if its process had died: it says nothing to anybody."""


class Lab:
    """One installation and its ledger. ``values`` are settings beyond the usual ones."""

    def __init__(self, installation: Installation, home: Path, **values: str) -> None:
        self.installation, self.bed = installation, installation.bed
        self.namespace = installation.namespace
        self.home = home
        installation.share_volume()
        self.values = installation.values(
            installation_key="of the faults", heartbeat_s="0.5", silent_s="4", hold_s="60",
            placement_s="60", grace_s="10", **values,
        )  # fmt: skip
        self.works: list[Work] = []

    def deps(self, **values: str) -> Deps:
        """What a driver needs, of its own but for the engine."""
        return services.deps(from_values({**self.values, **values}, state_dir=self.home))

    def deps_of(self, kubeconfig: Path) -> Deps:
        """What a driver of another account needs."""
        return self.deps(kubeconfig=str(kubeconfig))

    def account(self, name: str, rules: Sequence[Any], *, token: str | None = None) -> Path:
        """A kubeconfig of a service account with these rights in the namespace.

        ``token``: what it shows instead of its own.
        """
        bed, where = self.bed, f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        rights = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}"
        metadata = {"metadata": {"name": name}}
        bed.api("POST", where, metadata)
        bed.api("POST", f"{rights}/roles", {**metadata, "rules": list(rules)})
        subject = {"kind": "ServiceAccount", "name": name, "namespace": self.namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        bed.api("POST", f"{rights}/rolebindings",
                {**metadata, "subjects": [subject], "roleRef": role})  # fmt: skip
        if token is None:
            token = bed.api("POST", f"{where}/{name}/token", {"spec": {}})["status"]["token"]
        found = yaml.safe_load(bed.kubeconfig.read_text())
        found["users"] = [{"name": user["name"], "user": {"token": token}}
                          for user in found["users"]]  # fmt: skip
        path = self.home / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(found))
        return path

    def train(self, name: str, *, goal: Goal = Goal.REGISTER, deps: Deps | None = None,
              start: bool = True, **how: Any) -> Work:  # fmt: skip
        """Submit a job and drive it in a thread. ``how``: see `document`."""
        beats = self.installation.shared / "beats" / name
        beats.mkdir(parents=True)
        beats.chmod(0o777)
        job = read_job(document(name, beats, **how))
        work = Work(self, job_id_for(name, "here"), beats, deps or self.deps())
        submit(work.deps, job, job_id=work.job_id, owner={"key": "test"})
        self.works.append(work)
        if start:
            work.drive(goal)
        return work

    def close(self) -> None:
        """End whatever is left of all jobs."""
        for work in self.works:
            work.stop_driving()
        for work in self.works:
            work.deps = self.deps()
            if not work.state.terminal or work.state.placed:
                work.drive(Goal.RELEASE)
        for work in self.works:
            work.join()
        self.works.clear()

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """What is of a kind in the namespace."""
        path = f"/api/v1/namespaces/{self.namespace}/{kind}"
        return list(self.bed.api("GET", path)["items"])

    def left(self) -> list[str]:
        """What should not be there once no job is: all but tombstones."""
        kinds = ("pods", "services", "secrets")
        found = [f"{kind} {item['metadata']['name']}" for kind in kinds
                 for item in self.objects(kind)]  # fmt: skip
        anchors = [item for item in self.objects("configmaps")
                   if "ffdl.airflow/anchor" in item["metadata"].get("labels", {})
                   and "ffdl.airflow/ended" not in item["metadata"]["labels"]]  # fmt: skip
        return found + [f"anchor {item['metadata']['name']}" for item in anchors]


def document(  # noqa: PLR0913 - one for each thing that a test wants otherwise
    name: str, beats: Path, *, steps: int = 60, delay: float = 0.1, every: int = 5,
             args: tuple[str, ...] = (), replicas: int = 2, gpu: int = 1,
             resources: Mapping[str, Any] | None = None, env: Mapping[str, Any] | None = None,
             image: str = images.PYTHON, **spec: Any) -> dict[str, Any]:  # fmt: skip
    """The manifest of a job that counts."""
    words = ["--steps", steps, "--step-delay", delay, "--every", every, "--beats", beats, *args]
    training: dict[str, Any] = {
        "framework": "custom", "code": str(TRAINERS), "entryPoint": "counting.py", "image": image,
        "args": [str(word) for word in words],
    }  # fmt: skip
    if env:
        training["env"] = dict(env)
    wants = {"cpu": "100m", **({"gpu": gpu} if gpu else {}), **(resources or {})}
    size = {} if "roles" in spec else {"replicas": replicas}
    return {
        "apiVersion": "ffdl.cloud.ibm.com/v1", "kind": "TrainingJob", "metadata": {"name": name},
        "spec": {"training": training, "checkpoint": {"every": every}, "resources": wants,
                 **size, **spec},
    }  # fmt: skip


def pinned(master: str, worker: str) -> list[dict[str, Any]]:
    """``roles`` of a gang of two that lies on these nodes: the coordinator on the first."""
    return [
        {"name": role, "podTemplate": {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}}}
        for role, node in (("master", master), ("worker", worker))
    ]


class Work:
    """One job and whoever drives it here."""

    def __init__(self, lab: Lab, job_id: str, beats: Path, deps: Deps) -> None:
        self.lab, self.job_id, self.beats, self.deps = lab, job_id, beats, deps
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.outcome: Outcome | FfdlError | Stop | None = None
        self.waits_for = ""

    # Driving.

    def drive(self, goal: Goal = Goal.REGISTER, *, deps: Deps | None = None,
              faults: int = FAULTS) -> None:  # fmt: skip
        """Drive it in a thread until the goal is reached, or until `stop_driving`."""
        self._stop.clear()
        driver = Driver(deps or self.deps, self.job_id)

        def run() -> None:
            try:
                self.outcome = drive(deps or self.deps, driver, goal, faults=faults,
                                     on_wait=self._obey)  # fmt: skip
            except (FfdlError, Stop) as error:
                self.outcome = error

        self._thread = threading.Thread(target=run, name=f"driver of {self.job_id}", daemon=True)
        self._thread.start()

    def _obey(self, waits: Waits) -> None:
        self.waits_for = waits.wait.what
        if self._stop.is_set():
            raise Stop

    def stop_driving(self) -> None:
        """Whoever drives is gone, without a word."""
        self._stop.set()
        self.join()

    def join(self, *, timeout_s: float = LIMIT_S) -> Outcome | FfdlError | Stop | None:
        """Wait until the driver has come to its end; what it gave."""
        if self._thread is not None:
            thread = self._thread
            self.until(lambda: not thread.is_alive(), "its driver has ended", timeout_s=timeout_s)
        return self.outcome

    def until(self, condition: Callable[[], Any], what: str, *,
              timeout_s: float = LIMIT_S) -> Any:  # fmt: skip
        return wait_for(condition, lambda: f"{what}{self.log()}", timeout_s=timeout_s)

    # Looking.

    def events(self, *kinds: Kind) -> list[Event]:
        found = self.deps.ledger.read(self.job_id)
        return [event for event in found if not kinds or event.kind in kinds]

    @property
    def state(self) -> JobState:
        return fold(self.job_id, self.deps.ledger.read(self.job_id))

    @property
    def checkpoints(self) -> Path:
        return Path(self.deps.roots.checkpoint_root) / self.job_id

    def pods(self) -> list[dict[str, Any]]:
        """Of all of its placements, by name."""
        label = {"labelSelector": f"ffdl.airflow/job={self.job_id}"}
        path = f"/api/v1/namespaces/{self.lab.namespace}/pods"
        found = self.lab.bed.api("GET", path, params=label)["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def pod(self, replica: str) -> dict[str, Any]:
        """The newest placement's pod of a replica."""
        of = [pod for pod in self.pods()
              if pod["metadata"]["labels"]["ffdl.airflow/replica"] == replica]  # fmt: skip
        return max(of, key=lambda pod: int(pod["metadata"]["labels"]["ffdl.airflow/placement"]))

    def pids(self, replica: str) -> list[int]:
        """Processes of a replica's container, its agent first."""
        return sorted(self.lab.bed.container_pids(self.pod(replica)["metadata"]["uid"], "trainer"))

    def lives(self) -> list[Life]:
        """Every process of a rank so far."""
        return lives_in(self.beats)

    def wait_training(self, *, attempt: int = 1, more_steps: int = 6, ranks: int = 2) -> None:
        """Until all ranks of an attempt live and a checkpoint lies behind them."""

        def trains() -> bool:
            rows = self.deps.ledger.jobs(self.job_id)
            row, status = rows[0], rows[0].status or {}
            there = {life.rank for life in self.lives() if life.attempt == attempt}
            runs = row.phase == "Running" and status.get("attempt") == attempt
            (*_, go) = self.events(Kind.GO_INTENDED) or [None]
            first = ((go.body["resume"] or {}).get("step") or 0) if go else 0
            return runs and len(there) == ranks and (status.get("step") or 0) >= first + more_steps

        self.until(trains, f"attempt {attempt} trains")

    def wait_event(self, kind: Kind, *, number: int = 1, timeout_s: float = LIMIT_S) -> Event:
        """The so-manieth event of a kind."""
        found = self.until(lambda: self.events(kind)[number - 1 : number], f"{kind} {number}",
                           timeout_s=timeout_s)  # fmt: skip
        event: Event = found[0]
        return event

    def log(self) -> str:
        """The job's own log, for the message of a failed test."""
        return "\n" + "\n".join(
            f"{e.at:%H:%M:%S.%f} {e.recorded_at:%S.%f} {e.kind} {str(dict(e.body))[:300]}"
            for e in self.events()[-40:] if e.kind is not Kind.CHECKPOINT_SEALED
        )  # fmt: skip

    # What has to be right.

    def require_no_overlap(self) -> None:
        """No rank of an attempt had begun while one of an earlier attempt was there."""
        lives = self.lives()
        for one in lives:
            for other in lives:
                if one.attempt < other.attempt:
                    assert one.last <= other.start, f"{one} and {other}{self.log()}"

    def require_good_end(self, *, steps: int) -> None:
        """The job has its model, with the weights of an undisturbed run, and left nothing."""
        self.join()
        state = self.state
        assert state.phase == "Succeeded", self.log()
        self.require_no_overlap()
        assert state.checkpoint is not None
        assert state.checkpoint["step"] == steps, self.log()
        weights = (Path(state.checkpoint["path"]) / WEIGHTS_FILE).read_text().strip()
        assert weights == weights_after(steps), self.log()
        self.require_nothing_left()

    def require_nothing_left(self) -> None:
        """Neither pods nor anything else of the job, but its tombstones."""
        mine = f"ffdl-{self.job_id}-"
        self.until(lambda: not [one for one in self.lab.left() if mine in one],
                   f"nothing is left of it: {self.lab.left()}")  # fmt: skip
