"""Real faults on real pods: the right class and reason, the right weights, nothing left behind.

The jobs are driven in this process (`jobs.py`). Each node has one GPU, so that a gang of two with a
GPU each lies on both.

What happens to pods is asked every day. The other tests are long ones (`--soak`): they break parts
of the cluster and wait for what follows, as much of it side by side as can be.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.engines.kubernetes import losses, pending, placing
from ffdl_airflow.engines.kubernetes.client import KubeClient
from tests.cluster import images, pods
from tests.cluster.bed import GPU, Bed
from tests.cluster.installation import CLAIM, Installation
from tests.cluster.jobs import Lab, Work, pinned
from tests.cluster.processes import all_at_once, wait_for

STEPS = 30
"""Of a gang that is only to end well."""


@pytest.fixture(scope="module")
def lab(
    bed: Bed, tmp_path_factory: pytest.TempPathFactory, priorities: None, agent_image: None
) -> Iterator[Lab]:
    installation = Installation(
        bed, bed.make_namespace("faults"), tmp_path_factory.mktemp("volumes") / "shared"
    )
    installation.make_volume()
    set_gpus(bed, 1)
    yield Lab(installation, tmp_path_factory.mktemp("lab"))
    bed.delete_namespace(installation.namespace)
    set_gpus(bed, 0)


def set_gpus(bed: Bed, count: int) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda node: bed.set_gpus(node, count), bed.real_nodes))


@pytest.fixture(autouse=True)
def nothing_is_left(lab: Lab) -> Iterator[None]:
    """After each test: no job is driven, and nothing but tombstones stands in the namespace."""
    yield
    lab.close()
    wait_for(lambda: not lab.left(), lambda: f"left: {lab.left()}", timeout_s=60)


@pytest.fixture(autouse=True)
def deletes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is deleted is this very object: by its UID. A secret has none that we may know."""
    nameless: list[str] = []
    real = KubeClient.delete

    def delete(self: KubeClient, path: str, *, uid: str | None = None,
               grace_s: int | None = None) -> None:  # fmt: skip
        kind, name = path.split("/")[-2:]
        if uid is None and kind != "secrets" and not name.startswith("ffdl-probe-"):
            nameless.append(path)
        real(self, path, uid=uid, grace_s=grace_s)

    monkeypatch.setattr(KubeClient, "delete", delete)
    yield
    assert not nameless


def pod_path(work: Work, replica: str) -> str:
    return pods.path_of(work.lab.namespace, work.pod(replica)["metadata"]["name"])


def step_of(work: Work) -> int:
    row = work.deps.ledger.jobs(work.job_id)[0]
    return int((row.status or {}).get("step") or 0)


def wait_steps(work: Work, count: int) -> None:
    """Until the trainer has gone on by so many steps, as its driver sees it."""
    first = step_of(work)
    work.until(lambda: step_of(work) >= first + count, f"{count} more steps")


# While it trains: what happens to a rank, an agent or a pod.


def kill_rank(work: Work) -> None:
    os.kill(work.pids("worker-1")[-1], signal.SIGKILL)


def kill_agent(work: Work) -> None:
    os.kill(work.pids("worker-1")[0], signal.SIGKILL)


def kill_coordinator(work: Work) -> None:
    os.kill(work.pids("worker-0")[0], signal.SIGKILL)


def delete_pod(work: Work) -> None:
    work.lab.bed.api("DELETE", pod_path(work, "worker-1"))


def evict(work: Work) -> None:
    name = work.pod("worker-0")["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": name, "namespace": work.lab.namespace}}  # fmt: skip
    work.lab.bed.api("POST", f"{pod_path(work, 'worker-0')}/eviction", body)


def preempt(work: Work) -> None:
    """By a pod that is in a hurry, and soon over."""
    bed, namespace = work.lab.bed, work.lab.namespace
    container = {"resources": {"limits": {GPU: "1"}}}
    pods.create(bed, namespace, pods.manifest(
        "urgent", ["sleep", "0.5"], priorityClassName="online-high", container=container
    ))  # fmt: skip
    pods.wait_until(bed, namespace, "urgent", pods.ended)
    bed.api("DELETE", pods.path_of(namespace, "urgent"))


