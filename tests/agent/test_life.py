"""A placement from its agents' start to their leave."""

from __future__ import annotations

import fcntl
import json
import os
import signal

import pytest

from ffdl_airflow.agent import processes, protocol
from tests.agent.placement import TOKEN
from tests.conftest import wait_for

SHORT = "import os; print('hello from', os.environ['RANK'], os.environ['MASTER_PORT'])"
WAITS = "import time; print('up', flush=True); time.sleep(600)"


def test_a_gang_holds_runs_and_leaves(make_placement):
    placement = make_placement(SHORT, replicas=2).up()
    assert placement.go()[0] == 200
    body = placement.ended()
    assert body["ok"], placement.story()
    placement.wait_gone()
    kinds = [entry["kind"] for entry in placement.journal()]
    assert kinds == [
        "Placed", "Reserved", "Running", "RankExited", "RankExited", "AttemptEnded", "Released",
    ]  # fmt: skip
    assert [entry["seq"] for entry in placement.journal()] == list(range(1, 8))
    assert placement.rank_log(0).split()[3] == placement.rank_log(1).split()[3], "one port for all"
    assert all(agent.returncode == 0 for agent in placement.agents.values())
    for name in placement.names:
        result = protocol.read_json(str(placement.dir / "agents" / name / "result.json"))
        assert [rank["exit"] for rank in result["ranks"]] == [0]
    assert list(placement.sockets.iterdir()) == []


def test_several_ranks_in_one_replica(make_placement):
    placement = make_placement(SHORT, ranks=3).up()
    placement.go()
    assert [rank["rank"] for rank in placement.ended()["ranks"]] == [0, 1, 2]


def test_the_gang_leaves_when_not_all_join(make_placement):
    placement = make_placement(SHORT, replicas=2, placement_s=0.5).start("worker-0")
    placement.wait_gone()
    (entry,) = placement.journal()
    assert entry["kind"] == "Released"
    assert "worker-1" in entry["body"]["why"]


def test_the_hold_ends(make_placement):
    placement = make_placement(SHORT, replicas=2, hold_s=0.4).start()
    placement.wait_gone()
    kinds = [entry["kind"] for entry in placement.journal()]
    assert kinds == ["Placed", "Reserved", "HoldExpired", "Released"]
    assert placement.go()[0] == 0


def test_renew_moves_the_end_of_the_hold(make_placement):
    placement = make_placement(SHORT, hold_s=60).up()
    code, _ = placement.request("POST", protocol.PATH_RENEW, {"hold_s": 0.2})
    assert code == 200
    placement.wait_gone()
    assert placement.journal("HoldExpired")[0]["body"]["held_s"] < 30


def test_go_is_idempotent_and_older_attempts_are_refused(make_placement):
    placement = make_placement(WAITS).up()
    assert placement.go(attempt=2) == placement.go(attempt=2)
    placement.wait_state(protocol.RUNNING)
    code, document = placement.go(attempt=1)
    assert (code, document["error"]) == (409, "stale-attempt")
    code, document = placement.go(attempt=3)
    assert (code, document["error"], document["state"]) == (409, "not-holding", "running")
    assert placement.stop() == 202
    placement.ended(attempt=2)
    placement.wait_state(protocol.HOLDING)
    assert placement.go(attempt=2)[0] == 200
    assert placement.status()["state"] == protocol.HOLDING, "the same go starts nothing again"
    assert placement.go(attempt=3)[0] == 200
    placement.wait_state(protocol.RUNNING)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"attempt": 0}, "attempt"),
        ({}, "attempt"),
        ({"attempt": 1, "time_left_s": "x"}, "time_left"),
    ],
)
def test_a_wrong_go_is_refused_with_its_field(make_placement, body, field):
    placement = make_placement(SHORT).up()
    code, document = placement.request("POST", protocol.PATH_GO, body)
    assert code == 400
    assert field in document["text"]
    assert placement.status()["state"] == protocol.HOLDING


