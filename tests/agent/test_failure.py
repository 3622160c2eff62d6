"""What goes wrong ends the whole attempt, soon, with one cause, and leaves no process."""

from __future__ import annotations

import signal
import textwrap
import time
from datetime import datetime
from pathlib import Path

import pytest

from ffdl_airflow.agent import processes, protocol
from tests.agent.placement import Placement
from tests.conftest import wait_for

WAITS = "import time; print('up', flush=True); time.sleep(600)"


def misbehaves(rank: int, what: str) -> str:
    """Source of a trainer of which one rank does something in attempt 1; the others wait."""
    return textwrap.dedent("""
        import os, signal, subprocess, sys, time
        first = os.environ["FFDL_ATTEMPT"] == "1"
        if os.environ["RANK"] == "{rank}" and first:
        {what}
        if not first:
            sys.exit(0)
        print("up", flush=True)
        time.sleep(600)
    """).format(rank=rank, what=textwrap.indent(textwrap.dedent(what), " " * 4))


@pytest.mark.parametrize(
    ("rank", "what", "kind", "code", "number"),
    [
        (0, "print('no data', file=sys.stderr); sys.exit(3)", protocol.CAUSE_EXIT, 3, None),
        (1, "os.kill(os.getpid(), signal.SIGKILL)", protocol.CAUSE_SIGNAL, None, 9),
    ],
)
def test_a_rank_that_fails_ends_the_attempt_and_the_place_is_kept(
    make_placement, rank, what, kind, code, number
):
    placement = make_placement(misbehaves(rank, what), replicas=2).up()
    placement.go()
    placement.wait_state(protocol.RUNNING, protocol.STOPPING, protocol.HOLDING)
    body = placement.ended()
    cause = body["cause"]
    assert (cause["kind"], cause["exit"], cause["signal"]) == (kind, code, number)
    assert (cause["replica"], cause["rank"]) == (f"worker-{rank}", rank)
    assert ("no data" in body["tail"]) == (code == 3)
    exits = {entry["body"]["rank"]: entry["body"] for entry in placement.journal("RankExited")}
    assert sorted(exits) == [0, 1]
    assert exits[rank]["exit"] == code
    assert not placement.survivors()
    status = placement.wait_state(protocol.HOLDING)
    assert status["hold_left_s"] > 50
    assert placement.go(attempt=2)[0] == 200
    assert placement.ended(attempt=2)["ok"]
    placement.wait_gone()


def test_a_failure_is_over_within_a_second_or_so(make_placement):
    """Even when the survivor ignores SIGTERM."""
    trainer = misbehaves(0, "sys.exit(1)").replace(
        "first =", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nfirst ="
    )
    placement = make_placement(trainer, replicas=2).up()
    placement.go()
    body = placement.ended()
    exits = {rank["rank"]: rank for rank in body["ranks"]}
    assert exits[1]["signal"] == signal.SIGKILL
    assert seconds(body["ended_at"]) - seconds(exits[0]["ended_at"]) < 2.5


def seconds(iso: str) -> float:
    return datetime.fromisoformat(iso.replace("Z", "+00:00")).timestamp()


def test_the_earliest_failure_is_the_cause_not_the_noise_of_survivors(make_placement):
    """Rank 1 fails first; rank 0 sees that and fails, before anybody has told it to end."""
    trainer = """
import os, sys, time
mark = os.path.join(os.path.dirname(os.environ["FFDL_AGENT_SOCK"]), "dead")
if os.environ["RANK"] == "1":
    open(mark, "w").close()
    sys.exit(7)
while not os.path.exists(mark):
    time.sleep(0.005)
time.sleep(0.05)
sys.exit("connection closed by peer")
"""
    placement = make_placement(trainer, replicas=2).up()
    placement.go()
    body = placement.ended()
    assert (body["cause"]["rank"], body["cause"]["exit"]) == (1, 7)
    assert {rank["exit"] for rank in body["ranks"]} == {1, 7}
    (placement.sockets / "dead").unlink()


HIDING = {
    "own session": "subprocess.Popen(IGNORER, start_new_session=True)",
    "double fork": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv(sys.executable, IGNORER)
            os._exit(0)
    """,
    "clean environment": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve(sys.executable, IGNORER, {})
            os._exit(0)
    """,
    "forks for ever": """
        def chain():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            open(MARK + str(os.getpid()), "w").close()
            end = time.monotonic() + 20  # whatever becomes of the test
            while time.monotonic() < end:
                if os.fork():
                    os._exit(0)
                time.sleep(0.002)
        if os.fork() == 0:
            os.setsid()
            chain()
    """,
}


