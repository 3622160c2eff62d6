"""Evidence in, verdict out: the data file of cases, and what the agent itself has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.failures import log_lines, log_rules
from ffdl_airflow.core.failures.classes import POLICIES, FailureClass
from ffdl_airflow.core.failures.rules import judge

CASES = yaml.safe_load((Path(__file__).parent / "failure_cases.yaml").read_text())
# What the case's class must cost and whether it starts again, from the table of the contract.
COSTS = {
    "USER_ERROR", "CONFIG", "IMAGE", "DATA_MISSING", "STORAGE_AUTH", "AUTH", "LICENSE",
    "COMM_MISUSE", "NUMERIC", "HOST_OOM", "GPU_OOM", "SHM", "DISK_FULL", "COMM_TIMEOUT",
    "COMM_ERROR", "RENDEZVOUS", "START_ORDER", "PEER_LOST", "STORAGE_TRANSIENT", "CLOCK", "HANG",
    "UNKNOWN",
}  # fmt: skip


def result(case: dict[str, Any]) -> dict[str, Any]:
    """The body of an AttemptEnded event, as the coordinator writes it."""
    signal = case.get("signal")
    kind = protocol.CAUSE_SIGNAL if signal else protocol.CAUSE_EXIT
    cause = {
        "kind": kind, "replica": "worker-1", "rank": 1, "signal": signal,
        "exit": None if signal else case.get("exit", 1), "text": "rank 1 has ended",
    }  # fmt: skip
    return {"ok": False, "cause": cause, "tail": case["tail"], "last_step": case.get("step")}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_log_tells_the_class(case: dict[str, Any]) -> None:
    verdict = judge(result(case), resumed=case.get("resumed", True))
    assert (verdict.failure.value, verdict.replica, verdict.rank) == (case["class"], "worker-1", 1)
    assert case.get("line", "") in verdict.cause
    assert case.get("without", "no such word") not in verdict.cause
    if "certain" in case:
        assert verdict.certain is case["certain"]


def test_each_case_has_a_name_of_its_own() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_noise_of_survivors_changes_nothing(case: dict[str, Any]) -> None:
    """What other ranks and the launcher print around a failure is not its cause."""
    if case.get("signal") == 9 or case["class"] in ("UNKNOWN", "PEER_LOST"):
        return  # there nothing was said, or nothing but this
    before = "[rank9]:[W301 22:00:01 socket.cpp:464] The server socket has failed to bind\n"
    after = (
        "\nW0301 22:00:02.000000 12 torch/distributed/elastic/api.py:897] Sending process 31 "
        "closing signal SIGTERM\n[rank9]: ncclRemoteError: A call failed\n"
        "[rank9]: Connection reset by peer\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    )
    noisy = {**case, "tail": before + case["tail"] + after}
    assert judge(result(noisy), resumed=case.get("resumed", True)).failure.value == case["class"]


BY_AGENT = [
    ("stop", None, "CANCELLED", True, True),
    ("deadline", None, "DEADLINE", True, True),
    ("hang", None, "HANG", False, True),
    ("agent-lost", None, "KILLED_OUTSIDE", False, True),
    ("terminated", None, "KILLED_OUTSIDE", False, True),
    ("oom", None, "HOST_OOM", False, True),
    ("start", None, "USER_ERROR", True, False),
    ("placement-timeout", None, "RENDEZVOUS", False, False),
    ("preflight", "command", "USER_ERROR", True, False),
    ("preflight", "cwd", "DATA_MISSING", False, False),
    ("preflight", "required-path", "DATA_MISSING", False, False),
    ("preflight", "checkpoint", "CKPT_CORRUPT", False, False),
    ("preflight", "disk", "DISK_FULL", False, False),
    ("preflight", "leftover", "NODE_SETUP", False, False),
    ("preflight", "port", "START_ORDER", False, False),
    ("preflight", "interface", "CONFIG", False, False),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "check", "failure", "certain", "ran"), BY_AGENT)
def test_what_the_agent_has_seen_is_not_asked_of_the_log(
    kind: str, check: str | None, failure: str, certain: bool, ran: bool
) -> None:
    cause = {"kind": kind, "check": check, "text": "worker-1 has lost it", "replica": "worker-1"}
    verdict = judge({"cause": cause, "tail": "torch.OutOfMemoryError: CUDA out of memory"})
    assert (verdict.failure.value, verdict.certain, verdict.ran) == (failure, certain, ran)
    assert verdict.cause == "worker-1 has lost it"


def test_a_result_that_says_nothing_is_unknown() -> None:
    verdict = judge({})
    assert verdict.failure is FailureClass.UNKNOWN
    assert "exit code None" in verdict.cause


def test_a_cause_without_words_is_told_by_its_class() -> None:
    assert judge({"cause": {"kind": "hang"}}).cause == "HANG"
    assert "before the start" in judge({"cause": {"kind": "preflight", "check": "disk"}}).cause


@pytest.mark.parametrize("failure", list(FailureClass))
def test_every_class_has_a_policy(failure: FailureClass) -> None:
    policy = POLICIES[failure]
    assert policy.restart in ("never", "once", "always")
    assert policy.costs is (failure.value in COSTS)
    assert policy.next_step[0].islower()
    assert not policy.next_step.endswith(".")


def test_every_rule_is_for_a_class_that_a_log_can_show() -> None:
    tables = (log_rules.CAUSES, log_rules.EXCEPTIONS, log_rules.SYMPTOMS, log_rules.PEERS)
    shown = {rule.failure.value for table in tables for rule in table}
    by_control_plane = {
        "IMAGE", "EVICTED", "PREEMPTED", "PREEMPTED_BEFORE_START", "NODE_LOST", "UNSCHEDULABLE",
        "QUOTA",
    }  # fmt: skip
    by_agent = {"HANG", "DEADLINE", "IDLE", "CANCELLED", "UNKNOWN"}
    assert shown == {failure.value for failure in FailureClass} - by_control_plane - by_agent
    tested = {case["class"] for case in CASES}
    assert shown <= tested


def test_a_verdict_is_stored_with_what_follows() -> None:
    document = judge(result({"tail": "KeyError: 'x'"})).document()
    assert document == {
        "class": "USER_ERROR", "cause": "KeyError: 'x'", "certain": True, "costs": True,
        "replica": "worker-1", "rank": 1, "ran": True,
        "next_step": POLICIES[FailureClass.USER_ERROR].next_step,
    }  # fmt: skip


def test_long_lines_are_cut() -> None:
    assert len(judge(result({"tail": f"ValueError: {'x' * 4000}"})).cause) == log_rules.LINE_LENGTH


@pytest.mark.parametrize(
    ("raw", "rank", "text"),
    [
        ("[rank2]: x", "2", "x"),
        ("[default2]:[rank2]: x", "2", "x"),
        ("[1,3]<stderr>:x", "1.3", "x"),
        ("12: x", "12", "x"),
        ("12:34:56 x", "", "12:34:56 x"),
        ("x", "", "x"),
    ],
)
def test_prefixes_of_launchers_are_read(raw: str, rank: str, text: str) -> None:
    (line,) = log_lines.read(raw)
    assert (line.rank.strip("."), line.text) == (rank, text)


@pytest.mark.parametrize(
    "line",
    [
        "INFO:root:x", "[INFO] x", "2026-03-01 22:00:00,123 - trainer - WARNING - x", "I0301 x",
        "W tensorflow/core x", "[W ProcessGroupNCCL.cpp:1] x", "host:1:2 [0] NCCL INFO x",
        "DEBUG: x",
    ],
)  # fmt: skip
def test_what_a_logger_calls_harmless_is_left_out(line: str) -> None:
    assert log_lines.read(line) == []


@pytest.mark.parametrize(
    "line",
    ["host:1:2 [0] init.cc:497 NCCL WARN x", "INFORMATION x", "I think x", "E tensorflow/core x",
     "ValueError: INFO is no level", "ERROR:root:x"],
)  # fmt: skip
def test_the_rest_is_kept(line: str) -> None:
    assert [found.text for found in log_lines.read(line)] == [line]


def test_a_chain_of_exceptions_is_one_death() -> None:
    tail = """
Traceback (most recent call last):
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
ValueError: b
[rank1]: TypeError: c
"""
    assert log_lines.deaths(log_lines.read(tail)) == [["KeyError: 'a'", "ValueError: b"],
                                                      ["TypeError: c"]]  # fmt: skip