@dataclass(frozen=True)
class Blow:
    """One fault, the class of the verdict, and what its sentence says."""

    strike: Callable[[Work], None]
    failure: str
    says: str


BLOWS = (
    Blow(kill_rank, "KILLED_OUTSIDE", "rank 1 of worker-1 was killed by signal 9"),
    Blow(kill_agent, "KILLED_OUTSIDE", "container trainer was killed by signal 9"),
    Blow(kill_coordinator, "KILLED_OUTSIDE", "container trainer was killed by signal 9"),
    Blow(delete_pod, "KILLED_OUTSIDE", "the pod was deleted from outside"),
    Blow(evict, "EVICTED", "Eviction API: evicting"),
    Blow(preempt, "PREEMPTED", "preempting to accommodate a higher priority pod"),
)


def require_verdict(work: Work, number: int, failure: str, says: str, *, costs: bool) -> None:
    """The so-manieth verdict and restart: class, one sentence, and what it costs."""
    verdict = work.wait_event(Kind.VERDICT, number=number).body
    assert verdict["class"] == failure, work.log()
    assert says in verdict["cause"], work.log()
    assert "\n" not in verdict["cause"]
    assert verdict["costs"] is costs
    restart = work.wait_event(Kind.RESTART_DECIDED, number=number).body
    assert (restart["class"], restart["costs"]) == (failure, costs), work.log()


def require_one_gang_at_a_time(work: Work) -> None:
    """A place is asked for when the one before has been released, and not before."""
    kinds = [e.kind for e in work.events(Kind.RESERVE_INTENDED, Kind.RELEASED)]
    pairs = len(kinds) // 2
    assert kinds == [Kind.RESERVE_INTENDED, Kind.RELEASED] * pairs, work.log()


def test_a_gang_outlives_what_is_done_to_its_pods(lab: Lab) -> None:
    """Six faults in a row: each is told by its class, costs nothing, and loses no step."""
    steps = STEPS + 15 * len(BLOWS)
    work = lab.train("blows", steps=steps, delay=0.1)
    for number, blow in enumerate(BLOWS, start=1):
        work.wait_training(attempt=number)
        blow.strike(work)
        require_verdict(work, number, blow.failure, blow.says, costs=False)
    work.require_good_end(steps=steps)
    require_one_gang_at_a_time(work)
    assert work.state.costly == 0
    assert len(work.events(Kind.GO_INTENDED)) == len(BLOWS) + 1


# Before it starts, and what a user or an administrator got wrong.


def deletes_its_secret_once(monkeypatch: pytest.MonkeyPatch, lab: Lab, name: str) -> None:
    """The secret of a job's first placement is removed before a pod could mount it."""
    real, done = KubeClient.create, threading.Event()

    def create(self: KubeClient, path: str, body: Any, **how: Any) -> Any:
        made = real(self, path, body, **how)
        if path.endswith("/secrets") and name in body["metadata"]["name"] and not done.is_set():
            done.set()
            lab.bed.api("DELETE", f"{path}/{body['metadata']['name']}")
        return made

    monkeypatch.setattr(KubeClient, "create", create)


ABSENT = {"secretName": "absent", "key": "token"}
WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "no-name": ({"image": "No Name"}, "IMAGE", "No Name is no name of an image"),
    "no-python": ({"image": images.NO_PYTHON}, "IMAGE", "has no usable python3"),
    "no-secret": ({"env": {"TOKEN": ABSENT}}, "CONFIG", 'secret "absent" not found'),
    "no-key": ({"env": {"TOKEN": {**ABSENT, "secretName": "present"}}}, "CONFIG",
               "couldn't find key token in Secret"),
}  # fmt: skip


@pytest.fixture
def present_secret(lab: Lab) -> Iterator[None]:
    """The secret ``present`` of a user, without the key ``token``."""
    path = f"/api/v1/namespaces/{lab.namespace}/secrets"
    lab.bed.api("POST", path, {"metadata": {"name": "present"}, "stringData": {"other": "x"}})
    yield
    lab.bed.api("DELETE", f"{path}/present")