@pytest.mark.parametrize("how", sorted(HIDING))
@pytest.mark.parametrize("end", ["fails", "ends well"])
def test_nothing_hides_from_the_end(make_placement, how, end):
    head = """
        MARK = os.path.join(os.path.dirname(os.environ["FFDL_AGENT_SOCK"]), "pid-")
        SOURCE = ("import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
                  "open(%r + str(os.getpid()), 'w').close(); time.sleep(600)" % MARK)
        IGNORER = [sys.executable, "-c", SOURCE]
    """
    tail = """
        while not any(name.startswith("pid-") for name in os.listdir(os.path.dirname(MARK))):
            time.sleep(0.01)
    """
    code = "3" if end == "fails" else "0"
    parts = (head, HIDING[how], tail, f"sys.exit({code})")
    trainer = misbehaves(0, "\n".join(textwrap.dedent(part) for part in parts))
    placement = make_placement(trainer, term_s=0.3).up()
    placement.go()
    body = placement.ended()
    assert body["ok"] == (end == "ends well"), placement.story()
    pids = [int(path.name[4:]) for path in placement.sockets.glob("pid-*")]
    assert pids
    assert not [pid for pid in pids if is_running(pid)]
    if how == "forks for ever":
        command = f"{placement.root}/trainer.py".encode()
        assert not [pid for pid in processes.pids() if command in content(f"/proc/{pid}/cmdline")]
    for path in placement.sockets.glob("pid-*"):
        path.unlink()


def is_running(pid: int) -> bool:
    found = processes.stat(pid)
    return found is not None and found.state not in "ZX"


def content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("running", "number"), [(True, signal.SIGKILL), (True, signal.SIGSTOP), (False, signal.SIGKILL)]
)
def test_a_follower_that_is_lost_ends_the_gang(make_placement, running, number):
    placement = make_placement(WAITS, replicas=3, silent_s=1.0).up()
    if running:
        placement.go()
        placement.wait_state(protocol.RUNNING)
        wait_for(lambda: all("up" in placement.rank_log(rank) for rank in range(3)))
    began = time.monotonic()
    placement.agents["worker-1"].send_signal(number)
    placement.wait_gone()
    assert time.monotonic() - began < (5.0 if number == signal.SIGSTOP else 3.0)
    if running:
        body = placement.ended()
        assert body["cause"]["kind"] == protocol.CAUSE_AGENT_LOST
        assert body["cause"]["replica"] == "worker-1"
    released = placement.journal()[-1]
    assert released["kind"] == "Released"
    assert "worker-1" in released["body"]["why"]


@pytest.mark.parametrize("running", [True, False])
def test_a_coordinator_that_is_killed_takes_everything_along(make_placement, running):
    placement = make_placement(WAITS, replicas=3).up()
    if running:
        placement.go()
        placement.wait_state(protocol.RUNNING)
        wait_for(lambda: all("up" in placement.rank_log(rank) for rank in range(3)))
    began = time.monotonic()
    placement.agents["worker-0"].kill()
    placement.wait_gone()
    assert time.monotonic() - began < 3.0
    assert [agent.returncode for agent in placement.agents.values()] == [-9, 0, 0]


def test_a_coordinator_that_sleeps_finds_its_gang_gone(make_placement):
    placement = make_placement(WAITS, replicas=2, silent_s=0.8).up()
    placement.go()
    placement.wait_state(protocol.RUNNING)
    began = time.monotonic()
    placement.agents["worker-0"].send_signal(signal.SIGSTOP)
    assert placement.agents["worker-1"].wait(10) == 0
    assert time.monotonic() - began < 2.5
    placement.agents["worker-0"].send_signal(signal.SIGCONT)
    assert placement.ended()["cause"]["kind"] == protocol.CAUSE_AGENT_LOST
    placement.wait_gone()


def test_a_coordinator_that_dies_before_all_joined_is_not_waited_for(make_placement):
    placement = make_placement(WAITS, replicas=3, silent_s=0.5).start("worker-0", "worker-1")
    wait_for(lambda: placement.status().get("joined") == ["worker-0", "worker-1"])
    placement.agents["worker-0"].kill()
    placement.start("worker-2")
    placement.wait_gone(5)


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"required_paths": ["/nowhere/data"]}, "required-path"),
        ({"min_free_bytes": 1 << 60}, "disk"),
        ({"command": ["no-such-program"]}, "command"),
        ({"command": ["./no-such-file"]}, "command"),
        ({"cwd": "/nowhere"}, "cwd"),
        ({"resume_from": "/nowhere/step-000000000001"}, "checkpoint"),
    ],
)
def test_a_check_before_the_start_names_replica_and_check(make_placement, change, check):
    placement = make_placement(WAITS, replicas=2)
    own = {name: change[name] for name in change if name in ("command", "cwd")}
    placement.plan["replicas"][1].update(own)
    placement.plan.update({n: change[n] for n in change if n in placement.plan and n not in own})
    placement.write_plan()
    placement.up().go(resume_from=change.get("resume_from"))
    body = placement.ended()
    assert body["cause"]["kind"] == protocol.CAUSE_PREFLIGHT
    assert body["cause"]["check"] == check
    assert ("worker-1" in body["cause"]["text"]) or not own
    assert body["running_at"] is None
    placement.wait_state(protocol.HOLDING)


