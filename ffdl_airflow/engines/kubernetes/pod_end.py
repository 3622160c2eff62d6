"""What a pod died of, read from its last state and its node.

For: one plain pod → :class:`PodEnd`, or None while it lives. Evidence in this order: the memory
limit; a reason that the kubelet gave to the whole pod; the disruption that the control plane
announced, once it takes place; the node; how the containers ended; and the deletion, which comes
before that where it was asked for before they ended. Not for: what follows (``core/failures``), and
not for pods that wait (``pending.py``). What cannot be told says what was looked at.
"""

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from ffdl_airflow.core.events import iso
from ffdl_airflow.engines.kubernetes import messages, needs, node_match
from ffdl_airflow.engines.kubernetes.messages import Said, Usage
from ffdl_airflow.engines.kubernetes.needs import Plain, name_of, spec_of
from ffdl_airflow.engines.kubernetes.pod_state import (
    UNKNOWN_CONTAINER,
    PodState,
    condition_of,
    replica_of,
    time_of,
)

_MESSAGE_LENGTH = 1000
_FIRST_SIGNAL, _LAST_SIGNAL = 129, 192  # exit codes by which runtimes report signals 1 to 64
# Reasons of the condition DisruptionTarget; what is not listed counts as an eviction.
# https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
_DISRUPTIONS = {
    "PreemptionByScheduler": "preempted",
    "PreemptionByKubeScheduler": "preempted",  # its name before 1.26
    "DeletionByPodGC": "node-lost",
}


@dataclass(frozen=True, kw_only=True)
class PodEnd:
    """How a pod ended.

    ``what``: oom-killed, evicted, preempted, preempted-before-start, node-lost, deleted, image,
    config, admission, node-setup, start-error, deadline or exit. ``reason``: the word of whoever
    ended it. ``ran``: user code may have run. ``resource``: what ran out or is broken; ``usage``:
    who used how much of it. ``own``: it went over a limit of its own, nobody else was in need.
    ``limit``: memory limit in bytes of a container that was killed for it. ``at``: when, by the
    control plane's clock. What is not known is None.
    """

    what: str
    reason: str
    message: str
    replica: str
    pod: str
    node: str | None = None
    container: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    resource: str | None = None
    usage: tuple[Usage, ...] = ()
    own: bool = False
    limit: int | None = None
    ran: bool
    at: datetime | None = None


def as_body(end: PodEnd) -> dict[str, Any]:
    """Plain data for the body of an event: every field, ``at`` as text."""
    usage = [asdict(used) for used in end.usage]
    return {**asdict(end), "usage": usage, "at": iso(end.at) if end.at else None}


def end_of(pod: Plain, node: Plain | None = None, *, deleted: bool = False) -> PodEnd | None:
    """What the pod died of; None while it lives.

    ``node``: the node it is bound to, None where it was not read. ``deleted``: the pod is gone from
    the API and this is its last state. A deletion by ourselves is told like any other's: whoever
    asked for it does not ask here.
    """
    state = PodState(pod, deleted=deleted)
    return (
        _oom(state)
        or _whole_pod(state)
        or _disrupted(state, node)
        or node_lost(state, node)
        or (_removed(state) if state.removed_first() else None)
        or _exited(state)
        or _failed(state, node)
        or _removed(state)
    )


def made(state: PodState, what: str, message: str, *, reason: str, **more: Any) -> PodEnd:
    """An end of the pod; ``more`` are further fields of :class:`PodEnd`."""
    fields = {"ran": state.ran(), "at": state.noticed_at(), **more}
    return PodEnd(
        what=what, reason=reason, message=message.strip()[:_MESSAGE_LENGTH],
        replica=replica_of(state.pod), pod=name_of(state.pod), node=state.node, **fields,
    )  # fmt: skip


def said(state: PodState, text: Said, reason: str, **more: Any) -> PodEnd:
    """An end that a text tells."""
    known = {} if text.ran is None else {"ran": text.ran}
    return made(state, text.what, text.text, reason=reason, resource=text.resource,
                usage=text.usage, own=text.own, **{**more, **known})  # fmt: skip


def _oom(state: PodState) -> PodEnd | None:
    for status, ended in state.ended():
        if ended.get("reason") == "OOMKilled":
            limits = needs.resources_of(state.container(status.get("name")), "limits")
            limit = needs.amounts(limits).get("memory")
            of = f" of {needs.bare('memory', limit)}" if limit else ""
            text = f"container {status.get('name')} went over its memory limit{of} and was killed"
            return made(state, "oom-killed", text, reason="OOMKilled", limit=limit,
                        resource="memory", **_exit(status, ended))  # fmt: skip
    return None


def _whole_pod(state: PodState) -> PodEnd | None:
    """A reason for the whole pod: only the kubelet and the node's controllers write one."""
    reason, message = (str(state.status.get(key) or "") for key in ("reason", "message"))
    if reason == "NodeLost":
        return made(state, "node-lost", message, reason=reason)
    text = messages.kubelet(reason, message) if state.over else None
    return said(state, _shm(state, text), reason) if text else None


