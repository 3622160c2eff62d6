"""Why pods wait or died, case by case, and what class follows from it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from ffdl_airflow.core.failures.control_plane import verdict
from ffdl_airflow.engines.kubernetes.pending import Pending, why_pending
from ffdl_airflow.engines.kubernetes.pod_end import PodEnd, as_body, end_of
from tests.engines.kubernetes.objects import GPU, Plain, container, node, pod

MIB, GIB = 2**20, 2**30


def at(minute: int, second: int = 0) -> str:
    return f"2026-01-01T10:{minute:02d}:{second:02d}Z"


def when(minute: int, second: int = 0) -> datetime:
    return datetime(2026, 1, 1, 10, minute, second, tzinfo=timezone.utc)


NAMED = {"labels": {"ffdl.airflow/replica": "worker-2"}}


def replica(status: Plain, *, meta: Plain | None = None, on: str | None = "gpu-7",
            **spec: Any) -> Plain:  # fmt: skip
    """The pod of worker-2."""
    main = container("pytorch", gpu=8)
    main["resources"]["limits"]["memory"] = "64Gi"
    return pod("bert-worker-2", main, on=on, status=status, meta={**NAMED, **(meta or {})}, **spec)


def terminated(code: int, reason: str = "Error", *, message: str = "", end: str = at(41),
               start: str | None = at(0), name: str = "pytorch") -> Plain:  # fmt: skip
    state = {"exitCode": code, "reason": reason, "message": message, "finishedAt": end,
             "startedAt": start or "1970-01-01T00:00:00Z"}  # fmt: skip
    return {"name": name, "restartCount": 0, "state": {"terminated": state}}


def running(name: str = "pytorch") -> Plain:
    return {"name": name, "restartCount": 0, "state": {"running": {"startedAt": at(0)}}}


def waiting(reason: str, message: str = "", name: str = "pytorch") -> Plain:
    return {"name": name, "restartCount": 0,
            "state": {"waiting": {"reason": reason, "message": message}}}  # fmt: skip


def failed(*statuses: Plain, **more: Any) -> Plain:
    return {"phase": "Failed", "startTime": at(0), "containerStatuses": list(statuses), **more}


def refused(reason: str, message: str) -> Plain:
    """What the kubelet writes for a whole pod: usually without container statuses."""
    return {"phase": "Failed", "startTime": at(0), "reason": reason, "message": message}


def disruption(reason: str, message: str = "told by the control plane", status: str = "True",
               ) -> Plain:  # fmt: skip
    return {"type": "DisruptionTarget", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": at(40)}  # fmt: skip


PREEMPTED = disruption("PreemptionByScheduler", "default-scheduler: a more urgent pod needs room")
DELETING = {"deletionTimestamp": at(31), "deletionGracePeriodSeconds": 60}  # asked for at 10:30
RUNNING = {"phase": "Running", "startTime": at(0), "containerStatuses": [running()]}
CREATING = {"phase": "Pending", "startTime": at(0),
            "containerStatuses": [waiting("ContainerCreating")]}  # fmt: skip
SILENT = node("gpu-7", ready="Unknown")


def start_error(message: str) -> Plain:
    return failed(terminated(128, "StartError", message=message, start=None))


RUNC = "failed to create containerd task: OCI runtime create failed: unable to start container"
DEVICE_PLUGIN = "Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: "

# (id, status, other arguments, what it must be, class)
ENDS: list[tuple[str, Plain, Plain, Plain, str | None]] = [
    ("B05-oom", failed(terminated(137, "OOMKilled")), {},
     {"what": "oom-killed", "limit": 64 * GIB, "exit_code": 137, "signal": 9, "ran": True,
      "container": "pytorch", "at": when(41)}, "HOST_OOM"),
    ("B08-preempted", failed(terminated(137), conditions=[PREEMPTED]), {},
     {"what": "preempted", "reason": "PreemptionByScheduler", "ran": True, "at": when(40)},
     "PREEMPTED"),
    ("B08-sigterm", failed(terminated(143), conditions=[PREEMPTED]), {}, {"what": "preempted"},
     "PREEMPTED"),
    ("B08-saved-and-left", {**RUNNING, "phase": "Succeeded", "conditions": [PREEMPTED],
                            "containerStatuses": [terminated(0, "Completed")]}, {},
     {"what": "preempted"}, "PREEMPTED"),
    ("F13-oom-wins", failed(terminated(137, "OOMKilled"), conditions=[PREEMPTED]), {},
     {"what": "oom-killed"}, "HOST_OOM"),
    ("F13-status-false",
     failed(terminated(137), conditions=[disruption("PreemptionByScheduler", status="False")]), {},
     {"what": "exit", "exit_code": 137, "signal": 9}, None),
    ("B08-terminating", {**RUNNING, "conditions": [PREEMPTED]}, {"meta": DELETING},
     {"what": "preempted"}, "PREEMPTED"),
    ("B08-gone", {**RUNNING, "conditions": [PREEMPTED]}, {"deleted": True},
     {"what": "preempted"}, "PREEMPTED"),
    ("old-name", failed(conditions=[disruption("PreemptionByKubeScheduler")]), {},
     {"what": "preempted"}, "PREEMPTED"),
    ("eviction-api", failed(terminated(143), conditions=[disruption("EvictionByEvictionAPI")]), {},
     {"what": "evicted"}, "EVICTED"),
    ("new-reason", failed(conditions=[disruption("EvictionByMoon")]), {}, {"what": "evicted"},
     "EVICTED"),
    ("B35-pod-gc", failed(conditions=[disruption("DeletionByPodGC")]), {}, {"what": "node-lost"},
     "NODE_LOST"),
    ("drained-by-taint", {**RUNNING, "conditions": [disruption("DeletionByTaintManager")]},
     {"meta": DELETING, "node": node("gpu-7")}, {"what": "evicted"}, "EVICTED"),
    ("B35-taint-of-lost-node", {**RUNNING, "conditions": [disruption("DeletionByTaintManager")]},
     {"meta": DELETING, "node": SILENT}, {"what": "node-lost"}, "NODE_LOST"),
    ("F01-preempted-before-start", {**CREATING, "conditions": [PREEMPTED]}, {"deleted": True},
     {"what": "preempted-before-start", "ran": False}, "PREEMPTED_BEFORE_START"),
    ("F01-only-404", {"phase": "Pending"}, {"deleted": True},
     {"what": "preempted-before-start", "ran": False, "reason": "NotFound"},
     "PREEMPTED_BEFORE_START"),
    ("deleted-unbound", {"phase": "Pending"}, {"deleted": True, "on": None},
     {"what": "deleted", "ran": False}, "KILLED_OUTSIDE"),
    ("kubelet-low", failed(conditions=[disruption(
        "TerminationByKubelet", "The node was low on resource: memory. ")]), {},
     {"what": "evicted", "resource": "memory"}, "EVICTED"),
    ("kubelet-critical", failed(conditions=[disruption(
        "TerminationByKubelet", "Preempted in order to admit critical pod")]), {},
     {"what": "preempted"}, "PREEMPTED"),
    ("kubelet-shutdown", failed(conditions=[disruption(
        "TerminationByKubelet", "Pod was terminated in response to imminent node shutdown.")]), {},
     {"what": "node-lost"}, "NODE_LOST"),
    ("kubelet-other", failed(conditions=[disruption("TerminationByKubelet", "")]), {},
     {"what": "evicted", "message": "TerminationByKubelet"}, "EVICTED"),
    ("B32-old-text", refused("Evicted", "The node was low on resource: ephemeral-storage. "
     "Container log was using 900Ki, which exceeds its request of 0. "
     "Container pytorch was using 7000Mi, which exceeds its request of 0. "), {},
     {"what": "evicted", "resource": "ephemeral-storage", "ran": True,
      "usage": [("log", 900 * 1024, 0), ("pytorch", 7000 * MIB, 0)]},
     "EVICTED"),
    ("B32-new-text", refused("Evicted", "The node was low on resource: memory. Threshold quantity: "
     "100Mi, available: 4000Ki. Container pytorch was using 62914560Ki, request is 8Gi, has larger "
     "consumption of memory. "), {},
     {"what": "evicted", "usage": [("pytorch", 60 * GIB, 8 * GIB)]}, "EVICTED"),
    ("B32-no-quantity", refused("Evicted", "The node was low on resource: memory. Container "
     "pytorch was using lots, request is 8Gi"), {}, {"what": "evicted", "usage": []}, "EVICTED"),
    ("evicted-no-words", refused("Evicted", "by an operator"), {},
     {"what": "evicted", "resource": None}, "EVICTED"),
    ("B09-shm-limit",
     refused("Evicted", 'Usage of EmptyDir volume "dshm" exceeds the limit "8Gi". '),
     {"volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory"}}]},
     {"what": "evicted", "resource": "shm", "own": True}, "SHM"),
    ("B39-scratch-limit",
     refused("Evicted", 'Usage of EmptyDir volume "tmp" exceeds the limit "1Gi"'),
     {"volumes": [{"name": "tmp", "emptyDir": {}}]},
     {"what": "evicted", "resource": "ephemeral-storage", "own": True}, "DISK_FULL"),
    ("B39-disk-limit", refused(
        "Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers 10Gi."),
     {}, {"what": "evicted", "resource": "ephemeral-storage", "own": True}, "DISK_FULL"),
    ("B34-pressure", refused("Evicted", "The node had condition: [DiskPressure]. "), {},
     {"what": "admission", "resource": "DiskPressure", "ran": False}, "EVICTED"),
    ("B34-out-of-gpu", refused(f"OutOf{GPU}", "Pod was rejected: Node didn't have enough resource"),
     {}, {"what": "admission", "resource": GPU, "ran": False}, "EVICTED"),
    ("B34-affinity", refused("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed"), {},
     {"what": "admission", "ran": False}, "EVICTED"),
    ("B34-other-predicate", refused("SomethingNew", "Pod was rejected: Predicate New failed"), {},
     {"what": "admission", "ran": False}, "EVICTED"),
    ("B34-preempting", refused("Preempting", "Preempted in order to admit critical pod"), {},
     {"what": "preempted", "ran": True}, "PREEMPTED"),
    ("B20-no-links", refused("UnexpectedAdmissionError", DEVICE_PLUGIN + "rpc error: code = "
     "Unknown desc = error getting list of preferred allocation devices"), {},
     {"what": "node-setup", "resource": GPU, "ran": False}, "GPU_FAULT"),
    ("B20-gpu-is-lost", refused("UnexpectedAdmissionError", DEVICE_PLUGIN + "error creating "
     "nvml.Device 2: nvml: GPU is lost, which is unexpected"), {},
     {"what": "node-setup", "resource": GPU, "ran": False}, "GPU_FAULT"),
    ("B20-unhealthy", refused("UnexpectedAdmissionError", "Pod was rejected: Allocate failed due "
     "to no healthy devices present; cannot allocate unhealthy devices nvidia.com/mig-2g.10gb"), {},
     {"what": "admission", "resource": "nvidia.com/mig-2g.10gb", "ran": False}, "EVICTED"),
    ("B20-taken", refused("UnexpectedAdmissionError", "Allocate failed due to requested number of "
     "devices unavailable for nvidia.com/gpu. Requested: 2, Available: 0"), {},
     {"what": "admission", "resource": GPU}, "EVICTED"),
    ("B20-no-device-named", refused("UnexpectedAdmissionError", "Unexpected error"), {},
     {"what": "admission", "resource": None}, "EVICTED"),
    ("node-shutdown", refused("Terminated", "Pod was terminated in response to imminent node "
     "shutdown."), {}, {"what": "node-lost", "ran": True}, "NODE_LOST"),
    ("node-shutdown-refused", refused("NodeShutdown", "Pod was rejected as the node is shutting "
     "down."), {}, {"what": "admission", "ran": False}, "EVICTED"),
    ("B35-node-lost-reason", {**RUNNING, "reason": "NodeLost", "message": "Node gpu-7 which was "
     "running pod bert-worker-2 is unresponsive"}, {}, {"what": "node-lost", "ran": True},
     "NODE_LOST"),
    ("B35-node-unknown", RUNNING, {"node": SILENT},
     {"what": "node-lost", "ran": True, "message": "node gpu-7 does not answer", "at": None},
     "NODE_LOST"),
    ("B35-node-unknown-and-deleted", RUNNING, {"node": SILENT, "deleted": True},
     {"what": "node-lost"}, "NODE_LOST"),
    ("B37-deadline", refused("DeadlineExceeded", "Pod was active on the node longer than the "
     "specified deadline"), {}, {"what": "deadline", "ran": True}, "DEADLINE"),
    ("B29-torchrun", start_error(f'{RUNC} process: exec: "torchrun": executable file not found in '
     "$PATH: unknown"), {},
     {"what": "start-error", "ran": False, "exit_code": 128, "signal": None}, "USER_ERROR"),
    ("B29-script", start_error(f'{RUNC}: exec: "/code/run.sh": permission denied: unknown'), {},
     {"what": "start-error", "message": "/code/run.sh cannot be executed in image "
      "reg.example/train:v9: permission denied"}, "USER_ERROR"),
    ("no-python", start_error(f'{RUNC}: exec: "python3": executable file not found in $PATH: '
     "unknown"), {},
     {"what": "image", "ran": False, "message": "image reg.example/train:v9 has no usable python3, "
      "which the agent needs (executable file not found in $PATH)"}, "IMAGE"),
    ("other-processor", start_error(f"{RUNC}: exec /usr/bin/python3: exec format error: unknown"),
     {}, {"what": "image"}, "IMAGE"),
    ("B29-driver", start_error(f"{RUNC}: nvidia-container-cli: initialization error: nvml error: "
     "driver/library version mismatch: unknown"), {}, {"what": "node-setup", "resource": None},
     "NODE_SETUP"),
    ("B44-cuda-too-new", start_error(f"{RUNC}: requirement error: unsatisfied condition: "
     "cuda>=12.8, please update your driver"), {}, {"what": "node-setup"}, "NODE_SETUP"),
    ("B29-128-alone", start_error("cannot join the cgroup"), {},
     {"what": "start-error", "message": "cannot join the cgroup"}, "USER_ERROR"),
    ("exit-128-of-a-program", failed(terminated(128)), {}, {"what": "exit", "signal": None}, None),
    ("B29-127", failed(terminated(127, message="sh: torchrun: not found")), {},
     {"what": "exit", "exit_code": 127,
      "message": "container pytorch ended with exit code 127: sh: torchrun: not found"}, None),
    ("killed-137", failed(terminated(137)), {}, {"what": "exit", "signal": 9, "message":
     "container pytorch was killed by signal 9, not for its memory limit"}, None),
    ("well", {**RUNNING, "phase": "Succeeded", "containerStatuses": [terminated(0, "Completed")]},
     {}, {"what": "exit", "exit_code": 0}, None),
    ("lost-by-the-node", failed(terminated(137, "ContainerStatusUnknown", start=None)), {},
     {"what": "node-lost", "ran": True}, "NODE_LOST"),
    ("F17-restarted", {**RUNNING, "containerStatuses": [{**running(), "restartCount": 1,
     "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": at(3)}}}]},
     {}, {"what": "oom-killed", "at": when(3)}, "HOST_OOM"),
    ("init-failed", {"phase": "Failed", "startTime": at(0), "initContainerStatuses": [
        terminated(1, name="agent")], "containerStatuses": [waiting("PodInitializing")]}, {},
     {"what": "start-error", "container": "agent", "ran": False,
      "message": "init container agent ended with exit code 1"}, "USER_ERROR"),
    ("earliest-container", failed(terminated(1, end=at(9)), terminated(2, end=at(7), name="b")), {},
     {"what": "exit", "container": "b"}, None),
    ("deleted-by-a-person", RUNNING, {"meta": DELETING},
     {"what": "deleted", "ran": True, "at": when(30)}, "KILLED_OUTSIDE"),
    ("deleted-and-killed", failed(terminated(137, end=at(31))), {"meta": DELETING},
     {"what": "deleted"}, "KILLED_OUTSIDE"),
    ("deleted-and-saved", {**RUNNING, "phase": "Succeeded", "containerStatuses": [
        terminated(0, end=at(30, 5))]}, {"meta": DELETING, "deleted": True}, {"what": "deleted"},
     "KILLED_OUTSIDE"),
    ("failed-and-then-deleted", failed(terminated(1, end=at(29))), {"meta": DELETING},
     {"what": "exit", "exit_code": 1}, None),
    ("F03-ended-well-and-then-deleted", {**RUNNING, "phase": "Succeeded", "containerStatuses": [
        terminated(0, end=at(29))]}, {"meta": DELETING, "deleted": True},
     {"what": "exit", "exit_code": 0}, None),
    ("gone", RUNNING, {"deleted": True}, {"what": "deleted", "ran": True, "at": None},
     "KILLED_OUTSIDE"),
    ("says-nothing", {"phase": "Failed"}, {"node": node("gpu-7")}, {"what": "exit", "message":
     "the pod has failed and does not say why: reason None, message None, no failed container "
     "among 0, no disruption announced, node Ready=True"}, None),
    ("foreign-reason", refused("Wonder", "of the world"), {}, {"what": "exit", "message":
     "the pod has failed and does not say why: reason Wonder, message of the world, no failed "
     "container among 0, no disruption announced, node not read"}, None),
]  # fmt: skip


def end(status: Plain, *, node: Plain | None = None, deleted: bool = False, **more: Any,
        ) -> PodEnd | None:  # fmt: skip
    return end_of(replica(status, **more), node, deleted=deleted)


@pytest.mark.parametrize(("status", "more", "expected", "failure"), [row[1:] for row in ENDS],
                         ids=[row[0] for row in ENDS])  # fmt: skip
def test_what_a_pod_died_of(
    status: Plain, more: Plain, expected: Plain, failure: str | None
) -> None:
    found = end(status, **more)
    assert found is not None
    seen = {name: getattr(found, name) for name in expected}
    if "usage" in seen:
        seen["usage"] = [(used.container, used.used, used.request) for used in found.usage]
    assert seen == expected
    assert (found.replica, found.pod) == ("worker-2", "bert-worker-2")
    assert found.message not in ("", "Unknown")
    judged = verdict({"lost": [as_body(found)]})
    assert (judged.failure.value if judged else None) == failure


SIDECAR = {"initContainers": [container("proxy", restartPolicy="Always")]}
LIVES: list[tuple[str, Plain, Plain]] = [
    ("runs", RUNNING, {}),
    ("starts", CREATING, {}),
    ("waits", {"phase": "Pending"}, {"on": None}),
    ("B08-announced-only", {**RUNNING, "conditions": [PREEMPTED]}, {}),
    ("node-answers", RUNNING, {"node": node("gpu-7")}),
    ("node-says-not-ready", RUNNING, {"node": node("gpu-7", ready="False")}),
    ("reason-while-running", {**RUNNING, "reason": "Evicted", "message": "?"}, {}),
    ("sidecar-restarted", {**RUNNING, "initContainerStatuses": [
        {**running("proxy"), "restartCount": 3, "lastState": {"terminated": {"exitCode": 1}}}]},
     SIDECAR),
    ("init-done", {**CREATING, "initContainerStatuses": [terminated(0, "Completed", name="agent")]},
     {}),
]  # fmt: skip


@pytest.mark.parametrize(("status", "more"), [row[1:] for row in LIVES],
                         ids=[row[0] for row in LIVES])  # fmt: skip
def test_a_pod_that_lives_has_no_end(status: Plain, more: Plain) -> None:
    assert end(status, **more) is None


def test_a_lost_node_is_told_with_its_own_words_and_time() -> None:
    lost = node("gpu-7", ready="Unknown")
    lost["status"]["conditions"][0].update(
        reason="NodeStatusUnknown", message="Kubelet stopped posting.", lastTransitionTime=at(12)
    )
    found = end(RUNNING, node=lost)
    assert found is not None
    assert (found.at, found.reason) == (when(12), "NodeStatusUnknown")
    assert found.message == "node gpu-7 does not answer: Kubelet stopped posting."


def test_a_body_is_json_and_has_every_field() -> None:
    found = end(failed(terminated(137, "OOMKilled")))
    assert found is not None
    body = json.loads(json.dumps(as_body(found)))
    assert set(body) == set(PodEnd.__dataclass_fields__)
    assert (body["at"], body["usage"]) == ("2026-01-01T10:41:00.000000Z", [])
    text = "The node was low on resource: memory. Container pytorch was using 9Gi, request is 8Gi"
    evicted = end(refused("Evicted", text))
    assert evicted is not None
    assert as_body(evicted)["usage"] == [
        {"container": "pytorch", "used": 9 * GIB, "request": 8 * GIB}
    ]


def test_a_pod_without_the_label_is_named_by_itself() -> None:
    found = end_of(pod("solo", on="gpu-1", status=failed(terminated(1, name="worker"))))
    assert found is not None
    assert found.replica == "solo"


# --- why a gang waits ---


def event(reason: str, message: str, *, name: str = "bert-worker-2", last: str = at(1)) -> Plain:
    return {"involvedObject": {"name": name}, "reason": reason, "message": message,
            "lastTimestamp": last}  # fmt: skip


def unschedulable(message: str, reason: str = "Unschedulable") -> Plain:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def claim(name: str, phase: str = "Bound") -> Plain:
    return {"metadata": {"name": name}, "status": {"phase": phase}}


def creating(reason: str, message: str = "") -> Plain:
    return {"phase": "Pending", "containerStatuses": [waiting(reason, message)]}


IMAGE = "reg.example/train:v9"
DATA = {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "s", "emptyDir": {}}]}  # fmt: skip

# (id, status, spec, other arguments, words of the sentence, final after s or None, what)
WAITS: list[tuple[str, Plain, Plain, Plain, str, float | None, str | None]] = [
    ("scheduler", unschedulable("0/5 nodes are available: 2 node(s) had untolerated taint "
     "{dedicated: online}, 3 Insufficient nvidia.com/gpu. preemption: 0/5 nodes are available"),
     {"on": None}, {}, ("no node is free for it (2 of 5: node(s) had untolerated taint "
                        "{dedicated: online}, 3 of 5: Insufficient nvidia.com/gpu)"), None, None),
    ("scheduler-event", {"phase": "Pending"}, {"on": None},
     {"events": [event("FailedScheduling", "0/2 nodes are available: 2 Insufficient cpu.")]},
     "2 of 2: Insufficient cpu", None, None),
    ("no-nodes", unschedulable("no nodes available to schedule pods"), {"on": None}, {},
     "no nodes available to schedule pods", None, None),
    ("nobody-looked", {"phase": "Pending"}, {"on": None, "schedulerName": "volcano"}, {},
     "volcano has not looked at it yet", None, None),
    ("gated", unschedulable("Scheduling is blocked", "SchedulingGated"),
     {"on": None, "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}, {},
     "Scheduling is blocked", None, None),
    ("gated-without-words", unschedulable("", "SchedulingGated"),
     {"on": None, "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}, {},
     "held back by the gates kueue.x-k8s.io/admission", None, None),
    ("native-group-in-pod", unschedulable("pod group is unschedulable, minCount (3) cannot be "
     "satisfied: 2 scheduled, 0 remaining"), {"on": None}, {}, "minCount (3)", None, None),
    ("native-group", {"phase": "Pending"}, {"on": None}, {"groups": [
        {"metadata": {"name": "bert"}, "status": {"conditions": [
            {"type": "PodGroupInitiallyScheduled", "status": "False",
             "reason": "Unschedulable"}]}}]},
     "pod group bert cannot be placed: Unschedulable", None, None),
    ("volcano-group", {"phase": "Pending"}, {"on": None}, {"groups": [
        {"metadata": {"name": "bert"}, "status": {"conditions": [
            {"type": "Unschedulable", "status": "True", "message": "3/4 tasks in gang"}]}}]},
     "pod group bert cannot be placed: 3/4 tasks in gang", None, None),
    ("group-without-status", {"phase": "Pending"}, {"on": None},
     {"groups": [{"metadata": {"name": "bert"}, "status": {}}]}, "has not looked", None, None),
    ("F18d-unbound", unschedulable("0/3 nodes are available: pod has unbound immediate "
     "PersistentVolumeClaims. preemption: 0/3 nodes are available"), {"on": None, **DATA}, {},
     "volume claims wait for a volume: data", None, None),
    ("F18d-bound-ones-are-not-named", unschedulable("0/3 nodes are available: pod has unbound "
     "immediate PersistentVolumeClaims."), {"on": None, **DATA, "volumes": [
         *DATA["volumes"], {"persistentVolumeClaim": {"claimName": "old"}}]},
     {"claims": [claim("data", "Pending"), claim("old")]},
     "volume claims wait for a volume: data", None, None),
    ("F18c-claim-missing", unschedulable('0/3 nodes are available: persistentvolumeclaim "data" '
     "not found. preemption: 0/3 nodes"), {"on": None, **DATA}, {},
     "volume claim data does not exist", 30, "config"),
    ("claim-missing-other-text", unschedulable('persistentvolumeclaim "data" not found'),
     {"on": None, **DATA}, {}, "volume claim data does not exist", 30, "config"),
    ("claim-not-in-the-list", unschedulable("0/3 nodes are available: 3 Insufficient cpu."),
     {"on": None, **DATA}, {"claims": []}, "volume claim data does not exist", 30, "config"),
    ("claim-lost", {"phase": "Pending"}, DATA, {"claims": [claim("data", "Lost")]},
     "volume claim data has lost its volume", 0, "config"),
    ("claim-waits-for-a-node", unschedulable("0/3 nodes are available: 3 Insufficient cpu."),
     {"on": None, **DATA}, {"claims": [claim("data", "Pending")]}, "Insufficient cpu", None, None),
    ("claim-without-volume", {"phase": "Pending"}, DATA, {"claims": [claim("data", "Pending")]},
     "volume claim data has no volume yet (phase Pending)", None, None),
    ("B31-zone", unschedulable("0/3 nodes are available: 3 node(s) had volume node affinity "
     "conflict."), {"on": None, **DATA}, {}, "none of the 3 nodes can reach its volume", 30,
     "config"),
    ("B31-zone-of-some", unschedulable("0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had "
     "volume node affinity conflict."), {"on": None, **DATA}, {}, "1 of 3: Insufficient cpu", None,
     None),
    ("F10a-not-found", creating("ErrImagePull", f'failed to resolve reference "{IMAGE}": {IMAGE}: '
     "not found"), {}, {}, f"image {IMAGE} does not exist", 0, "image"),
    ("F10a-manifest", creating("ErrImagePull", "manifest unknown"), {}, {}, "does not exist", 0,
     "image"),
    ("B28-401",
     creating("ErrImagePull", "failed to authorize: unexpected status: 401 Unauthorized"),
     {}, {}, "check its pull secret", 0, "image"),
    ("F10b-qps", creating("ErrImagePull", "pull QPS exceeded"), {}, {},
     f"image {IMAGE} cannot be pulled yet: pull QPS exceeded", None, None),
    ("B28-rate",
     creating("ErrImagePull", "toomanyrequests: You have reached your pull rate limit."),
     {}, {}, "cannot be pulled yet", None, None),
    ("B28-timeout", creating("ErrImagePull", "dial tcp 203.0.113.9:443: i/o timeout"), {}, {},
     "cannot be pulled yet", None, None),
    ("no-such-host-is-no-missing-image", creating("ErrImagePull", "dial tcp: lookup reg.example: "
     "no such host: not found"), {}, {}, "cannot be pulled yet", None, None),
    ("B28-back-off", creating("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'), {}, {},
     "cannot be pulled yet: Back-off", None, None),
    ("F10c-back-off-after-rate-limit", creating("ImagePullBackOff", "Back-off pulling image"), {},
     {"events": [event("Failed", "Failed to pull image: toomanyrequests")]},
     "cannot be pulled yet: Failed to pull image: toomanyrequests", None, None),
    ("B28-back-off-after-not-found", creating("ImagePullBackOff", "Back-off pulling image"), {},
     {"events": [event("Failed", "Failed to pull image: not found", last=at(2)),
                 event("Failed", "Failed to pull image: pull QPS exceeded", last=at(1)),
                 event("Failed", "Error: ErrImagePull", last=at(3))]},
     "does not exist: Failed to pull image: not found", 0, "image"),
    ("back-off-of-another-pod", creating("ImagePullBackOff", "Back-off pulling image"), {},
     {"events": [event("Failed", "Failed to pull image: not found", name="other")]},
     "cannot be pulled yet", None, None),
    ("F10c-only-the-event-tells", creating("PodInitializing"), {},
     {"events": [event("Failed", f'Failed to pull image "{IMAGE}": dial tcp: i/o timeout')]},
     f"image {IMAGE} cannot be pulled yet: dial tcp: i/o timeout", None, None),
    ("event-of-a-missing-image-is-not-final", creating("PodInitializing"), {},
     {"events": [event("Failed", f'Failed to pull image "{IMAGE}": {IMAGE}: not found')]},
     f"image {IMAGE} cannot be pulled yet: {IMAGE}: not found", None, None),
    ("event-of-an-image-that-came-at-last",
     {"phase": "Pending", "containerStatuses": [waiting("PodInitializing")],
      "initContainerStatuses": [{"name": "agent", "state": {"running": {}}}]},
     {"initContainers": [container("agent", image="reg.example/agent:1")]},
     {"events": [event("Failed", 'Failed to pull image "reg.example/agent:1": i/o timeout')]},
     "its containers are starting on gpu-7", None, None),
    ("back-off-without-words", creating("ImagePullBackOff"), {}, {}, "yet: ImagePullBackOff", None,
     None),
    ("B28-never", creating("ErrImageNeverPull", "not present with pull policy of Never"), {}, {},
     "is not on node gpu-7 and may not be pulled", 0, "config"),
    ("F10d-name", creating("InvalidImageName", "couldn't parse"), {}, {},
     f"{IMAGE} is no name of an image", 0, "image"),
    ("init-image", {"phase": "Pending", "initContainerStatuses": [
        waiting("ErrImagePull", "manifest unknown", name="agent")]},
     {"initContainers": [container("agent", image="reg.example/agent:1")]}, {},
     "image reg.example/agent:1 does not exist", 0, "image"),
    ("F18a-secret", creating("CreateContainerConfigError", 'secret "s3-cred" not found'), {}, {},
     'container pytorch cannot be created: secret "s3-cred" not found', 30, "config"),
    ("B29-key", creating("CreateContainerConfigError", "couldn't find key AWS_SECRET in Secret "
     "ml/s3-cred"), {}, {}, "couldn't find key AWS_SECRET", 30, "config"),
    ("root-image", creating("CreateContainerConfigError", "container has runAsNonRoot and image "
     "will run as root"), {}, {}, "runAsNonRoot", 30, "config"),
    ("config-cache", creating("CreateContainerConfigError", "failed to sync configmap cache: timed "
     "out waiting for the condition"), {}, {}, "failed to sync configmap cache", None, None),
    ("create-no-program", creating("CreateContainerError", 'exec: "torchrun": executable file not '
     "found in $PATH"), {}, {}, "torchrun cannot be executed", 0, "start-error"),
    ("create-driver", creating("RunContainerError", "nvidia-container-cli: nvml error"), {}, {},
     "nvml error", 0, "node-setup"),
    ("create-slow", creating("CreateContainerError", "context deadline exceeded"), {}, {},
     "cannot be created: context deadline exceeded", None, None),
    ("F18b-mount-not-found", CREATING, {}, {"events": [event("FailedMount", "MountVolume.SetUp "
     'failed for volume "data" : hostPath not found')]}, "a volume cannot be mounted", 30,
     "config"),
    ("mount-secret", CREATING, {}, {"events": [event("FailedMount", 'MountVolume.SetUp failed for '
     'volume "c" : secret "s3-cred" not found')]}, 'secret "s3-cred" not found', 30, "config"),
    ("mount-key", CREATING, {}, {"events": [event("FailedMount", "references non-existent secret "
     "key: id_rsa")]}, "non-existent secret key", 30, "config"),
    ("B31-nfs", CREATING, {}, {"events": [event("FailedMount", "MountVolume.SetUp failed for "
     'volume "nfs" : mount failed: exit status 32 Connection timed out')]}, "exit status 32", None,
     None),
    ("B31-multi-attach", CREATING, {}, {"events": [event("FailedAttachVolume", 'Multi-Attach error '
     'for volume "pvc-1c2d"')]}, "a volume is still attached to another node", None, None),
    ("events-api", CREATING, {}, {"events": [{"regarding": {"name": "bert-worker-2"},
     "reason": "FailedMount", "note": "exit status 32", "eventTime": at(2)}]}, "exit status 32",
     None, None),
    ("starting", CREATING, {}, {}, "its containers are starting on gpu-7", None, None),
    ("no-python", start_error(f'{RUNC}: exec: "python3": executable file not found in $PATH'), {},
     {}, "has no usable python3, which the agent needs", 0, "image"),
    ("ended", failed(terminated(1)), {}, {}, "ended with exit code 1", 0, "exit"),
    ("crash-loop", {"phase": "Running", "containerStatuses": [{**waiting("CrashLoopBackOff"),
     "restartCount": 2, "lastState": {"terminated": {"exitCode": 3}}}]}, {}, {}, "exit code 3", 0,
     "exit"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "spec", "more", "text", "after_s", "what"), [row[1:] for row in WAITS],
    ids=[row[0] for row in WAITS],
)  # fmt: skip
def test_why_a_gang_waits(
    status: Plain, spec: Plain, more: Plain, text: str, after_s: float | None, what: str | None
) -> None:
    found = why_pending([replica(status, **spec)], **more)
    assert found is not None
    assert found.reason.startswith("worker-2: ")
    assert text in found.reason
    assert found.final is (after_s is not None)
    assert found.final_after_s == (after_s or 0.0)
    assert (found.end.what if found.end else None) == what


def test_what_runs_or_ended_well_does_not_wait() -> None:
    well = {"phase": "Succeeded", "containerStatuses": [terminated(0, "Completed")]}
    assert why_pending([replica(RUNNING), replica(well)]) is None


def numbered(index: int, status: Plain, **more: Any) -> Plain:
    labels = {"labels": {"ffdl.airflow/replica": f"worker-{index}"}}
    return pod(f"bert-worker-{index}", container("pytorch"), status=status, meta=labels, **more)


def test_the_most_telling_replica_is_told_and_the_others_are_kept() -> None:
    pods = [
        numbered(0, unschedulable("0/1 nodes are available: 1 Insufficient cpu.")),
        numbered(1, RUNNING, on="gpu-1"),
        numbered(2, creating("InvalidImageName"), on="gpu-1"),
        numbered(3, creating("InvalidImageName"), on="gpu-1"),
    ]
    found = why_pending(pods)
    assert isinstance(found, Pending)
    assert found.reason == "worker-2, worker-3: reg.example/train:v9 is no name of an image"
    assert (found.detail["replicas"], found.detail["of"]) == (["worker-2", "worker-3"], 4)
    assert found.detail["others"] == [
        {"reason": "no node is free for it (1 of 1: Insufficient cpu)", "replicas": ["worker-0"]}
    ]


def test_many_replicas_are_counted() -> None:
    pods = [numbered(i, unschedulable("no nodes available")) for i in range(16)]
    found = why_pending(pods)
    assert found is not None
    assert found.reason == "worker-0 to worker-15 (16 replicas): no nodes available"


def test_the_numbers_of_the_scheduler_are_kept() -> None:
    text = "0/5 nodes are available: 1 Too many pods, 4 node(s) didn't match Pod's node affinity."
    found = why_pending([numbered(0, unschedulable(text))])
    assert found is not None
    assert found.detail["nodes"] == 5
    assert found.detail["lacking"] == {
        "Too many pods": 1, "node(s) didn't match Pod's node affinity": 4,
    }  # fmt: skip


def test_what_is_missing_is_named_as_data() -> None:
    message = "couldn't find key AWS_SECRET in Secret ml/s3-cred"
    found = why_pending([replica(creating("CreateContainerConfigError", message))])
    assert found is not None
    assert found.detail["missing"] == {"key": "AWS_SECRET", "kind": "Secret", "name": "s3-cred"}


def test_what_is_final_is_judged_like_a_pod_that_ended() -> None:
    found = why_pending([replica(creating("InvalidImageName"))])
    assert found is not None
    assert found.end is not None
    judged = verdict({"lost": [as_body(found.end)]})
    assert judged is not None
    assert (judged.failure.value, judged.certain, judged.ran) == ("IMAGE", True, False)