def test_a_checkpoint_with_a_flipped_bit_is_not_resumed_from(make_placement):
    placement = make_placement(WAITS).up()
    checkpoint = placement.checkpoints / "step-000000000003"
    checkpoint.mkdir()
    (checkpoint / "weights").write_bytes(b"\0" * 100)
    protocol.seal_checkpoint(str(checkpoint), step=3, attempt=1, world_size=1, generation=None)
    (checkpoint / "weights").write_bytes(b"\0" * 99 + b"\1")
    placement.go(resume_from=str(checkpoint), resume_step=3)
    text = placement.ended()["cause"]["text"]
    assert "another SHA-256" in text


def test_a_command_that_cannot_be_executed_is_a_failed_start(make_placement):
    placement = make_placement(WAITS)
    script = placement.root / "broken"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o755)
    placement.plan["replicas"][0]["command"] = [str(script)]
    placement.write_plan()
    placement.up().go()
    assert placement.ended()["cause"]["kind"] == protocol.CAUSE_START


@pytest.mark.parametrize("where", ["word", "variable", "name"])
def test_what_no_process_can_be_told_is_a_failed_start(make_placement, where):
    """Refused in a spec; a plan from elsewhere may have it. Python answers with ValueError."""
    placement = make_placement(WAITS)
    replica = placement.plan["replicas"][0]
    if where == "word":
        replica["command"].append("\0")
    else:
        replica["env"].update({"X": "a\0b"} if where == "variable" else {"A=B": "x"})
    placement.write_plan()
    placement.up().go()
    cause = placement.ended()["cause"]
    assert cause["kind"] == protocol.CAUSE_START
    assert "cannot be started: " in cause["text"]
    assert placement.wait_state(protocol.HOLDING), "the agent lives on"


FAULT = """
import os, sys
sys.path.insert(0, {bundle!r})
from ffdl_agent import gang, main, replica

owner = {owner}
whole = owner.{method}

def broken(self):
    if os.path.exists({mark!r} + sys.argv[2]):
        raise ZeroDivisionError("by the test")
    return whole(self)

owner.{method} = broken
sys.exit(main.main())
"""


def break_agents(placement: Placement, owner: str, method: str) -> Path:
    """A method fails where there is a file of this name and the replica's at its end."""
    mark = placement.root / "fault-"
    script = placement.root / "broken.py"
    values = {"bundle": str(placement.bundle), "mark": str(mark), "owner": owner, "method": method}
    script.write_text(FAULT.format(**values))
    placement.bundle = script
    return mark


@pytest.mark.parametrize("name", ["worker-0", "worker-1"])
def test_a_fault_of_an_agent_is_the_cause_and_leaves_no_rank(make_placement, name):
    placement = make_placement(WAITS, replicas=2)
    mark = break_agents(placement, "replica.Replica", "rows")
    placement.up().go()
    placement.wait_state(protocol.RUNNING)
    Path(f"{mark}{name}").touch()
    cause = placement.ended()["cause"]
    assert cause["kind"] == protocol.CAUSE_AGENT_LOST
    expected = f"the agent of {name} has failed: ZeroDivisionError: by the test"
    assert cause["text"] == expected
    placement.wait_gone()
    assert "Traceback" in placement.agent_log(name)


def test_a_fault_of_an_agent_that_holds_is_why_it_left(make_placement):
    placement = make_placement(WAITS)
    mark = break_agents(placement, "gang.Gang", "_tick")
    Path(f"{mark}worker-0").touch()
    placement.start()
    why = placement.wait_journal(protocol.J_RELEASED)["body"]["why"]
    assert why == "the agent of worker-0 has failed: ZeroDivisionError: by the test"
    placement.wait_gone()


ROLES = """
import os, sys, time
name = os.environ["FFDL_REPLICA"]
if name == "worker-0":
    time.sleep(0.2)
elif name == "worker-1":
    time.sleep(600)
else:
    time.sleep(0.5)
    sys.exit(9)
"""


def test_only_deciding_replicas_decide(make_placement):
    """worker-0 decides; worker-1 is stopped like a parameter server; worker-2 evaluates, badly."""
    placement = make_placement(
        ROLES, replicas=3, deciding=["worker-0"], evaluators=["worker-2"]
    ).up()
    placement.go()
    body = placement.ended()
    assert body["ok"]
    found = {rank["replica"]: rank for rank in body["ranks"]}
    assert found["worker-1"]["signal"] == signal.SIGTERM
    assert found["worker-2"]["exit"] == 9, "it had its grace"
    placement.wait_gone()


def test_an_evaluators_grace_ends(make_placement):
    trainer = ROLES.replace("time.sleep(0.5)", "time.sleep(600)")
    placement = make_placement(
        trainer, replicas=3, deciding=["worker-0"], evaluators=["worker-2"], evaluator_grace_s=0.3
    ).up()
    placement.go()
    assert placement.ended()["ok"]
    placement.wait_gone()


def test_exit_0_of_an_undecided_replica_is_no_end(make_placement):
    trainer = "import os, time; time.sleep(600 if os.environ['FFDL_REPLICA'] == 'worker-0' else 0)"
    placement = make_placement(trainer, replicas=2, deciding=["worker-0"]).up()
    placement.go()
    placement.wait_journal("RankExited")
    placement.wait_state(protocol.RUNNING)
    placement.stop(then="leave")
    assert placement.ended()["cause"]["kind"] == protocol.CAUSE_STOP