def _shm(state: PodState, text: Said) -> Said:
    """A volume in memory that overflowed is named ``shm``; one on the disk is the disk."""
    kind, _, name = (text.resource or "").partition(" ")
    if kind != "emptyDir":
        return text
    volumes = {v.get("name"): v.get("emptyDir") for v in spec_of(state.pod).get("volumes") or ()}
    in_memory = (volumes.get(name) or {}).get("medium") == "Memory"
    return replace(text, resource="shm" if in_memory else "ephemeral-storage")


def _disrupted(state: PodState, node: Plain | None) -> PodEnd | None:
    """An announced disruption; it counts once the pod is really on its way out."""
    condition = condition_of(state.pod, "DisruptionTarget")
    leaving = state.deleted or state.over or state.asked_at() is not None
    if condition.get("status") != "True" or not leaving:
        return None
    reason, message = str(condition.get("reason")), str(condition.get("message") or "")
    at = state.condition_at("DisruptionTarget")
    if reason == "TerminationByKubelet" and (text := messages.termination(message)):
        return said(state, text, reason, at=at)
    what = _DISRUPTIONS.get(reason, "evicted")
    if reason == "DeletionByTaintManager" and _is_silent(state, node):
        what = "node-lost"
    if what == "preempted" and not state.ran():
        what = "preempted-before-start"
    return made(state, what, message or reason, reason=reason, at=at)


def _is_silent(state: PodState, node: Plain | None) -> bool:
    return state.silent if node is None else node_match.ready(node) == "Unknown"


def node_lost(state: PodState, node: Plain | None = None) -> PodEnd | None:
    """A kubelet that has not answered for the control plane's grace time; the phase stays."""
    if state.over or not _is_silent(state, node):
        return None
    if node is None:
        told = "its node has stopped to answer the control plane"
        return made(state, "node-lost", told, reason="NodeNotReady", at=state.condition_at("Ready"))
    ready = condition_of(node, "Ready")
    text = f"node {name_of(node)} does not answer"
    told = f"{text}: {ready['message']}" if ready.get("message") else text
    at = time_of(ready.get("lastTransitionTime"))
    reason = str(ready.get("reason") or "no condition Ready")
    return made(state, "node-lost", told, reason=reason, at=at)


def _removed(state: PodState) -> PodEnd | None:
    asked = state.asked_at()
    if asked is None and not state.deleted:
        return None
    if state.deleted and state.node is not None and not state.ran():
        text = (
            "the pod was removed before a container had started; no disruption was announced, "
            "but room for a more urgent pod is the usual cause"
        )
        return made(state, "preempted-before-start", text, reason="NotFound", at=asked)
    text = (
        "the pod was deleted from outside: its conditions show no preemption, eviction or lost "
        "node, and none of its containers had failed before"
    )
    return made(state, "deleted", text, reason="Deleted", at=asked)


def _exited(state: PodState) -> PodEnd | None:
    """The earliest container that failed; if none did, a pod that is over ended well."""
    failed = [pair for pair in state.ended() if pair[1].get("exitCode")]
    for status, ended in sorted(failed, key=lambda pair: str(pair[1].get("finishedAt"))):
        return _container(state, status, ended)
    if state.status.get("phase") == "Succeeded":
        return made(state, "exit", "all containers ended with 0", reason="Completed", exit_code=0)
    return None


def _container(state: PodState, status: Plain, ended: Plain) -> PodEnd:
    reason, message = str(ended.get("reason") or "Error"), str(ended.get("message") or "")
    name, fields = status.get("name"), _exit(status, ended)
    if reason in ("StartError", "ContainerCannotRun"):
        image = str(state.container(name).get("image"))
        return said(state, messages.start_error(message, image), reason, **fields)
    if reason == UNKNOWN_CONTAINER:
        return made(state, "node-lost", f"the node lost container {name}: {message}",
                    reason=reason, **fields)  # fmt: skip
    how = f"ended with exit code {fields['exit_code']}"
    if fields["signal"]:
        how = f"was killed by signal {fields['signal']}, not for its memory limit"
    text = f"container {name} {how}" + (f": {last}" if (last := _last_word(message)) else "")
    if name in state.main_names():
        return made(state, "exit", text, reason=reason, **fields)
    return made(state, "start-error", f"init {text}", reason=reason, ran=False, **fields)


def _last_word(message: str) -> str:
    """The last line, in which programs say why they end; our agent's own report is not for people.

    What it holds comes by the journal.
    """
    lines = message.strip().splitlines()
    return "" if message.startswith("{") or not lines else lines[-1]


def _failed(state: PodState, node: Plain | None) -> PodEnd | None:
    if state.status.get("phase") != "Failed":
        return None
    text = (
        f"the pod has failed and does not say why: reason {state.status.get('reason')}, message "
        f"{state.status.get('message')}, no failed container among "
        f"{len(state.statuses('containerStatuses'))}, no disruption announced, node "
        + ("not read" if node is None else f"Ready={node_match.ready(node)}")
    )
    return made(state, "exit", text, reason="Failed")


def _exit(status: Plain, ended: Plain) -> dict[str, Any]:
    """The fields of a PodEnd that tell how a container ended."""
    code = int(ended.get("exitCode") or 0)
    by_code = code - _FIRST_SIGNAL + 1 if _FIRST_SIGNAL <= code <= _LAST_SIGNAL else None
    return {
        "container": status.get("name"), "exit_code": code,
        "signal": ended.get("signal") or by_code, "at": time_of(ended.get("finishedAt")),
    }  # fmt: skip
