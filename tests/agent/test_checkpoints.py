"""Checkpoints: sealed before the trainer goes on, kept as long as needed, refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ffdl_airflow.agent import protocol, sealing
from ffdl_airflow.core.failures.rules import judge
from tests.conftest import wait_for

SAVES = """
import os, sys, time
import ffdl
resume = ffdl.resume()
first = resume.step + 1 if resume else 1
for step in range(first, int(sys.argv[1]) + 1):
    ffdl.progress(step, loss=1 / step)
    if step % 5 == 0:
        with ffdl.checkpoint(step) as path:
            (path / "weights").write_text(str(step))
        name = "step-%012d" % step
        listed = os.listdir(os.environ["FFDL_CHECKPOINT_DIR"])
        print("sealed", step, name in listed, flush=True)
"""


def steps_of(placement) -> list[int]:
    return [step for step, _ in protocol.list_checkpoints(str(placement.checkpoints))]


def make_sealed(folder: Path, step: int, text: str = "x") -> Path:
    path = folder / protocol.step_dir(step)
    path.mkdir(parents=True)
    (path / "weights").write_text(text)
    protocol.seal_checkpoint(str(path), step=step, attempt=1, world_size=1, generation=None)
    return path


@pytest.mark.parametrize("replica", ["worker-0", "worker-1"])
def test_a_checkpoint_is_on_disk_and_in_the_journal_when_the_block_ends(make_placement, replica):
    """Also when the rank that writes sits with a follower."""
    trainer = f"import os, sys\nif os.environ['FFDL_REPLICA'] != '{replica}': sys.exit()\n" + SAVES
    placement = make_placement(trainer, replicas=2, args=("10",), generation="gen-1", keep=5).up()
    placement.go()
    body = placement.ended()
    assert body["ok"], placement.story()
    assert body["last_checkpoint"] == 10
    assert body["last_step"] == 10
    rank = int(replica[-1])
    assert placement.rank_log(rank).split("\n")[:2] == ["sealed 5 True", "sealed 10 True"]
    assert steps_of(placement) == [10, 5]
    manifest, fault = protocol.check_checkpoint(str(placement.checkpoints / protocol.step_dir(10)))
    assert fault is None
    assert (manifest["world_size"], manifest["generation"], manifest["attempt"]) == (2, "gen-1", 1)
    entries = placement.journal("CheckpointSealed")
    assert [entry["body"]["step"] for entry in entries] == [5, 10]
    assert entries[-1]["body"]["sha256"] == manifest["sha256"]
    assert entries[-1]["body"]["bytes"] == 2
    assert list((placement.checkpoints / "tmp").iterdir()) == []


def test_old_ones_go_but_claims_and_the_newest_stay(make_placement):
    placement = make_placement(SAVES, args=("30",), keep=2).up()
    claims = placement.checkpoints / "KEEP"
    claims.mkdir()
    (claims / protocol.step_dir(5)).touch()
    placement.go()
    assert placement.ended()["ok"]
    assert steps_of(placement) == [30, 25, 5]


def test_the_one_resumed_from_stays_until_a_newer_is_sealed(tmp_path):
    """Broken newer ones of an earlier attempt must not push it out."""
    for step in (5, 10, 15, 20):
        make_sealed(tmp_path, step)

    def expire(*sealed_now: int) -> list[int]:
        sealing.expire(str(tmp_path), keep=1, sealed_now=set(sealed_now), resume_step=10)
        return [step for step, _ in protocol.list_checkpoints(str(tmp_path))]

    assert expire() == [20, 15, 10], "15 and 20 were passed over when the attempt began"
    assert expire(15) == [20, 15]


def test_a_step_that_is_done_again_replaces_its_checkpoint(make_placement):
    placement = make_placement(SAVES, args=("10",)).up()
    old = make_sealed(placement.checkpoints, 5)
    redone = make_sealed(placement.checkpoints, 10, "of an earlier attempt")
    placement.go(attempt=2, resume_from=str(old), resume_step=5)
    assert placement.ended(attempt=2)["ok"]
    assert (redone / "weights").read_text() == "10"
    assert protocol.check_checkpoint(str(redone))[1] is None
    assert protocol.read_json(str(redone / "MANIFEST.json"))["attempt"] == 2


def test_leftovers_of_an_older_attempt_go_at_go(make_placement):
    placement = make_placement(SAVES, args=("5",)).up()
    left = placement.checkpoints / "tmp" / "step-000000000099.1"
    left.mkdir(parents=True)
    (left / "half").write_text("x")
    aside = placement.checkpoints / "tmp" / "step-000000000003.replaced"
    make_sealed(placement.checkpoints, 3).rename(aside)
    placement.go(attempt=2)
    placement.ended(attempt=2)
    assert not left.exists()
    assert steps_of(placement) == [5, 3], "a rename that a crash cut in two is taken back"


SHARDED = """
import os, sys, time
import ffdl
rank = os.environ["RANK"]
with ffdl.checkpoint(7, shards=2) as path:
    (path / ("part-" + rank)).write_text(rank)
    if len(sys.argv) > 1 and rank == "1":
        time.sleep(0.3)
        raise KeyError("no such tensor")
