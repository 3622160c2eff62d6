"""Asking for a checkpoint, stopping with and without one, and the time limit."""

from __future__ import annotations

import signal
import time

import pytest

from ffdl_airflow.agent import protocol
from tests.conftest import wait_for

ASKS = """
import os, sys, time
import ffdl
step = 0
while True:
    step += 1
    ffdl.progress(step)
    if ffdl.should_save():
        with ffdl.checkpoint(step) as path:
            (path / "weights").write_text(str(step))
        print("saved", ffdl.should_save(), flush=True)
        if "exit" in sys.argv:
            sys.exit(0)
    time.sleep(0.02)
"""
SIGNALLED = """
import os, signal, sys, time
def save(*_):
    folder = os.path.join(os.environ["FFDL_CHECKPOINT_DIR"], "step-000000000004")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "weights"), "w") as file:
        file.write("x")
    print("saved", flush=True)
    if "exit" in sys.argv:
        sys.exit(0)
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGUSR1, save)
print("up", flush=True)
while True:
    time.sleep(600)
"""
TERMINATED = """
import os, signal, sys, time
def save(*_):
    time.sleep(0.5)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True:
    time.sleep(600)
"""


def save(placement) -> int:
    return placement.request("POST", protocol.PATH_SAVE, {"why": "a person asked"})[0]


def running(placement, word: str = "", rank: int = 0):
    placement.up().go()
    placement.wait_state(protocol.RUNNING)
    wait_for(lambda: word in placement.rank_log(rank))
    return placement


def test_should_save_is_true_once_per_request(make_placement):
    placement = running(make_placement(ASKS))
    wait_for(lambda: placement.status()["step"])
    for count in (1, 2):
        assert save(placement) == 202
        placement.wait_journal("CheckpointSealed", count=count)
        wait_for(lambda count=count: placement.rank_log().split() == ["saved", "False"] * count)
    assert [e["body"]["why"] for e in placement.journal("SaveRequested")] == ["a person asked"] * 2
    assert placement.status()["state"] == protocol.RUNNING


def test_a_save_needs_a_running_attempt(make_placement):
    assert save(make_placement(ASKS).up()) == 409


def test_a_signal_goes_only_to_those_that_catch_it(make_placement):
    placement = running(make_placement(SIGNALLED, replicas=2), "up")
    wait_for(lambda: "up" in placement.rank_log(1))
    save(placement)
    assert placement.wait_journal("CheckpointSealed")["body"]["step"] == 4
    assert placement.status()["state"] == protocol.RUNNING
    assert len(placement.survivors()) == 2, "rank 1 does not catch it and lives"


@pytest.mark.parametrize("trainer", [ASKS, SIGNALLED], ids=["module", "signal"])
@pytest.mark.parametrize("how", ["exit", "stay"])
def test_stop_save_waits_for_the_checkpoint(make_placement, trainer, how):
    placement = running(
        make_placement(trainer, args=(how,), grace_s=15), "up" if trainer is SIGNALLED else ""
    )
    if trainer is ASKS:
        wait_for(lambda: placement.status()["step"])
    began = time.monotonic()
    placement.stop("save", "hold")
    body = placement.ended()
    assert time.monotonic() - began < 8, "not the whole grace"
    assert body["cause"]["kind"] == protocol.CAUSE_STOP
    assert body["last_checkpoint"]
    sealed = placement.journal("CheckpointSealed")[0]
    assert sealed["seq"] < placement.journal("AttemptEnded")[0]["seq"]
    placement.wait_state(protocol.HOLDING)


def test_stop_save_gives_up_after_the_grace(make_placement):
    trainer = "import ffdl, time; ffdl.progress(1); print('up', flush=True); time.sleep(600)"
    placement = running(make_placement(trainer, grace_s=0.5), "up")
    wait_for(lambda: placement.status()["step"] == 1)
    placement.stop("save", "leave")
    body = placement.ended()
    assert body["last_checkpoint"] is None
    assert body["ranks"][0]["signal"] == signal.SIGTERM
    placement.wait_gone()


def test_who_cannot_be_asked_gets_sigterm_and_the_grace(make_placement):
    placement = running(make_placement(TERMINATED, grace_s=5, term_s=0.1), "up")
    placement.stop("save", "leave")
    assert placement.ended()["ranks"][0]["exit"] == 0
    assert placement.rank_log().split() == ["up", "saved"]


def test_stop_now_does_not_wait_for_a_save_under_way(make_placement):
    trainer = "import ffdl, time; ffdl.progress(1); print('up', flush=True); time.sleep(600)"
    placement = running(make_placement(trainer, grace_s=60), "up")
    wait_for(lambda: placement.status()["step"] == 1)
    placement.stop("save", "hold")
    placement.wait_state(protocol.STOPPING)
    placement.stop("now", "leave")
    placement.ended()
    placement.wait_gone()


def test_the_time_limit_saves_stops_and_leaves(make_placement):
    placement = make_placement(ASKS, replicas=2).up()
    placement.go(time_left_s=0.8)
    body = placement.ended()
    assert body["cause"]["kind"] == protocol.CAUSE_DEADLINE
    assert body["last_checkpoint"]
    assert body["slot_seconds_running"] >= 1.6
    placement.wait_gone()


@pytest.mark.parametrize("body", [{"mode": "later"}, {"mode": "now", "then": "dance"}])
def test_a_wrong_stop_is_refused(make_placement, body):
    placement = make_placement(ASKS).up()
    code, document = placement.request("POST", protocol.PATH_STOP, body)
    assert code == 400
    assert "allowed are" in document["text"]
