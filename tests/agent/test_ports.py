"""Each process has a port that is free at its start; one that is not is found before the start."""

from __future__ import annotations

import json
import socket

import pytest

from ffdl_airflow.agent import ports
from ffdl_airflow.agent.plan import Process, ReplicaPlan
from tests.agent.placement import MakePlacement

SHOW = """
import os, socket
own = [socket.socket() for _ in range(1)]
for one in own:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
own[0].bind(("127.0.0.1", int(os.environ["OWN_PORT"])))
print(os.environ["RANK"], os.environ["MASTER_PORT"], os.environ["OWN_PORT"], os.environ["KEPT"])
"""


def replica(*asked: int | None) -> ReplicaPlan:
    processes = [Process(rank=n, local_rank=n, env={}, port=port) for n, port in enumerate(asked)]
    return ReplicaPlan(
        name="worker-0", role="worker", number=0, dir="/nowhere", socket="/nowhere/w.sock",
        slot_locks=[], cwd=None, command=[], env={}, processes=processes, files={}, tuning={},
    )  # fmt: skip


def taken() -> socket.socket:
    found = socket.socket()
    found.bind(("", 0))
    return found


def test_ports_are_ones_own_until_they_are_released() -> None:
    held = ports.hold(replica(None, None, None))
    numbers = [ports.number(one) for one in held]
    assert len(set(numbers)) == 3
    assert all(ports.FIRST <= number <= ports.LAST for number in numbers)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", numbers[0]))
    ports.release(held)
    with socket.socket() as other:
        other.bind(("", numbers[0]))


def test_a_port_that_is_asked_for_and_taken_is_named() -> None:
    with taken() as other:
        number = other.getsockname()[1]
        with pytest.raises(ports.PortError, match=f"port {number}: Address already in use"):
            ports.hold(replica(None, number))


def test_members_learn_all_ports(make_placement: MakePlacement) -> None:
    placement = make_placement(SHOW, replicas=2, ranks=2)
    for entry in placement.plan["replicas"]:
        for process in entry["processes"]:
            local = process["local_rank"]
            name = entry["name"] if local == 0 else f"{entry['name']}.{local}"
            process["env"] |= {"OWN_PORT": f"{{{{PORT {name}}}}}", "KEPT": "{{PORT nobody-0}}"}
    placement.write_plan()
    placement.up().go()
    assert placement.ended()["ok"], placement.story()
    lines = [placement.rank_log(rank).split(maxsplit=3) for rank in range(4)]
    assert [line[0] for line in lines] == ["0", "1", "2", "3"]
    assert {line[1] for line in lines} == {lines[0][2]}, "the master's port is that of rank 0"
    assert len({line[2] for line in lines}) == 4
    assert {line[3].strip() for line in lines} == {"{{PORT nobody-0}}"}


def test_a_collision_is_found_before_the_start_and_the_gang_starts_anew(
    make_placement: MakePlacement,
) -> None:
    placement = make_placement("print('hello')", replicas=2)
    with taken() as other:
        number = other.getsockname()[1]
        placement.plan["replicas"][1]["processes"][0]["port"] = number
        placement.write_plan()
        placement.up().go()
        cause = placement.ended()["cause"]
        assert (cause["kind"], cause["check"], cause["replica"]) == (
            "preflight",
            "port",
            "worker-1",
        )
        assert cause["text"] == f"worker-1, check port: port {number}: Address already in use"
    placement.wait_state("holding")
    placement.go(2)
    assert placement.ended(2)["ok"], placement.story()


def test_without_a_process_a_replica_holds_its_place_and_ends_with_the_others(
    make_placement: MakePlacement,
) -> None:
    """MPI: the launcher's processes run there."""
    placement = make_placement("import sys; print(open(sys.argv[1]).read())", replicas=2,
                               args=("{{FILE hosts}}",), deciding=["worker-0"])  # fmt: skip
    first, second = placement.plan["replicas"]
    first["files"] = {"hosts": "127.0.0.1 slots=2\n"}
    first["processes"][0]["rank"] = None
    second.update(processes=[], command=[])
    placement.write_plan()
    placement.up().go()
    body = placement.ended()
    assert body["ok"], placement.story()
    assert [(entry["replica"], entry["rank"]) for entry in body["ranks"]] == [("worker-0", None)]
    log = placement.dir / "agents" / "worker-0" / "process-0.attempt-1.log"
    assert log.read_text() == "127.0.0.1 slots=2\n\n"
    result = json.loads((placement.dir / "agents" / "worker-1" / "result.json").read_text())
    assert result["ranks"] == []
    placement.wait_gone()
