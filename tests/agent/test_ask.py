"""A command in the coordinator's pod: it asks and gives orders, with a token that nobody sees."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.agent import ask, protocol
from tests.agent.placement import TOKEN, Placement

WAITS = "import time\ntime.sleep(60)\n"
STATUS = protocol.PATH_STATUS


def asked(placement: Placement, *words: str) -> subprocess.CompletedProcess[str]:
    line = [placement.python, "-E", "-S", str(placement.bundle), protocol.ASK, *words]
    assert TOKEN not in " ".join(line)
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


def answer(placement: Placement, method: str, path: str, *body: str) -> tuple[int, Any]:
    done = asked(placement, str(placement.dir), method, path, *body)
    assert done.returncode == ask.ANSWERED, done.stderr
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    return found["status"], found["document"]


def test_questions_and_orders_go_to_the_coordinator(make_placement) -> None:
    placement = make_placement(WAITS).up()
    status, document = answer(placement, "GET", f"{STATUS}?after=-1&wait=0")
    assert (status, document["state"]) == (200, protocol.HOLDING)
    order = {"attempt": 1, "resume_from": None, "resume_step": None, "time_left_s": None, "env": {}}
    assert answer(placement, "POST", protocol.PATH_GO, json.dumps(order))[0] == 200
    placement.wait_state(protocol.RUNNING)
    stop = {"mode": "now", "why": "gute Gründe “ ” \n", "then": "leave"}
    assert answer(placement, "POST", protocol.PATH_STOP, json.dumps(stop))[0] == 202
    placement.wait_gone()


def test_a_refusal_is_an_answer(make_placement) -> None:
    placement = make_placement(WAITS).up()
    status, document = answer(placement, "POST", protocol.PATH_STOP, '{"mode": "later"}')
    assert (status, document["error"]) == (400, "bad-request")
    (placement.dir / protocol.TOKEN_FILE).write_text("another")
    assert answer(placement, "GET", STATUS)[0] == 403


def test_a_long_poll_waits_for_the_next_entry(make_placement) -> None:
    placement = make_placement(WAITS).up()
    seq = placement.status()["seq"]
    began = time.monotonic()
    status, document = answer(placement, "GET", f"{STATUS}?after={seq}&wait=1.5")
    assert (status, document["seq"]) == (200, seq)
    assert time.monotonic() - began > 1.4


def test_between_hosts_it_goes_to_this_very_pod(make_placement) -> None:
    """By its port, and without the gang's name, which another pod's DNS may not know."""
    with socket.create_server(("", 0)) as found:
        port = found.getsockname()[1]
    meeting = {"host": "worker-0.no-such-gang", "port": port}
    placement = make_placement(WAITS, coordinator=meeting)
    placement.start()
    deadline = time.monotonic() + 20
    while True:
        done = asked(placement, str(placement.dir), "GET", STATUS)
        if done.returncode == ask.ANSWERED or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert json.loads(done.stdout)["status"] == 200


def test_where_nobody_answers_it_says_so(make_placement) -> None:
    placement = make_placement(WAITS)
    done = asked(placement, str(placement.dir), "GET", STATUS)
    assert done.returncode == ask.NO_ANSWER
    found = json.loads(done.stdout)
    assert (found["status"], found["document"]["error"]) == (0, "no-answer")


@pytest.mark.parametrize("words", [[], ["{dir}", "GET"], ["{dir}", "POST", "/v1/go", "{not json"],
                                   ["/nowhere", "GET", "/v1/status"]])  # fmt: skip
def test_a_wrong_call(make_placement, words: list[str], tmp_path: Path) -> None:
    placement = make_placement(WAITS)
    done = asked(placement, *(word.replace("{dir}", str(placement.dir)) for word in words))
    assert (done.returncode, done.stdout) == (ask.WRONG_CALL, "")
    assert done.stderr