print("sealed", os.listdir(os.environ["FFDL_CHECKPOINT_DIR"] + "/step-000000000007"))
"""


def test_shards_are_sealed_together(make_placement):
    placement = make_placement(SHARDED, replicas=2).up()
    placement.go()
    assert placement.ended()["ok"], placement.story()
    for rank in (0, 1):
        assert all(name in placement.rank_log(rank) for name in ("part-0", "part-1", "MANIFEST"))
    assert len(placement.journal("CheckpointSealed")) == 1


def test_one_shard_that_is_given_up_refuses_the_step_for_all(make_placement):
    placement = make_placement(SHARDED, replicas=2, args=("fail",), settle_s=1.0).up()
    placement.go()
    assert not placement.ended()["ok"]
    assert "CheckpointError" in placement.rank_log(0)
    assert "KeyError: 'no such tensor'" in placement.rank_log(1)
    assert steps_of(placement) == []
    (entry,) = placement.journal("CheckpointRefused")
    assert "KeyError" in entry["body"]["reason"]


def test_two_shards_of_one_name_are_an_error_that_names_the_file(make_placement):
    trainer = """
import os
import ffdl
with ffdl.checkpoint(3, shards=2) as path:
    (path / "deep").mkdir()
    (path / "deep" / "weights.npz").write_text(os.environ["RANK"])
"""
    placement = make_placement(trainer, replicas=2, settle_s=1.0).up()
    placement.go()
    body = placement.ended()
    assert not body["ok"]
    for rank in (0, 1):
        assert "CheckpointError: checkpoint of step 3 was refused" in placement.rank_log(rank)
        assert "both wrote deep/weights.npz: with shards=2" in placement.rank_log(rank)
    assert steps_of(placement) == []
    verdict = judge(body)
    assert (verdict.failure.value, verdict.certain) == ("USER_ERROR", True)


def test_a_third_rank_of_two_shards_is_told_so(make_placement):
    trainer = """
import os, time
import ffdl
if os.environ["RANK"] == "2":
    while not os.path.exists(os.environ["FFDL_CHECKPOINT_DIR"] + "/step-000000000007"):
        time.sleep(0.01)
with ffdl.checkpoint(7, shards=2) as path:
    (path / os.environ["RANK"]).write_text("x")
"""
    placement = make_placement(trainer, replicas=3).up()
    placement.go()
    assert not placement.ended()["ok"]
    assert "more than 2 ranks save it: pass shards=" in placement.rank_log(2)
    assert "CheckpointError" not in placement.rank_log(0) + placement.rank_log(1)
    assert steps_of(placement) == [7]


ALL_SAVE = """
import os, sys
import ffdl
rank = os.environ["RANK"] if sys.argv[1] == "different" else "all"
for step in range(1, 5):
    ffdl.progress(step, loss=1 / step)
    with ffdl.checkpoint(step) as path:
        (path / ("weights-" + rank)).write_text(rank * 100000)
        (path / ("bias-" + rank)).write_text(rank)
