"""Hang or slow work: the judgement on rows, and the same with real processes."""

from __future__ import annotations

import pytest

from ffdl_airflow.agent import protocol
from ffdl_airflow.agent.detect import RankView, find_hang, progress_known
from ffdl_airflow.agent.plan import Limits
from tests.conftest import wait_for

LIMITS = Limits(first_step_s=100, hang_factor=10, hang_floor_s=60)
ROW = {
    "rank": 0, "state": "running", "connected": True, "step": 7, "step_at": "2026-01-01",
    "doing": "training", "step_time_s": 1.0, "since_step_s": 0.0, "follows_log": False,
}  # fmt: skip


def judge(*rows, running_s: float = 1000.0, age_s: float = 0.0):
    views = [
        RankView(f"worker-{number}", {**ROW, "rank": number, **row}, age_s)
        for number, row in enumerate(rows)
    ]
    return find_hang(views, running_s=running_s, known=progress_known(views), limits=LIMITS)


SILENT = {"connected": False, "step": None, "doing": None, "since_step_s": None}


@pytest.mark.parametrize(
    ("rows", "hangs"),
    [
        ([{"since_step_s": 59}], False),
        ([{"since_step_s": 61}], True),
        ([{"since_step_s": 61, "step_time_s": 7}], False),
        ([{"since_step_s": 71, "step_time_s": 7}], True),
        ([{"since_step_s": 61}, {"since_step_s": 1}], False),
        ([{"since_step_s": 61, "doing": "saving"}], False),
        ([{"since_step_s": 61}, {"since_step_s": 61, "doing": "evaluating"}], False),
        ([{"since_step_s": 61}, {"doing": "evaluating", "state": "exited"}], True),
        ([{"since_step_s": 99, "step_time_s": None}], False),
        ([{"since_step_s": 101, "step_time_s": None}], True),
        ([SILENT], False),
        ([SILENT, {"since_step_s": 61}], True),
        ([{**SILENT, "connected": True}], False),
        ([{**SILENT, "connected": True, "doing": "loading"}], True),
        ([{**SILENT, "connected": True, "doing": "evaluating"}], False),
        ([{**SILENT, "follows_log": True}], True),
    ],
)
def test_what_is_a_hang(rows, hangs):
    assert bool(judge(*rows)) == hangs


def test_an_old_row_counts_with_its_age():
    assert judge({"since_step_s": 30}, age_s=20) is None
    assert judge({"since_step_s": 30}, age_s=40)


def test_the_rank_that_is_furthest_behind_is_named():
    hang = judge({"since_step_s": 61}, {"since_step_s": 70, "step": 6})
    assert (hang.replica, hang.rank) == ("worker-1", 1)
    assert "rank 1 of worker-1 is at step 6" in hang.text


def test_the_use_meanwhile_is_evidence_and_one_that_idles_is_the_suspect():
    """cases.md D08: a collective that hangs spins at 100 %."""
    spins = {"since_step_s": 61, "gpu_percent": 100.0, "cpu_percent": 98.0}
    both = judge(spins, spins)
    assert both.text.endswith("; their GPU use is 100 to 100 %")
    one = judge(spins, spins, {**spins, "gpu_percent": 0.0})
    assert one.text.endswith("GPU use is 0 to 100 %, the low one is rank 2 of worker-2")
    assert judge({**spins, "gpu_percent": None}).text.endswith("CPU use is 98 to 98 %")
    assert "use" not in judge({"since_step_s": 61}).text


def test_ranks_that_never_connected_make_it_a_rendezvous():
    waiting = {**SILENT, "connected": True, "doing": "loading"}
    assert judge(waiting, running_s=99) is None
    assert judge(waiting, waiting).phase == "first-step"
    hang = judge(waiting, SILENT)
    assert (hang.phase, hang.replica) == ("rendezvous", "worker-1")
    assert "1 of 2 ranks are connected" in hang.text


STUCK = """
import sys, time
import ffdl
for step in range(1, 30):
    ffdl.progress(step)
    time.sleep(0.02)
time.sleep(0.55)
ffdl.progress(30, doing=sys.argv[1])
print("stuck", flush=True)
time.sleep(600)
"""


def test_a_hang_ends_the_attempt(make_placement):
    placement = make_placement(STUCK, replicas=2, args=("training",), hang_floor_s=0.8).up()
    placement.go()
    body = placement.ended()
    assert body["cause"]["kind"] == protocol.CAUSE_HANG
    assert "stuck" in body["tail"]
    assert body["last_step"] == 30
    placement.wait_state(protocol.HOLDING)


@pytest.mark.parametrize("what", ["saving", "training"])
def test_other_work_and_silence_are_no_hang(make_placement, what):
    trainer = STUCK
    if what == "training":
        trainer = STUCK.replace("import ffdl", "class ffdl: progress = lambda *_, **__: None")
    placement = make_placement(trainer, args=(what,), hang_floor_s=0.8, first_step_s=0.8).up()
    placement.go()
    wait_for(lambda: "stuck" in placement.rank_log())
    seq = placement.status()["seq"]
    wait_for(lambda: placement.status()["seq"] > seq + 10)
    assert placement.status()["state"] == protocol.RUNNING


def test_no_first_step_is_a_hang_where_progress_is_known(make_placement):
    trainer = "import ffdl, time\nwith ffdl.doing('loading'):\n    time.sleep(600)"
    placement = make_placement(trainer, first_step_s=0.5).up()
    placement.go()
    cause = placement.ended()["cause"]
    assert (cause["kind"], cause["phase"]) == (protocol.CAUSE_HANG, "first-step")


LOGS = """
import time
print("epoch 1", flush=True)
for step in range(1, 20):
    print("it %d | loss %.3f" % (step, 1 / step), flush=True)
    time.sleep(0.03)
print("no more")
time.sleep(600)
"""


def test_progress_is_read_from_the_log_of_who_does_not_import_the_module(make_placement):
    regex = r"it (?P<step>\d+) \| loss (?P<loss>[0-9.]+)"
    placement = make_placement(LOGS, progress_regex=regex, hang_floor_s=1.0).up()
    placement.go()
    document = wait_for(lambda: (s := placement.status())["step"] == 19 and s, 20, placement.story)
    assert document["metrics"]["loss"] == pytest.approx(0.053)
    assert placement.ended()["cause"]["kind"] == protocol.CAUSE_HANG
