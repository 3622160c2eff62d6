"""What is tuned for a rank, why, and that whoever sets a variable himself is heard."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from ffdl_airflow.agent import tuning
from ffdl_airflow.agent.tuning import Facts, decide
from tests.agent.placement import MakePlacement

NOTHING = Facts(rdma=[], interface=None)
WISH: dict[str, Any] = {
    "framework": "pytorch", "cpu": 1.0, "gpu": 0, "threads_share": 1, "interface": None,
    "master": "worker-0.job.ml.svc", "first_step_s": 1800.0,
}  # fmt: skip


def found(facts: Facts = NOTHING, **wish: Any) -> dict[str, str]:
    return {setting.name: setting.value for setting in decide({**WISH, **wish}, facts)}


@pytest.mark.parametrize(
    ("cpu", "share", "threads"),
    [(1.0, 1, "1"), (8.0, 1, "8"), (8.0, 4, "2"), (7.9, 4, "1"), (0.5, 1, "1"), (2.0, 8, "1")],
)
def test_threads_follow_from_the_cores_that_are_asked_for(
    cpu: float, share: int, threads: str
) -> None:
    assert found(cpu=cpu, threads_share=share)["OMP_NUM_THREADS"] == threads
    assert found(cpu=cpu, threads_share=share, framework="tensorflow") == {
        "OMP_NUM_THREADS": threads, "TF_NUM_INTRAOP_THREADS": threads,
    }  # fmt: skip


def test_gpus_make_nccl_and_cuda_matter() -> None:
    assert found(gpu=2, first_step_s=600.0) == {
        "OMP_NUM_THREADS": "1", "NCCL_IB_DISABLE": "1", "CUDA_CACHE_MAXSIZE": "4294967296",
        "NCCL_TIMEOUT": "600",
    }  # fmt: skip
    assert set(found()) == {"OMP_NUM_THREADS"}


def test_rdma_of_the_node_decides_about_infiniband() -> None:
    facts = Facts(rdma=["mlx5_0", "mlx5_1"], interface=None)
    (setting,) = (s for s in decide({**WISH, "gpu": 1}, facts) if s.name == "NCCL_IB_DISABLE")
    assert (setting.value, setting.why) == ("0", "RDMA is up on mlx5_0, mlx5_1")


@pytest.mark.parametrize(
    ("interface", "route", "value"),
    [(None, "eth0", "eth0"), ("ib0", "eth0", "ib0"), (None, None, None), ("ib0", None, "ib0")],
)
def test_the_interface(interface: str | None, route: str | None, value: str | None) -> None:
    facts = Facts(rdma=[], interface=route)
    settings = found(facts, gpu=1, interface=interface)
    assert settings.get("NCCL_SOCKET_IFNAME") == settings.get("GLOO_SOCKET_IFNAME") == value
    assert "GLOO_SOCKET_IFNAME" not in found(facts, gpu=1, interface=interface, framework="jax")
    assert "NCCL_SOCKET_IFNAME" not in found(facts, gpu=0, interface=interface)
    assert "NCCL_SOCKET_IFNAME" not in found(facts, gpu=1, interface=interface, master=None)


def test_the_route_to_a_launcher_is_not_the_ranks_route() -> None:
    facts = Facts(rdma=[], interface="lo")
    assert "NCCL_SOCKET_IFNAME" not in found(facts, gpu=1, framework="mpi")
    assert found(facts, gpu=1, framework="mpi", interface="ib0")["NCCL_SOCKET_IFNAME"] == "ib0"


def test_two_mpiruns_on_a_node_do_not_meet_on_its_first_cores() -> None:
    assert found(framework="mpi")["PRTE_MCA_hwloc_default_binding_policy"] == "none"
    assert found(framework="mpi")["OMPI_MCA_hwloc_base_binding_policy"] == "none"


def test_an_empty_wish_asks_for_nothing() -> None:
    assert decide({}, Facts(rdma=["mlx5_0"], interface="eth0")) == []


def test_every_setting_says_why_in_one_line() -> None:
    facts = Facts(rdma=[], interface="eth0")
    for framework in ("pytorch", "tensorflow", "mpi", "jax"):
        for setting in decide({**WISH, "gpu": 8, "framework": framework}, facts):
            assert len(setting.why) > 10
            assert "\n" not in setting.why


def test_rdma_is_up_where_a_port_is_active(tmp_path: Path) -> None:
    for device, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        port = tmp_path / device / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
    (tmp_path / "broken").mkdir()
    assert tuning._rdma(str(tmp_path)) == ["mlx5_0"]
    assert tuning._rdma(str(tmp_path / "none")) == []


ROUTES = """Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	0101A8C0	0003	0	0	100	00000000	0	0	0
docker0	000011AC	00000000	0001	0	0	0	0000FFFF	0	0	0
eth1	0000000A	00000000	0001	0	0	100	000000FF	0	0	0
ib0	0000640A	00000000	0001	0	0	100	0000FFFF	0	0	0
"""


@pytest.mark.parametrize(
    ("address", "interface"),
    [("10.100.3.4", "ib0"), ("10.1.2.3", "eth1"), ("192.0.2.7", "eth0"), ("172.17.0.9", "docker0")],
)
def test_the_longest_route_leads_to_the_master(address: str, interface: str) -> None:
    number = struct.unpack("=I", socket.inet_aton(address))[0]
    assert tuning.route_to(number, ROUTES) == interface
    assert tuning.route_to(number, ROUTES.splitlines()[0]) is None


def test_the_master_of_this_host_is_reached_by_its_loopback() -> None:
    assert tuning.look({"master": "127.0.0.1"}).interface == "lo"
    assert tuning.look({"master": "no-such-host.invalid"}).interface is None


def test_an_interface_that_is_not_here_is_named() -> None:
    told = tuning.missing_interface({"interface": "ib77"})
    assert told is not None
    assert told.startswith("network interface ib77 is not here, there are ")
    assert "lo" in told
    for fine in ("lo", None, "^docker", "=eth0", "eth0,eth1"):
        assert tuning.missing_interface({"interface": fine}) is None


PRINT = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['GLOO_SOCKET_IFNAME'])"


def test_the_log_begins_with_what_was_tuned_and_the_jobs_own_value_stays(
    make_placement: MakePlacement,
) -> None:
    placement = make_placement(PRINT, replicas=2)
    for entry in placement.plan["replicas"]:
        entry["tuning"] = {**WISH, "cpu": 2.0, "master": "127.0.0.1"}
    placement.plan["replicas"][1]["env"]["OMP_NUM_THREADS"] = "7"
    placement.write_plan()
    placement.up().go()
    assert placement.ended()["ok"], placement.story()
    first, second = (placement.rank_log(rank).splitlines() for rank in (0, 1))
    assert first[0].startswith("ffdl: OMP_NUM_THREADS=2: the replica asks for 2 cores; ")
    assert first[1:] == ["ffdl: GLOO_SOCKET_IFNAME=lo: the route to the master 127.0.0.1", "2 lo"]
    assert second[0].startswith("ffdl: OMP_NUM_THREADS=7 as the job sets it, not 2 (the replica")
    assert second[-1] == "7 lo"
    told = placement.journal("Running")[0]["body"]["tuned"]
    assert [(entry["name"], entry["value"], entry["replicas"]) for entry in told] == [
        ("GLOO_SOCKET_IFNAME", "lo", 2), ("OMP_NUM_THREADS", "2", 2),
    ]  # fmt: skip


def test_an_unknown_interface_is_found_before_the_start(make_placement: MakePlacement) -> None:
    placement = make_placement("print('never')")
    placement.plan["replicas"][0]["tuning"] = {**WISH, "interface": "ib77", "master": "127.0.0.1"}
    placement.write_plan()
    placement.up().go()
    cause = placement.ended()["cause"]
    assert (cause["kind"], cause["check"]) == ("preflight", "interface")
    assert placement.rank_log() == ""