print("through", flush=True)
"""


def test_ranks_that_save_the_same_step_never_mix_and_are_told_what_is_lost(make_placement):
    placement = make_placement(ALL_SAVE, replicas=2, args=("different",), keep=9).up()
    placement.go()
    assert placement.ended()["ok"], placement.story()
    assert [placement.rank_log(rank).count("through") for rank in (0, 1)] == [1, 1]
    assert steps_of(placement) == [4, 3, 2, 1]
    for _, path in protocol.list_checkpoints(str(placement.checkpoints)):
        manifest, fault = protocol.check_checkpoint(path)
        assert fault is None
        names = [entry["name"] for entry in manifest["files"]]
        assert names in (["bias-0", "weights-0"], ["bias-1", "weights-1"])
    assert len(placement.journal("CheckpointSealed")) == 4
    assert placement.journal("CheckpointRefused") == []
    warned = [entry["body"]["text"] for entry in placement.journal("WatchdogWarned")]
    assert 1 <= len(warned) <= 2, "once for each rank that has lost files"
    assert all("pass shards=2" in text for text in warned)
    logs = placement.rank_log(0) + placement.rank_log(1)
    assert logs.count("pass shards=2") == len(warned)
    assert list((placement.checkpoints / "tmp").iterdir()) == []


def test_ranks_that_save_the_same_files_need_no_word(make_placement):
    placement = make_placement(ALL_SAVE, replicas=3, args=("same",), keep=9).up()
    placement.go()
    assert placement.ended()["ok"], placement.story()
    assert steps_of(placement) == [4, 3, 2, 1]
    assert len(placement.journal("CheckpointSealed")) == 4
    assert placement.journal("WatchdogWarned") == []
    assert {placement.rank_log(rank) for rank in (0, 1, 2)} == {"through\n"}
    assert list((placement.checkpoints / "tmp").iterdir()) == []


def test_what_differs_in_bytes_only_is_seen(tmp_path):
    sealed = make_sealed(tmp_path, 5, "one")
    other = tmp_path / "other"
    other.mkdir()
    (other / "weights").write_text("two")
    assert sealing.differs(str(other), str(sealed), by_content=True)
    assert not sealing.differs(str(other), str(sealed), by_content=False)
    (other / "weights").write_text("one")
    assert not sealing.differs(str(other), str(sealed), by_content=True)
    assert not sealing.differs(str(other), str(tmp_path / "deleted"), by_content=True)


def test_a_rank_may_save_a_step_again(make_placement):
    trainer = """
import ffdl
for text in ("first", "second"):
    with ffdl.checkpoint(5) as path:
        (path / "weights").write_text(text)
"""
    placement = make_placement(trainer).up()
    placement.go()
    assert placement.ended()["ok"], placement.story()
    path = placement.checkpoints / protocol.step_dir(5)
    assert (path / "weights").read_text() == "second"
    assert protocol.check_checkpoint(str(path))[1] is None
    assert placement.journal("WatchdogWarned") == []


@pytest.mark.parametrize("name", ["..", "", "step-000000000005.1", "step-000000000005.1.rank-0-/a"])
def test_a_part_lies_in_tmp_and_nowhere_else(name):
    with pytest.raises(ValueError, match="no directory of a checkpoint"):
        sealing.part_path("/checkpoints", name)


REFUSED = """
import os, sys
import ffdl
def attempt(work):
    try:
        with ffdl.checkpoint(5) as path:
            work(path)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
def broken(path):
    raise ZeroDivisionError("of the trainer")
def full(path):
    with (path / "weights").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
for name in sys.argv[1:]:
    attempt({"broken": broken, "full": full, "nothing": lambda path: None}[name])