def test_without_the_token_nothing_is_answered(make_placement):
    placement = make_placement(SHORT).up()
    for path in (protocol.PATH_GO, protocol.PATH_STOP, protocol.PATH_JOIN):
        code, document = placement.request("POST", path, {"attempt": 1}, token="0" * 64)
        assert (code, document["error"]) == (403, "wrong-token")
    assert placement.request("GET", protocol.PATH_STATUS, token="")[0] == 403
    assert placement.request("GET", "/v1/secrets")[0] == 404
    assert placement.status()["state"] == protocol.HOLDING


def test_a_second_agent_for_a_replica_leaves(make_placement):
    placement = make_placement(SHORT).up()
    second = placement.start_agent("worker-0")
    assert second.wait(10) == 0
    assert placement.go()[0] == 200
    assert placement.ended()["ok"]


@pytest.mark.parametrize("fence", ["ended", "vanished"])
def test_behind_the_fence_no_agent_holds(make_placement, fence):
    placement = make_placement(SHORT)
    if fence == "ended":
        (placement.dir / protocol.FENCE_ENDED).touch()
        placement.start()
    else:
        agent = placement.start_agent("worker-0")
        placement.dir.rename(placement.root / "gone")
        assert agent.wait(10) in (0, 2)
        placement.dir.mkdir()
        (placement.root / "gone").rename(placement.dir / "was")
        return
    placement.wait_gone()
    assert placement.journal() == []


def test_a_fence_that_closes_ends_the_hold(make_placement):
    placement = make_placement(SHORT, replicas=2).up()
    (placement.dir / protocol.FENCE_ENDED).touch()
    placement.wait_gone()
    assert placement.journal()[-1]["kind"] == "Released"


def test_a_fence_that_closes_before_go_starts_nothing(make_placement):
    placement = make_placement(SHORT, heartbeat_s=5).up()
    (placement.dir / protocol.FENCE_ENDED).touch()
    placement.go()
    body = placement.ended()
    assert not body["ok"]
    assert "ended" in body["cause"]["text"]
    assert placement.rank_log(0) == ""
    placement.wait_gone()


def test_a_fence_that_closes_ends_what_runs(make_placement):
    placement = make_placement(WAITS).up()
    placement.go()
    placement.wait_state(protocol.RUNNING)
    (placement.dir / protocol.FENCE_ENDED).touch()
    assert placement.ended()["cause"]["kind"] == protocol.CAUSE_STOP
    placement.wait_gone()


def test_a_slot_that_is_taken_is_the_reason_to_leave(make_placement, tmp_path):
    placement = make_placement(SHORT, replicas=2)
    slot = tmp_path / "slot"
    slot.write_text(json.dumps({"placement": "other/7", "replica": "worker-3", "pid": 1}))
    placement.plan["replicas"][1]["slot_locks"] = [str(slot)]
    placement.write_plan()
    with slot.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        placement.start()
        placement.wait_gone()
    assert placement.agents["worker-1"].returncode == 3
    why = placement.journal("Released")[0]["body"]["why"]
    assert "worker-1" in why
    assert "other/7" in why


def test_a_slot_is_freed_of_its_last_owners_processes(make_placement, tmp_path):
    first = make_placement(WAITS, placement_id="left-behind/1")
    slot = tmp_path / "slot"
    first.plan["replicas"][0]["slot_locks"] = [str(slot)]
    first.id = "left-behind/1"
    first.write_plan()
    first.up().go()
    first.wait_state(protocol.RUNNING)
    assert json.loads(slot.read_text())["placement"] == "left-behind/1"
    first.agents["worker-0"].kill()
    assert first.survivors(), "a trainer outlives its killed agent"
    second = make_placement(SHORT)
    second.plan["replicas"][0]["slot_locks"] = [str(slot)]
    second.write_plan()
    second.up()
    assert not first.survivors()


def test_the_trainer_gets_a_clean_environment(make_placement):
    trainer = "import json, os; print(json.dumps(dict(os.environ, cwd=os.getcwd())))"
    placement = make_placement(trainer, generation="sha256-1").up()
    checkpoint = placement.checkpoints / "step-000000000003"
    checkpoint.mkdir()
    (checkpoint / "weights").write_text("1")
    protocol.seal_checkpoint(str(checkpoint), step=3, attempt=1, world_size=1, generation=None)
    placement.go(attempt=4, env={"EXTRA": "1"}, resume_from=str(checkpoint), resume_step=3)
    assert placement.ended(attempt=4)["ok"], placement.story()
    env = json.loads(placement.rank_log(0, attempt=4))
    assert env["FFDL_PLACEMENT"] == placement.id
    assert (env["FFDL_REPLICA"], env["FFDL_ATTEMPT"], env["EXTRA"]) == ("worker-0", "4", "1")
    assert env["FFDL_RESUME_FROM"] == str(checkpoint)
    assert env["MASTER_PORT"].isdigit()
    assert env["cwd"] == str(placement.root)
    assert not [name for name in env if name.startswith("AIRFLOW")]


