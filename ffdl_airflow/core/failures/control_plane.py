"""What the control plane says of replicas that were lost: the first evidence that is asked.

For: the entries under ``lost`` of an AttemptEnded body, one for each replica whose pod ended
(``what``, ``message``, ``replica``, ``at``, …: the fields are those that the Kubernetes engine
writes), to a verdict. Of several the earliest is the cause, the others are its effects. Not for:
how a container ended by itself (``what: exit``): that is judged from the logs.

Three words of the control plane are none about the attempt: what it says of a time when the attempt
had ended already; a deletion where the gang was told to stop, which is how a stop looks; and a node
that did not answer for a while, long before the attempt ended of something else.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.events import parse_iso
from ffdl_airflow.core.failures.classes import FailureClass
from ffdl_airflow.core.failures.verdict import Verdict
from ffdl_airflow.core.quantities import format_bytes

F = FailureClass
Entry = Mapping[str, Any]

CLOCK_SKEW_S = 5.0
"""How far the clocks of control plane and coordinator may differ. Chosen."""
NOTICED_LATE_S = 60.0
"""A lost node is noticed after 50 s at most (kube-controller-manager, node-monitor-grace-period)
and the agents see it first; the rest is for clocks."""
BIG_USER_BYTES = 100 * 2**20
"""Who used more than this above its request caused an eviction: the kubelet's default threshold
(evictionHard memory.available) is 100Mi, so it would not have come without."""
GROWTH = (1.2, 1.3)
"""A memory limit that was too small is raised by 20 to 30 %. Chosen."""


def verdict(result: Mapping[str, Any]) -> Verdict | None:
    """The verdict on an attempt from the body of its AttemptEnded event; None: ask others."""
    entries = [entry for entry in result.get("lost") or () if _counts(entry, result)]
    if not entries:
        return None
    entry = min(entries, key=_order)
    found = _RULES[str(entry["what"])](entry)
    return replace(found, ran=found.ran or result.get("running_at") is not None)


def cause_of_exit(result: Mapping[str, Any]) -> dict[str, Any]:
    """A cause for an attempt whose coordinator left no word: the earliest container that failed."""
    entry = exit_of(result)
    if entry is None:
        return {}
    signal = entry.get("signal")
    return {
        "kind": protocol.CAUSE_SIGNAL if signal else protocol.CAUSE_EXIT,
        "replica": entry.get("replica"), "rank": None, "signal": signal,
        "exit": None if signal else entry.get("exit_code"), "text": str(entry.get("message")),
    }  # fmt: skip


def exit_of(result: Mapping[str, Any], replica: str | None = None) -> Entry | None:
    """The earliest container, of that replica or of all, that ended by itself or by a signal."""
    exits = [entry for entry in result.get("lost") or () if entry.get("what") == "exit"
             and replica in (None, entry.get("replica"))]  # fmt: skip
    return min(exits, key=_order, default=None)


def place_of(entry: Entry) -> str:
    """A replica in a sentence, with its node where it had one."""
    where = f" on {entry['node']}" if entry.get("node") else ""
    return f"{entry.get('replica')}{where}"


def _counts(entry: Entry, result: Mapping[str, Any]) -> bool:
    what, at, ended_at = entry.get("what"), entry.get("at"), result.get("ended_at")
    if what not in _RULES:
        return False
    cause = result.get("cause") or {}
    if what == "deleted" and cause.get("kind") == protocol.CAUSE_STOP:
        return False
    if at is None or ended_at is None:
        return True
    late_s = (parse_iso(at) - parse_iso(ended_at)).total_seconds()
    if what != "node-lost":
        return late_s <= CLOCK_SKEW_S
    lost = cause.get("kind") == protocol.CAUSE_AGENT_LOST
    return late_s <= NOTICED_LATE_S and (lost or late_s >= -NOTICED_LATE_S)


def _order(entry: Entry) -> tuple[bool, str, int, str]:
    """The earliest first; what has no time last; at the same time by the order of the rules."""
    at = entry.get("at")
    what = str(entry.get("what"))
    place = list(_RULES).index(what) if what in _RULES else len(_RULES)
    return at is None, str(at), place, str(entry.get("replica"))


_Rule = Callable[[Entry], Verdict]


def _verdict(entry: Entry, failure: FailureClass, *, certain: bool = False,
             advice: str | None = None) -> Verdict:  # fmt: skip
    return Verdict(
        failure=failure, cause=f"{place_of(entry)}: {entry.get('message')}", certain=certain,
        replica=entry.get("replica"), ran=bool(entry.get("ran", True)), advice=advice,
    )  # fmt: skip


def _plain(failure: FailureClass, *, certain: bool = False) -> _Rule:
    return lambda entry: _verdict(entry, failure, certain=certain)


def _oom(entry: Entry) -> Verdict:
    limit = entry.get("limit")
    if not limit:
        return _verdict(entry, F.HOST_OOM)
    low, high = (format_bytes(int(limit * factor)) for factor in GROWTH)
    advice = (
        f"raise resources.memory from {format_bytes(limit)} to {low} or {high}, or use fewer data "
        "loaders; memory-backed volumes such as /dev/shm count too"
    )
    return _verdict(entry, F.HOST_OOM, advice=advice)


def _evicted(entry: Entry) -> Verdict:
    """By its own limit, as the big user of a node in need, or as an innocent neighbour."""
    resource = str(entry.get("resource"))
    if entry.get("own"):
        return _verdict(entry, F.SHM if resource == "shm" else F.DISK_FULL)
    over = [u for u in entry.get("usage") or () if u["used"] - u["request"] > BIG_USER_BYTES]
    if not over:
        return _verdict(entry, F.EVICTED)
    big = max(over, key=lambda used: int(used["used"] - used["request"]))
    used, request = format_bytes(big["used"]), format_bytes(big["request"])
    advice = (
        f"request what is used: container {big['container']} used {used} of {resource} and had "
        f"requested {request}; nothing else to do, the job resumes from its newest checkpoint"
    )
    return _verdict(entry, F.EVICTED, advice=advice)


def _node_setup(entry: Entry) -> Verdict:
    """A device that is named is broken; without one it is the node's own software."""
    return _verdict(entry, F.GPU_FAULT if entry.get("resource") else F.NODE_SETUP)


def _deadline(entry: Entry) -> Verdict:
    advice = "raise or remove activeDeadlineSeconds of the pod, then continue the job"
    return _verdict(entry, F.DEADLINE, certain=True, advice=advice)


def _not_started(entry: Entry) -> Verdict:
    """It has a place and makes no use of it."""
    advice = "look at what keeps it from starting; the job asks for a place again by itself"
    return _verdict(entry, F.UNSCHEDULABLE, advice=advice)


def _start_error(entry: Entry) -> Verdict:
    """The container could not be started at all, or an init container has failed (not certain)."""
    return _verdict(entry, F.USER_ERROR, certain=entry.get("reason") != "Error")


_RULES: Mapping[str, _Rule] = {  # at the same time the first wins: causes before effects
    "oom-killed": _oom,
    "evicted": _evicted,
    "preempted": _plain(F.PREEMPTED),
    "preempted-before-start": _plain(F.PREEMPTED_BEFORE_START),
    "node-lost": _plain(F.NODE_LOST),
    "node-setup": _node_setup,
    "image": _plain(F.IMAGE, certain=True),
    "config": _plain(F.CONFIG, certain=True),
    "start-error": _start_error,
    "admission": _plain(F.EVICTED),
    "not-started": _not_started,
    "deadline": _deadline,
    "deleted": _plain(F.KILLED_OUTSIDE),
}