print(os.listdir(os.environ["FFDL_CHECKPOINT_DIR"] + "/tmp"))
"""


def test_a_refused_checkpoint_is_an_entry_and_an_exception(make_placement):
    placement = make_placement(REFUSED, args=("nothing", "broken")).up()
    placement.go()
    assert placement.ended()["ok"], placement.story()
    first, second, left = placement.rank_log().splitlines()
    assert first.startswith("CheckpointError checkpoint of step 5 was refused: no file was written")
    assert second == "ZeroDivisionError of the trainer"
    assert left == "[]"
    reasons = [entry["body"]["reason"] for entry in placement.journal("CheckpointRefused")]
    assert len(reasons) == 2
    assert "ZeroDivisionError" in reasons[1]
    assert steps_of(placement) == []


def test_a_full_disk_refuses_the_checkpoint_and_the_run_goes_on(make_placement, small_disk):
    placement = make_placement(
        REFUSED, args=("full",), checkpoint_dir=str(small_disk / "checkpoints")
    ).up()
    placement.go()
    assert placement.ended()["ok"], placement.story()
    first, left = placement.rank_log().splitlines()
    assert first.startswith("CheckpointError checkpoint of step 5 cannot be written")
    assert "No space left" in first
    assert left == "[]"
    (entry,) = placement.journal("CheckpointRefused")
    assert "No space left" in entry["body"]["reason"]


OWN = """
import os, sys, time
folder = os.path.join(os.environ["FFDL_CHECKPOINT_DIR"], "step-000000000008")
os.makedirs(folder)
with open(os.path.join(folder, "weights"), "w") as file:
    file.write("half")
    file.flush()
    if "fail" in sys.argv:
        sys.exit(1)
    file.write(" and half")
if "wait" in sys.argv:
    time.sleep(600)
"""


@pytest.mark.parametrize("how", ["wait", "end"])
def test_a_directory_that_the_trainer_writes_itself_is_sealed(make_placement, how):
    placement = make_placement(OWN, args=(how,)).up()
    placement.go()
    entry = placement.wait_journal("CheckpointSealed")
    assert entry["body"]["step"] == 8
    assert protocol.check_checkpoint(entry["body"]["path"])[1] is None
    if how == "wait":
        assert placement.wait_state(protocol.RUNNING)["checkpoint"]["step"] == 8
        placement.stop(then="leave")
    placement.ended()


def test_what_a_failed_trainer_left_half_written_is_never_sealed(make_placement):
    placement = make_placement(OWN, args=("fail",), heartbeat_s=5).up()
    placement.go()
    assert not placement.ended()["ok"]
    placement.plan["replicas"][0]["command"][-1] = "end"
    waits = make_placement("import time; time.sleep(1)", heartbeat_s=0.1)
    waits.plan["checkpoint_dir"] = placement.plan["checkpoint_dir"]
    waits.write_plan()
    waits.up().go(attempt=2)
    waits.ended(attempt=2)
    assert steps_of(placement) == [8]
    assert not waits.journal("CheckpointSealed")
    assert not placement.journal("CheckpointSealed")


MANY_OWN = """
import os, signal, sys, time
root = os.environ["FFDL_CHECKPOINT_DIR"]
for step in (8, 9, 10):
    folder = os.path.join(root, "step-%012d" % step)
    os.makedirs(folder)
    with open(os.path.join(folder, "weights"), "w") as file:
        file.write(str(step))
if sys.argv[1] == "wait":
    time.sleep(600)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(1)
