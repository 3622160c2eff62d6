"""Ranks and their environment, and the plan of a gang compared whole."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow.agent.protocol import PORT_PLACEHOLDER
from ffdl_airflow.core.job import JobSpec, TrainingJob
from ffdl_airflow.core.plan import GangPlan, Places, Timing, build, deciding, gang_slots, slots_of
from ffdl_airflow.core.rendezvous import NOT_RANKS, environment, processes_of, ranks
from ffdl_airflow.testing.builders import job

GOLDEN = Path(__file__).parents[1] / "golden"
PLACES = Places(
    checkpoint_dir="/ckpt/bert-base-0123456789",
    output_dir="/state/jobs/bert-base-0123456789/output",
    log_dir="/state/jobs/bert-base-0123456789/output/logs", python="/usr/bin/python3",
    data={"corpus": "/cache/corpus/g1/data", "word-list": "/cache/word-list/g2/data"},
    code="/cache/code/g3/data",
)  # fmt: skip


def spec_of(framework: str = "custom", *, command: tuple[str, ...] = ("train",),
            **spec: Any) -> JobSpec:  # fmt: skip
    training = {"framework": framework, "command": list(command)}
    if not command:
        training = {"framework": framework, "entryPoint": "train.py"}
    if "roles" in spec:
        spec = {"replicas": None, **spec}
    return job(training=training, **spec).spec


def numbers(spec: JobSpec) -> list[tuple[str, int | None, int, int]]:
    return [(rank.replica, rank.number, rank.local, rank.node) for rank in ranks(spec)]


def test_one_role_one_process() -> None:
    assert numbers(spec_of(replicas=2)) == [("worker-0", 0, 0, 0), ("worker-1", 1, 0, 1)]


def test_several_processes_in_a_replica() -> None:
    spec = spec_of(roles=[{"name": "worker", "replicas": 2, "processesPerReplica": 2}])
    assert numbers(spec) == [("worker-0", 0, 0, 0), ("worker-0", 1, 1, 0), ("worker-1", 2, 0, 1),
                             ("worker-1", 3, 1, 1)]  # fmt: skip
    env = environment("custom", ranks(spec)[3], world_size=4, master="192.0.2.1")
    assert env == {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": PORT_PLACEHOLDER,
    }  # fmt: skip


def test_servers_and_evaluators_are_no_ranks() -> None:
    roles = [{"name": "chief"}, {"name": "ps", "replicas": 2}, {"name": "worker", "replicas": 2},
             {"name": "evaluator"}]  # fmt: skip
    spec = spec_of(roles=roles)
    assert [(replica, number) for replica, number, _, _ in numbers(spec)] == [
        ("chief-0", 0), ("ps-0", None), ("ps-1", None), ("worker-0", 1), ("worker-1", 2),
        ("evaluator-0", None),
    ]  # fmt: skip
    assert environment("pytorch", ranks(spec)[1], world_size=3, master="m") == {}


@pytest.mark.parametrize(
    ("framework", "command", "gpu", "said", "processes"),
    [
        ("pytorch", (), 4, "auto", 4), ("pytorch", (), 0, "auto", 1), ("pytorch", (), 4, 2, 2),
        ("pytorch", ("python", "t.py"), 4, "auto", 1), ("jax", (), 4, "auto", 1),
        ("pytorch", ("torchrun", "t.py"), 4, "auto", 1), ("pytorch", ("torchrun", "t.py"), 4, 4, 1),
        ("pytorch", ("/opt/bin/torchrun", "t.py"), 4, 4, 1),
        ("pytorch", ("python", "-m", "torch.distributed.run", "t.py"), 2, 2, 1),
        ("custom", ("mpirun", "train"), 4, 4, 1), ("custom", ("train",), 4, 3, 3),
    ],
)  # fmt: skip
def test_processes_of_a_replica(
    framework: str, command: tuple[str, ...], gpu: int, said: Any, processes: int
) -> None:
    role = {"name": "worker", "processesPerReplica": said, "resources": {"gpu": gpu}}
    spec = spec_of(framework, command=command, roles=[role])
    assert processes_of(spec.all_roles[0], spec) == processes
    assert len(ranks(spec)) == processes


def test_a_role_with_a_command_of_its_own_is_no_entry_point() -> None:
    role = {"name": "worker", "command": ["serve"], "resources": {"gpu": 4}}
    assert len(ranks(spec_of("pytorch", command=(), roles=[role]))) == 1


@pytest.mark.parametrize(("said", "launched"), [("auto", "4"), (2, "2")])
def test_torchrun_finds_its_arguments(said: Any, launched: str) -> None:
    role = {"name": "worker", "replicas": 3, "processesPerReplica": said, "resources": {"gpu": 4}}
    spec = spec_of("pytorch", command=("torchrun", "train.py"), roles=[role])
    env = environment("pytorch", ranks(spec)[2], world_size=3, master="192.0.2.1")
    assert {key: value for key, value in env.items() if key.startswith("PET_")} == {
        "PET_NNODES": "3", "PET_NODE_RANK": "2", "PET_NPROC_PER_NODE": launched,
        "PET_MASTER_ADDR": "192.0.2.1", "PET_MASTER_PORT": PORT_PLACEHOLDER,
    }  # fmt: skip


def test_other_pytorch_programs_get_no_arguments_of_torchrun() -> None:
    env = environment("pytorch", ranks(spec_of("pytorch"))[0], world_size=2, master="m")
    assert not [name for name in env if name.startswith("PET_")]


def test_jax_finds_its_coordinator() -> None:
    env = environment("jax", ranks(spec_of("jax"))[1], world_size=2, master="192.0.2.1")
    own = {name: value for name, value in env.items() if name.startswith("JAX_")}
    assert own == {
        "JAX_COORDINATOR_ADDRESS": f"192.0.2.1:{PORT_PLACEHOLDER}", "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "1",
    }  # fmt: skip


roles = st.lists(
    st.tuples(st.sampled_from(["chief", "master", "worker", "ps", "evaluator", "launcher"]),
              st.integers(1, 4), st.integers(1, 3)),
    min_size=1, max_size=4, unique_by=lambda role: role[0],
)  # fmt: skip


@given(roles)
def test_numbers_are_dense_and_start_at_0(drawn: list[tuple[str, int, int]]) -> None:
    spec = spec_of(roles=[
        {"name": name, "replicas": count, "processesPerReplica": size}
        for name, count, size in drawn
    ])  # fmt: skip
    found = ranks(spec)
    counted = [rank for rank in found if rank.number is not None]
    assert [rank.number for rank in counted] == list(range(len(counted)))
    assert all(rank.replica.rpartition("-")[0] not in NOT_RANKS for rank in counted)
    assert len(found) == sum(count * size for _, count, size in drawn)
    for rank in counted:
        env = environment("custom", rank, world_size=len(counted), master="m")
        assert int(env["LOCAL_RANK"]) < int(env["LOCAL_WORLD_SIZE"])
        assert int(env["RANK"]) < int(env["WORLD_SIZE"]) == len(counted)


CHIEF = {"name": "chief"}
WORKERS = {"name": "worker", "replicas": 2}
PS = {"name": "ps"}
EVALUATOR = {"name": "evaluator"}


@pytest.mark.parametrize(
    ("framework", "roles_", "policy", "names"),
    [
        ("pytorch", [WORKERS], None, ["worker-0", "worker-1"]),
        ("pytorch", [{"name": "master"}, WORKERS], None, ["master-0", "worker-0", "worker-1"]),
        ("pytorch", [{"name": "master"}, WORKERS], "chief", ["master-0"]),
        ("pytorch", [WORKERS], "chief", ["worker-0"]),
        ("tensorflow", [CHIEF, WORKERS, PS, EVALUATOR], None, ["chief-0"]),
        ("tensorflow", [WORKERS, PS], None, ["worker-0"]),
        ("tensorflow", [CHIEF, WORKERS, PS], "allWorkers", ["chief-0", "worker-0", "worker-1"]),
        ("mpi", [{"name": "launcher"}, WORKERS], None, ["launcher-0"]),
        ("mpi", [WORKERS], None, ["worker-0", "worker-1"]),
        ("custom", [WORKERS, EVALUATOR], None, ["worker-0", "worker-1"]),
    ],
)
def test_who_decides_that_a_gang_has_ended_well(
    framework: str, roles_: list[Any], policy: str | None, names: list[str]
) -> None:
    assert deciding(spec_of(framework, roles=roles_, successPolicy=policy)) == names


def test_slots() -> None:
    assert (slots_of(0), slots_of(1), slots_of(8)) == (1, 1, 8)
    assert gang_slots(spec_of(replicas=3)) == 3
    assert gang_slots(spec_of(replicas=3, resources={"gpu": 2})) == 6
    mixed = [{"name": "worker", "replicas": 2, "resources": {"gpu": 4}}, {"name": "ps"}]
    assert gang_slots(spec_of(roles=mixed)) == 9


def plan_of(planned: TrainingJob, places: Places = PLACES) -> GangPlan:
    return build(planned, job_id="bert-base-0123456789", placement=3, places=places,
                 timing=Timing(), generations={"corpus": "g1", "word-list": "g2"})  # fmt: skip


FULL = job(
    training={"framework": "pytorch", "entryPoint": "train/main.py", "args": ["--lr", 0.1],
              "code": "/src", "globalBatch": 256,
              "env": {"SEED": 7, "HF_TOKEN": {"secretName": "hub", "key": "token"}}},
    replicas=None,
    roles=[
        {"name": "master", "env": {"LEAD": "1"}},
        {"name": "worker", "replicas": 2, "processesPerReplica": 2, "resources": {"gpu": 2}},
        {"name": "evaluator", "command": ["python", "eval.py"], "args": ["--fast"]},
    ],
    progress={"regex": "step (?P<step>[0-9]+)"},
    reservation={"queue": "big"}, priority="interactive",
)  # fmt: skip


def test_a_whole_plan() -> None:
    """Compared whole with a file that no test run writes."""
    plan = plan_of(FULL)
    found = {**asdict(plan), "placement_id": plan.placement_id, "slots": plan.slots}
    golden = json.loads((GOLDEN / "gang_plan.json").read_text())
    assert json.loads(json.dumps(found)) == golden


@pytest.mark.parametrize(
    ("training", "command"),
    [
        ({"entryPoint": "train.py", "code": "/src"}, ("/usr/bin/python3", "-u", "train.py")),
        ({"entryPoint": "bin/train", "code": "/src"}, ("./bin/train",)),
        ({"command": ["torchrun", "train.py"]}, ("torchrun", "train.py")),
    ],
)
def test_commands(training: dict[str, Any], command: tuple[str, ...]) -> None:
    plan = plan_of(job(training={"framework": "custom", "args": ["--x"], **training}))
    assert {replica.command for replica in plan.replicas} == {(*command, "--x")}


def test_without_code_the_output_folder_is_the_working_directory() -> None:
    bare = Places(checkpoint_dir="/ckpt", output_dir="/out", log_dir="/out/logs", python="python3")
    plan = plan_of(job(), bare)
    assert {replica.cwd for replica in plan.replicas} == {"/out"}
    assert plan.common["required_paths"] == []
    assert plan.replicas[0].env["DATA_DIR"] == ""


def test_without_data_there_is_no_generation() -> None:
    plan = build(job(), job_id="j", placement=1, places=PLACES, timing=Timing(), generations={})
    assert plan.common["generation"] is None


def test_ffdls_own_variables() -> None:
    """As FfDL's programs expect them: learners count from 1, GPUs are printed as a float."""
    roles_ = [{"name": "worker", "replicas": 2, "processesPerReplica": 2, "resources": {"gpu": 4}}]
    env = plan_of(job(replicas=None, roles=roles_)).replicas[1].env
    own = ("DATA_DIR", "RESULT_DIR", "CHECKPOINT_DIR", "LOG_DIR", "TRAINING_ID", "LEARNER_ID",
           "GPU_COUNT", "NUM_LEARNERS")  # fmt: skip
    assert {name: env[name] for name in own} == {
        "DATA_DIR": "/cache/corpus/g1/data", "RESULT_DIR": PLACES.output_dir,
        "CHECKPOINT_DIR": PLACES.checkpoint_dir, "LOG_DIR": PLACES.log_dir,
        "TRAINING_ID": "bert-base-0123456789", "LEARNER_ID": "2", "GPU_COUNT": "4.000000",
        "NUM_LEARNERS": "2",
    }  # fmt: skip


def test_who_says_a_variable_himself_is_heard() -> None:
    training = {"framework": "custom", "command": ["t"], "env": {"DATA_DIR": "/mine", "A": "1"}}
    roles_ = [{"name": "worker", "env": {"A": "2"}}]
    env = plan_of(job(training=training, replicas=None, roles=roles_)).replicas[0].env
    assert (env["DATA_DIR"], env["A"]) == ("/mine", "2")