def test_the_trainer_inherits_no_descriptor(make_placement):
    trainer = (
        "import os; print(sorted(os.listdir('/proc/self/fd')), os.readlink('/proc/self/fd/0'))"
    )
    placement = make_placement(trainer).up()
    placement.go()
    placement.ended()
    assert placement.rank_log(0).split("]")[0] == "['0', '1', '2', '3'", "3 lists the folder"
    assert "/dev/null" in placement.rank_log(0)


def test_the_agent_closes_what_it_inherits(make_placement):
    placement = make_placement(SHORT)
    reader, writer = os.pipe()
    placement.agents["worker-0"] = placement.start_agent("worker-0", pass_fds=[writer])
    os.close(writer)
    placement.wait_state(protocol.HOLDING)
    os.set_blocking(reader, False)
    assert os.read(reader, 1) == b"", "nobody else has the other end"
    os.close(reader)


def test_status_waits_for_news(make_placement):
    placement = make_placement(WAITS).up()
    before = placement.status()
    assert before["hold_left_s"] > 50
    placement.go()
    after = placement.status(after=before["seq"], wait=20)
    assert after["seq"] > before["seq"]
    document = placement.wait_state(protocol.RUNNING)
    assert document["attempt"] == 1
    found = wait_for(lambda: [r for r in placement.status()["ranks"] if r["last_line"] == "up"])
    assert found[0]["rss_bytes"] > 1 << 20
    code, tail = placement.request("GET", f"{protocol.PATH_TAIL}?replica=worker-0&rank=0&bytes=64")
    assert (code, tail["text"]) == (200, "up\n")


def test_a_stop_can_hold_again_or_leave(make_placement):
    placement = make_placement(WAITS, replicas=2).up()
    placement.go()
    placement.wait_state(protocol.RUNNING)
    placement.stop(then="hold")
    body = placement.ended()
    assert body["cause"]["kind"] == protocol.CAUSE_STOP
    assert placement.wait_state(protocol.HOLDING)["hold_left_s"] > 50
    placement.go(attempt=2)
    placement.wait_state(protocol.RUNNING)
    placement.stop(then="leave")
    placement.ended(attempt=2)
    placement.wait_gone()


@pytest.mark.parametrize("name", ["worker-0", "worker-1"])
def test_an_agent_that_is_told_to_end_takes_the_gang_along_in_order(make_placement, name):
    placement = make_placement(WAITS, replicas=2).up()
    placement.go()
    placement.wait_state(protocol.RUNNING)
    placement.agents[name].send_signal(signal.SIGTERM)
    body = placement.ended()
    assert body["cause"]["kind"] == protocol.CAUSE_TERMINATED
    assert "told to end" in body["cause"]["text"]
    placement.wait_gone()
    assert placement.journal()[-1]["kind"] == "Released"


def test_a_held_gang_uses_next_to_nothing(make_placement):
    placement = make_placement(SHORT, replicas=2, heartbeat_s=0.5).up()
    pids = [agent.pid for agent in placement.agents.values()]
    before = sum(processes.stat(pid).cpu_s for pid in pids)
    seq = placement.journal()[-1]["seq"]
    placement.status(after=placement.status()["seq"], wait=1.2)
    used = sum(processes.stat(pid).cpu_s for pid in pids) - before
    assert used <= 0.04, f"{used} s in 1.2 s, with a heartbeat of 0.5 s"
    assert placement.journal()[-1]["seq"] == seq


def test_the_token_of_the_plan_is_what_the_driver_computes():
    assert protocol.token_for(b"installation key", "digits-0a1b2c3d4e/1") == TOKEN