"""


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_what_a_newer_one_proves_whole_is_sealed_before_a_failed_attempt_ends(make_placement, how):
    """The newest may be half-written and stays as it is; no heartbeat comes in between."""
    placement = make_placement(MANY_OWN, args=(how,), heartbeat_s=5).up()
    placement.go()
    body = placement.ended()
    assert not body["ok"]
    assert body["last_checkpoint"] == 9
    kinds = [entry["kind"] for entry in placement.journal("CheckpointSealed", "AttemptEnded")]
    assert kinds == ["CheckpointSealed", "CheckpointSealed", "AttemptEnded"]
    sealed = [entry["body"]["step"] for entry in placement.journal("CheckpointSealed")]
    assert sealed == [8, 9]
    assert all(protocol.check_checkpoint(e["body"]["path"])[1] is None
               for e in placement.journal("CheckpointSealed"))  # fmt: skip
    newest = placement.checkpoints / protocol.step_dir(10)
    assert [path.name for path in newest.iterdir()] == ["weights"]
    assert placement.journal("CheckpointRefused") == []


def test_several_at_once_are_sealed_from_the_oldest_to_the_newest(make_placement):
    placement = make_placement(MANY_OWN, args=("wait",)).up()
    placement.go()
    placement.wait_journal("CheckpointSealed", count=3)
    assert [e["body"]["step"] for e in placement.journal("CheckpointSealed")] == [8, 9, 10]
    assert placement.wait_state(protocol.RUNNING)["checkpoint"]["step"] == 10
    placement.stop(then="leave")
    assert placement.ended()["last_checkpoint"] == 10


def test_a_checkpoint_needs_its_agent(make_placement):
    trainer = """
import os, signal, sys, time
import ffdl
ffdl.progress(1)
try:
    with ffdl.checkpoint(1) as path:
        (path / "weights").write_text("x")
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(0.1)
        ffdl.progress(2)
        print(ffdl.should_save())
except ffdl.CheckpointError as error:
    print(error, flush=True)
for step in range(1000):
    ffdl.progress(step)
    ffdl.should_save()
print("went on", flush=True)
"""
    placement = make_placement(trainer).up()
    placement.go()
    wait_for(lambda: "went on" in placement.rank_log(), 10, placement.story)
    assert "agent has gone" in placement.rank_log()


def test_the_status_document_shows_steps_metrics_and_the_checkpoint(make_placement):
    trainer = SAVES + "\nwhile True:\n    ffdl.progress(step, samples=8)\n    time.sleep(0.01)\n"
    placement = make_placement(trainer, args=("12",)).up()
    placement.go()
    document = wait_for(
        lambda: (s := placement.status()).get("samples_per_s") and s["step"] == 12 and s
    )
    assert document["checkpoint"]["step"] == 10
    assert document["metrics"]["loss"] == pytest.approx(1 / 12)
    assert document["ranks"][0]["doing"] == "training"
    assert 100 < document["samples_per_s"] < 900
    json.dumps(document)
    placement.stop(then="leave")
    assert placement.ended()["last_step"] == 12
    assert list((placement.checkpoints / "tmp").iterdir()) == []


GIVEN_UP = """
import json, os, sys
import ffdl
def save(step):
    with ffdl.checkpoint(step) as path:
        (path / "weights").write_text(str(step))
save(5)
with open(os.path.join(os.environ["FFDL_CHECKPOINT_DIR"], "WRITER"), "w") as file:
    json.dump({"v": 1, "placement": 2}, file)
try:
    save(10)
except ffdl.CheckpointError as error:
    print(error, flush=True)
    sys.exit(3)
"""


def test_a_placement_that_was_given_up_seals_nothing(make_placement):
    """Its host did not answer, so another one was begun, and now it is heard of again."""
    placement = make_placement(GIVEN_UP).up()
    placement.go()
    placement.ended()
    why = "placement 1 was given up: placement 2 writes the checkpoints by now"
    assert why in placement.rank_log()
    assert steps_of(placement) == [5]
    (entry,) = placement.journal("CheckpointRefused")
    assert entry["body"]["reason"] == why
    placement.go(attempt=2)
    cause = placement.ended(attempt=2)["cause"]
    assert (cause["kind"], cause["check"]) == (protocol.CAUSE_PREFLIGHT, "checkpoint-dir")
    assert why in cause["text"]
