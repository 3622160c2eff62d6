"""Lost replicas: what the control plane says is asked before the agents and the logs."""

from __future__ import annotations

from typing import Any

import pytest

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.failures import control_plane
from ffdl_airflow.core.failures.classes import POLICIES, FailureClass
from ffdl_airflow.core.failures.rules import judge

GIB, MIB = 2**30, 2**20


def at(second: int, minute: int = 0) -> str:
    return f"2026-01-01T10:{minute:02d}:{second:02d}.000000Z"


def lost(what: str, **more: Any) -> dict[str, Any]:
    """One entry, with the fields that the Kubernetes engine writes."""
    return {
        "what": what, "reason": "Because", "message": f"it was {what}", "replica": "worker-2",
        "pod": "bert-worker-2", "node": "gpu-7", "container": None, "exit_code": None,
        "signal": None, "resource": None, "usage": [], "own": False, "limit": None, "ran": True,
        "at": at(10), **more,
    }  # fmt: skip


def ended(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The body of an AttemptEnded event: the coordinator saw an agent go silent."""
    cause = {"kind": protocol.CAUSE_AGENT_LOST, "replica": "worker-2", "rank": None,
             "text": "worker-2 is silent"}  # fmt: skip
    return {"ok": False, "cause": cause, "tail": "", "lost": list(entries),
            "running_at": at(0), "ended_at": at(30), **more}  # fmt: skip


# (id, entry, class, certain, costs)
CLASSES = [
    ("B05-oom", lost("oom-killed"), "HOST_OOM", False, True),
    ("B08-preempted", lost("preempted"), "PREEMPTED", False, False),
    ("B20-broken-gpu", lost("node-setup", resource="nvidia.com/gpu"), "GPU_FAULT", False, False),
    ("B20-no-healthy-device", lost("admission", resource="nvidia.com/gpu"), "EVICTED", False,
     False),
    ("B28-image", lost("image"), "IMAGE", True, True),
    ("B29-secret", lost("config"), "CONFIG", True, True),
    ("B29-program", lost("start-error", reason="StartError"), "USER_ERROR", True, True),
    ("B29-driver", lost("node-setup"), "NODE_SETUP", False, False),
    ("init-failed", lost("start-error", reason="Error"), "USER_ERROR", False, True),
    ("B32-evicted", lost("evicted", resource="memory"), "EVICTED", False, False),
    ("B34-refused", lost("admission"), "EVICTED", False, False),
    ("B35-node-lost", lost("node-lost"), "NODE_LOST", False, False),
    ("B37-deadline", lost("deadline"), "DEADLINE", True, False),
    ("F01-before-start", lost("preempted-before-start"), "PREEMPTED_BEFORE_START", False, False),
    ("deleted-by-a-person", lost("deleted"), "KILLED_OUTSIDE", False, False),
    ("cannot-start", lost("not-started"), "UNSCHEDULABLE", False, False),
    ("shm-limit", lost("evicted", own=True, resource="shm"), "SHM", False, True),
    ("disk-limit", lost("evicted", own=True, resource="ephemeral-storage"), "DISK_FULL", False,
     True),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "failure", "certain", "costs"), [row[1:] for row in CLASSES],
                         ids=[row[0] for row in CLASSES])  # fmt: skip
def test_what_the_control_plane_says_is_the_class(
    entry: dict[str, Any], failure: str, certain: bool, costs: bool
) -> None:
    verdict = judge(ended(entry, tail="torch.OutOfMemoryError: CUDA out of memory"))
    assert (verdict.failure.value, verdict.certain, verdict.replica) == (
        failure, certain, "worker-2",
    )  # fmt: skip
    assert verdict.cause == f"worker-2 on gpu-7: {entry['message']}"
    assert POLICIES[verdict.failure].costs is costs


def test_every_word_has_a_row_of_its_own() -> None:
    assert {row[1]["what"] for row in CLASSES} == set(control_plane._RULES)


def test_a_replica_that_was_never_bound_has_no_node() -> None:
    assert judge(ended(lost("config", node=None))).cause == "worker-2: it was config"


@pytest.mark.parametrize(
    ("entries", "failure"),
    [
        ([lost("deleted", at=at(14)), lost("preempted", at=at(9))], "PREEMPTED"),
        ([lost("deleted", at=at(9)), lost("preempted", at=at(14))], "KILLED_OUTSIDE"),
        ([lost("deleted", at=at(9)), lost("oom-killed", at=at(9))], "HOST_OOM"),
        ([lost("preempted", at=None), lost("node-lost", at=at(40))], "NODE_LOST"),
        ([lost("preempted", at=None)], "PREEMPTED"),
        ([lost("exit", at=at(1), exit_code=1), lost("evicted", at=at(9))], "EVICTED"),
    ],
    ids=["F17-earliest", "earliest-although-weak", "same-time", "no-time-last", "no-time",
         "B14-exits-are-no-word"],
)  # fmt: skip
def test_of_several_the_earliest_is_the_cause(entries: list[dict[str, Any]], failure: str) -> None:
    assert judge(ended(*entries)).failure.value == failure
    assert judge(ended(*reversed(entries))).failure.value == failure


def user_error(**more: Any) -> dict[str, Any]:
    cause = {"kind": protocol.CAUSE_EXIT, "replica": "worker-0", "rank": 0, "exit": 1}
    return ended(cause=cause, tail="ValueError: bad shape", **more)


def test_exits_are_judged_from_the_logs() -> None:
    assert judge(user_error(lost=[lost("exit", exit_code=1)])).failure is FailureClass.USER_ERROR


@pytest.mark.parametrize(
    ("what", "when", "failure"),
    [
        ("preempted", at(29), "PREEMPTED"),
        ("preempted", at(34), "PREEMPTED"),
        ("preempted", at(36), "USER_ERROR"),
        ("node-lost", at(20, 1), "NODE_LOST"),
        ("node-lost", at(40, 1), "USER_ERROR"),
        ("node-lost", "2026-01-01T09:59:31.000000Z", "NODE_LOST"),
        ("node-lost", "2026-01-01T09:59:29.000000Z", "USER_ERROR"),
    ],
    ids=[
        "before",
        "clocks-differ",
        "after",
        "noticed-late",
        "long-after",
        "just-before",
        "answered-again-since",
    ],
)
def test_what_came_after_the_end_is_no_cause(what: str, when: str, failure: str) -> None:
    assert judge(user_error(lost=[lost(what, at=when)])).failure.value == failure


def test_a_node_that_took_an_agent_along_is_the_cause_however_long_it_takes() -> None:
    long_before = lost("node-lost", at="2026-01-01T08:00:00.000000Z")
    assert judge(ended(long_before)).failure is FailureClass.NODE_LOST


def test_a_lost_agent_is_told_by_its_container() -> None:
    entry = lost("exit", exit_code=137, signal=9, message="container trainer was killed")
    verdict = judge(ended(entry, lost("exit", replica="worker-0", at=at(1), exit_code=1)))
    assert (verdict.failure.value, verdict.replica) == ("KILLED_OUTSIDE", "worker-2")
    assert verdict.cause == "worker-2 on gpu-7: container trainer was killed"
    assert judge(ended()).cause == "worker-2 is silent"


def test_an_attempt_without_an_end_believes_the_control_plane() -> None:
    verdict = judge(user_error(lost=[lost("preempted", at=at(59, 50))], ended_at=None))
    assert verdict.failure is FailureClass.PREEMPTED


def test_a_stop_ends_in_deletions() -> None:
    stop = {"kind": protocol.CAUSE_STOP, "text": "stopped by a person"}
    assert judge(ended(lost("deleted"), cause=stop)).failure is FailureClass.CANCELLED
    assert judge(ended(lost("preempted"), cause=stop)).failure is FailureClass.PREEMPTED


@pytest.mark.parametrize(
    ("running_at", "ran", "expected"),
    [(at(0), False, True), (None, False, False), (None, True, True)],
)
def test_user_code_ran_where_the_attempt_had_started(
    running_at: str | None, ran: bool, expected: bool
) -> None:
    verdict = judge(ended(lost("admission", ran=ran), running_at=running_at))
    assert verdict.ran is expected


def test_a_memory_limit_is_raised_by_what_the_contract_says() -> None:
    advice = judge(ended(lost("oom-killed", limit=10 * GIB))).next_step
    assert "from 10.0 GiB to 12.0 GiB or 13.0 GiB" in advice
    assert judge(ended(lost("oom-killed"))).next_step == POLICIES[FailureClass.HOST_OOM].next_step


def used(container: str, used_bytes: int, request: int) -> dict[str, Any]:
    return {"container": container, "used": used_bytes, "request": request}


@pytest.mark.parametrize(
    ("usage", "named"),
    [
        ([used("monitor", 776 * 1024, 0), used("train", 7499 * MIB, 0)], "train used 7.3 GiB"),
        ([used("pytorch", 58 * GIB, 8 * GIB)], "pytorch used 58.0 GiB of memory and had requested"),
        ([used("pytorch", 8 * 1024, 0)], None),
        ([], None),
    ],
    ids=["B32-old-text", "B32-over-its-request", "B32-tiny-user", "nobody-named"],
)
def test_the_big_user_of_a_full_node_is_told_to_request_it(
    usage: list[dict[str, Any]], named: str | None
) -> None:
    verdict = judge(ended(lost("evicted", resource="memory", usage=usage)))
    assert verdict.failure is FailureClass.EVICTED
    assert (named or "nothing to do") in verdict.next_step


@pytest.mark.parametrize(
    ("entry", "failure", "text"),
    [
        (lost("exit", exit_code=1, message="ended: KeyError: 'x'"), "UNKNOWN", "exit code 1"),
        (lost("exit", exit_code=137, signal=9), "KILLED_OUTSIDE", "signal 9"),
        (lost("exit"), "UNKNOWN", "exit code None"),
    ],
)
def test_a_coordinator_without_a_last_word_is_told_by_its_container(
    entry: dict[str, Any], failure: str, text: str
) -> None:
    later = lost("exit", at=at(20), replica="worker-0", exit_code=99)
    verdict = judge(ended(later, entry, cause=None))
    assert (verdict.failure.value, verdict.replica) == (failure, "worker-2")
    assert text in verdict.cause