@pytest.mark.soak
@pytest.mark.usefixtures("present_secret")
def test_what_cannot_start_says_why(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side, because each waits some seconds for what others might still create.

    Beside them are gangs that nobody drives, and gangs whose place is not ours.
    """
    monkeypatch.setattr(pending, "RECHECK_S", 8.0)
    monkeypatch.setattr(losses, "EVENTS_EVERY_S", 2.0)
    deletes_its_secret_once(monkeypatch, lab, "secret-gone")
    with all_at_once() as start:
        start(require_reasons, lab)
        start(require_nothing_lost_undriven, lab)
        start(require_own_place, lab)


def require_reasons(lab: Lab) -> None:
    """Of each start that somebody has made impossible, or has broken off."""
    volumes = f"{CLAIM}:{lab.installation.shared},absent:/data"
    claim = lab.deps(volumes=volumes)
    works = {name: lab.train(name, gpu=0, **how) for name, (how, _, _) in WRONG.items()}
    works["no-claim"] = lab.train("no-claim", gpu=0, deps=claim)
    waiting = lab.train("no-image", gpu=0, image="registry.ffdl.test/absent:1",
                        reservation={"placement": 15})  # fmt: skip
    removed = lab.train("secret-gone", gpu=0, steps=STEPS)
    hungry = lab.train("hungry", gpu=0, steps=STEPS, resources={"memory": "64Mi"}, args=(
        "--memory-at", "12:300", "--only-rank", "1", "--only-attempt", "1"))  # fmt: skip
    expected = {name: row[1:] for name, row in WRONG.items()}
    expected["no-claim"] = ("CONFIG", "volume claim absent does not exist")
    for name, (failure, says) in expected.items():
        require_failed(works[name], failure, says)
    require_waits_with_a_limit(waiting)
    lost = removed.wait_event(Kind.REPLICA_LOST).body
    assert lost["what"] == "deleted", removed.log()
    assert "has been removed before it started" in lost["message"]
    removed.require_good_end(steps=STEPS)
    assert removed.state.placement == 2
    require_verdict(hungry, 1, "HOST_OOM", "went over its memory limit", costs=True)
    hungry.require_good_end(steps=STEPS)


def require_failed(work: Work, failure: str, says: str) -> None:
    """It has failed with a sentence that ends there, and nothing of it is left."""
    outcome = work.join()
    assert work.events(Kind.FAILED), f"{outcome!r}{work.log()}"
    (failed,) = work.events(Kind.FAILED)
    assert failed.body["class"] == failure, work.log()
    assert says in failed.body["reason"], work.log()
    assert "\n" not in failed.body["reason"]
    assert failed.body["next_step"]
    assert not work.events(Kind.GO_INTENDED)
    work.require_nothing_left()


def require_waits_with_a_limit(work: Work) -> None:
    """An image that cannot be had now is waited for as long as a placement may take."""
    lost = work.wait_event(Kind.REPLICA_LOST).body
    assert (lost["what"], lost["ran"]) == ("not-started", False), work.log()
    assert "not started within 15 s: image registry.ffdl.test/absent:1 cannot be" in lost["message"]
    told = [event.body["reason"] for event in work.events(Kind.WAITING)]
    assert any("cannot be pulled yet: failed to pull" in reason for reason in told), told
    released = work.wait_event(Kind.RELEASED)
    assert released.body["lost"]
    assert "it has not started within 15 s" in released.body["why"]
    work.wait_event(Kind.RESERVE_INTENDED, number=2)
    work.stop_driving()


def require_nothing_lost_undriven(lab: Lab) -> None:
    """A gang that waits leaves when its hold is over; one that trains goes on to its end."""
    held = lab.train("held", gpu=0, steps=STEPS, goal=Goal.RESERVE, reservation={"hold": 5})
    trains = lab.train("alone", gpu=0, steps=80, delay=0.1)
    trains.wait_training()
    trains.stop_driving()
    known = len(trains.events())
    held.join()
    held.until(lambda: [pod["status"]["phase"] for pod in held.pods()] == ["Succeeded"] * 2,
               "its pods have left", timeout_s=5 + 10)  # fmt: skip
    held.drive()
    trains.until((trains.checkpoints / f"step-{80:012d}").exists, "it trains on")
    trains.until(lambda: {p["status"]["phase"] for p in trains.pods()} == {"Succeeded"}, "it ends")
    assert len(trains.events()) == known, "nobody has written anything meanwhile"
    trains.drive()
    trains.require_good_end(steps=80)
    (ended,) = trains.events(Kind.ATTEMPT_ENDED)
    assert ended.body["ok"]
    assert (ended.recorded_at - ended.at).total_seconds() > 0.5, "its time is the journal's"
    assert len(trains.events(Kind.GO_INTENDED)) == 1
    held.require_good_end(steps=STEPS)
    assert held.events(Kind.HOLD_EXPIRED)


def require_own_place(lab: Lab) -> None:
    """A namespace that is not there, and a name that is taken, are told in one sentence."""
    absent = lab.deps(namespace="absent")
    work = lab.train("no-namespace", deps=absent, start=False)
    work.drive(faults=1)
    error = work.join()
    assert 'namespaces "absent" not found' in str(error)
    assert "create the namespace" in str(error)

    taken = lab.train("taken", start=False, steps=STEPS)
    name = f"ffdl-{taken.job_id}-1"
    path = f"/api/v1/namespaces/{lab.namespace}/configmaps"
    lab.bed.api("POST", path, {"metadata": {"name": name}, "data": {"whose": "not ours"}})
    taken.drive(faults=1)
    assert f"configmaps {name} is there already and is not ours" in str(taken.join())
    assert not taken.pods()
    lab.bed.api("DELETE", f"{path}/{name}")
    taken.drive()
    taken.require_good_end(steps=STEPS)


@pytest.mark.soak
def test_what_has_no_room_waits_with_its_reason(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """No node has GPUs; none has so many; a quota that may be read, and one that may not."""
    monkeypatch.setattr(placing, "_BACKOFF_S", (1.0, 2.0))
    set_gpus(lab.bed, 0)
    none = lab.train("no-gpu", steps=STEPS)
    require_waiting(none, "no node that it may use has any nvidia.com/gpu")
    set_gpus(lab.bed, 1)
    many = lab.train("many-gpus", gpu=3)
    require_waiting(many, "the largest node that it may use has 1")
    none.require_good_end(steps=STEPS)
    quotas = f"/api/v1/namespaces/{lab.namespace}/resourcequotas"
    lab.bed.api("POST", quotas, {"metadata": {"name": "tight"}, "spec": {"hard": {"pods": "1"}}})
    wait_for(lambda: lab.bed.api("GET", f"{quotas}/tight")["status"].get("used"), "it is counted")
    seen = lab.train("quota", gpu=0)
    require_waiting(seen, "quota tight for pods: the gang needs 2 and the quota has 1 in all")
    for work in (many, seen):
        work.stop_driving()
        work.drive(Goal.RELEASE)
        work.join()
    unseen = lab.train("hidden-quota", gpu=0, steps=STEPS, deps=lab.deps_of(blind_driver(lab)))
    require_waiting(unseen, "exceeded quota: tight")
    unseen.until(lambda: not unseen.pods(), "what was made is taken back")
    lab.bed.api("DELETE", f"{quotas}/tight")
    unseen.require_good_end(steps=STEPS)


def require_waiting(work: Work, says: str) -> None:
    def told() -> bool:
        return any(says in event.body["reason"] for event in work.events(Kind.WAITING))

    work.until(told, says)
    assert not work.events(Kind.PLACED, Kind.FAILED)


def blind_driver(lab: Lab) -> Path:
    """A kubeconfig of an account that may do all in the namespace, but not read quotas or nodes."""
    return lab.account("blind", [
        {"apiGroups": [""], "resources": ["configmaps", "pods", "pods/proxy", "services", "secrets",
                                          "events"], "verbs": ["*"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]},
    ])  # fmt: skip


# The control plane and the network.


@pytest.mark.soak
def test_training_goes_on_while_the_control_plane_is_away(lab: Lab) -> None:
    """The API server is restarted, then away for a minute; a token is too old; DNS is gone."""
    work = lab.train("outages", steps=1000, delay=0.1)
    work.wait_training()
    lab.bed.restart_api_server()
    wait_steps(work, 5)
    lab.bed.stop_api_server()
    wait_checkpoint(work, newest_step(work) + 600)  # of a tenth of a second each: a minute
    lab.bed.start_api_server()
    wait_steps(work, 5)
    require_new_token(work)
    lab.bed.stop_dns()
    other = lab.train("without-names", gpu=0, steps=STEPS)
    wait_steps(work, 20)
    other.until(lambda: [pod["status"]["phase"] for pod in other.pods()] == ["Running"] * 2, "pods")
    assert not other.events(Kind.PLACED)
    lab.bed.start_dns()
    other.require_good_end(steps=STEPS)
    work.require_good_end(steps=1000)
    assert len(work.events(Kind.GO_INTENDED)) == 1
    assert not work.events(Kind.VERDICT, Kind.REPLICA_LOST), work.log()


def newest_step(work: Work) -> int:
    """Of what lies on the volume, whoever is away."""
    return int(max(work.checkpoints.glob("step-*")).name.removeprefix("step-"))


def wait_checkpoint(work: Work, step: int) -> None:
    work.until(lambda: newest_step(work) >= step, f"checkpoint {step}")


def require_new_token(work: Work) -> None:
    """A driver whose token is too old says so, and goes on once somebody has renewed it."""
    lab = work.lab
    late = lab.account("late", [], token="of yesterday")  # noqa: S106 - a token that is none
    work.stop_driving()
    work.drive(deps=lab.deps_of(late), faults=1)
    assert "the API server does not know us" in str(work.join())
    work.drive(deps=lab.deps_of(late))
    late.write_text(lab.bed.kubeconfig.read_text())
    wait_steps(work, 5)


# Nodes.


@pytest.mark.soak
def test_a_silent_kubelet_ends_nothing_and_a_node_without_a_link_is_lost(lab: Lab) -> None:
    """Gangs that lie on both nodes, of which one falls silent.

    While only its kubelet is gone, who trains there trains on, and a job can end. Without a link
    it is given up, by the gang of which it has a worker and by that whose coordinator it has. Their
    next attempts begin when the ranks on that node have ended by themselves. Nobody has seen them
    end, and the log says so.
    """
    silent, heard = lab.bed.real_nodes
    places = {"worker-0": pinned(heard, silent), "master-0": pinned(silent, heard)}
    works = {replica: lab.train(f"with-{replica}", gpu=0, steps=290, delay=0.2, roles=roles)
             for replica, roles in places.items()}  # fmt: skip
    for work in works.values():
        work.wait_training()
    ends = lab.train("ends", gpu=0, steps=60, delay=0.1, roles=pinned(heard, silent))
    ends.wait_training()
    lab.bed.stop_kubelet(silent)
    lab.bed.wait_for_node(silent, ready=False)
    for work in works.values():
        wait_steps(work, 10)
    ends.require_good_end(steps=60)
    assert ends.events(Kind.RELEASED)[0].body["abandoned"] == {"worker-0": silent}
    lab.bed.start_kubelet(silent)
    for work in works.values():
        assert not work.events(Kind.REPLICA_LOST, Kind.ATTEMPT_ENDED), work.log()
    lab.bed.cut_link(silent)
    try:
        for replica, work in works.items():
            require_given_up(work, replica, node=silent)
    finally:
        lab.bed.mend_link(silent)
        lab.bed.wait_for_node(silent, ready=True)
    for work in works.values():
        work.require_good_end(steps=290)
        require_one_gang_at_a_time(work)
        assert work.state.costly == 0


def require_given_up(work: Work, replica: str, *, node: str) -> None:
    """The gang has lost a replica with its node, and its place there has been given up."""
    says = f"{replica} on {node}: its node has stopped to answer"
    require_verdict(work, 1, "NODE_LOST", says, costs=False)
    released = work.wait_event(Kind.RELEASED)
    assert released.body["abandoned"] == {replica: node}, work.log()
