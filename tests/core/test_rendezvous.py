"""Ranks and their environment, and the plan of a gang compared whole."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow.agent.protocol import file_placeholder, port_placeholder
from ffdl_airflow.core.events import iso
from ffdl_airflow.core.job import SINGLE, TRAINING, JobSpec, TrainingJob
from ffdl_airflow.core.plan import GangPlan, Places, Timing, build, deciding, gang_slots, slots_of
from ffdl_airflow.core.rendezvous import (
    HOSTFILE,
    HYDRA_HOSTFILE,
    NOT_RANKS,
    environment,
    gang_of,
    hostfiles,
    processes_of,
    ranks,
    reserved,
    surprises,
    threads_of,
)
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


MASTER_PORT = port_placeholder("worker-0", 0)


def env_of(spec: JobSpec, place: int, *, host: str = "127.0.0.1") -> dict[str, str]:
    gang = gang_of(spec, host)
    return environment(gang, gang.ranks[place])


def numbers(spec: JobSpec) -> list[tuple[str, int | None, int, int]]:
    return [(rank.replica, rank.number, rank.local, rank.node) for rank in ranks(spec)]


def test_one_role_one_process() -> None:
    assert numbers(spec_of(replicas=2)) == [("worker-0", 0, 0, 0), ("worker-1", 1, 0, 1)]


def test_several_processes_in_a_replica() -> None:
    spec = spec_of(roles=[{"name": "worker", "replicas": 2, "processesPerReplica": 2}])
    assert numbers(spec) == [("worker-0", 0, 0, 0), ("worker-0", 1, 1, 0), ("worker-1", 2, 0, 1),
                             ("worker-1", 3, 1, 1)]  # fmt: skip
    assert env_of(spec, 3, host="192.0.2.1") == {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": MASTER_PORT,
    }  # fmt: skip


def test_servers_and_evaluators_are_no_ranks() -> None:
    roles = [{"name": "chief"}, {"name": "ps", "replicas": 2}, {"name": "worker", "replicas": 2},
             {"name": "evaluator"}]  # fmt: skip
    spec = spec_of(roles=roles)
    assert [(replica, number) for replica, number, _, _ in numbers(spec)] == [
        ("chief-0", 0), ("ps-0", None), ("ps-1", None), ("worker-0", 1), ("worker-1", 2),
        ("evaluator-0", None),
    ]  # fmt: skip
    assert env_of(spec, 1) == {}


def test_the_master_is_rank_0_wherever_its_role_stands() -> None:
    spec = spec_of("jax", roles=[{"name": "ps"}, {"name": "worker", "replicas": 2}])
    env = env_of(spec, 2, host="{replica}.job.ml.svc")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("worker-0.job.ml.svc", MASTER_PORT)
    assert env["JAX_COORDINATOR_ADDRESS"] == f"worker-0.job.ml.svc:{MASTER_PORT}"
    assert env_of(spec, 0) == {}


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
    env = env_of(spec, 2, host="192.0.2.1")
    assert {key: value for key, value in env.items() if key.startswith("PET_")} == {
        "PET_NNODES": "3", "PET_NODE_RANK": "2", "PET_NPROC_PER_NODE": launched,
        "PET_MASTER_ADDR": "192.0.2.1", "PET_MASTER_PORT": MASTER_PORT,
    }  # fmt: skip


def test_other_pytorch_programs_get_no_arguments_of_torchrun() -> None:
    env = env_of(spec_of("pytorch", replicas=2), 0)
    assert not [name for name in env if name.startswith("PET_")]


def test_jax_finds_its_coordinator() -> None:
    env = env_of(spec_of("jax", replicas=2), 1, host="192.0.2.1")
    own = {name: value for name, value in env.items() if name.startswith("JAX_")}
    assert own == {
        "JAX_COORDINATOR_ADDRESS": f"192.0.2.1:{MASTER_PORT}", "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "1",
    }  # fmt: skip


def config_of(spec: JobSpec, place: int, host: str = "127.0.0.1") -> Any:
    return json.loads(env_of(spec, place, host=host)["TF_CONFIG"])


def test_tensorflows_cluster_is_the_same_for_all() -> None:
    """cases.md A01: evaluators have a task and are not listed."""
    roles = [{"name": "chief"}, {"name": "ps", "replicas": 2}, {"name": "worker", "replicas": 3},
             {"name": "evaluator"}]  # fmt: skip
    spec = spec_of("tensorflow", roles=roles)
    gang = gang_of(spec)
    assert gang.world_size == 4
    host = "{replica}.ads-rank.ml.svc"
    found = [config_of(spec, place, host) for place in range(len(gang.ranks))]
    assert {json.dumps(config["cluster"]) for config in found} == {json.dumps({
        "chief": ["chief-0.ads-rank.ml.svc:{{PORT chief-0}}"],
        "ps": [f"ps-{n}.ads-rank.ml.svc:{{{{PORT ps-{n}}}}}" for n in range(2)],
        "worker": [f"worker-{n}.ads-rank.ml.svc:{{{{PORT worker-{n}}}}}" for n in range(3)],
    })}  # fmt: skip
    assert [tuple(config["task"].values()) for config in found] == [
        ("chief", 0), ("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1), ("worker", 2),
        ("evaluator", 0),
    ]  # fmt: skip
    assert {config["environment"] for config in found} == {"cloud"}


def test_processes_of_one_replica_are_tasks_with_ports_of_their_own() -> None:
    role = {"name": "worker", "replicas": 2, "processesPerReplica": 2}
    config = config_of(spec_of("tensorflow", roles=[role]), 3)
    assert config["task"] == {"type": "worker", "index": 3}
    assert config["cluster"]["worker"] == [
        "127.0.0.1:{{PORT worker-0}}", "127.0.0.1:{{PORT worker-0.1}}",
        "127.0.0.1:{{PORT worker-1}}", "127.0.0.1:{{PORT worker-1.1}}",
    ]  # fmt: skip


def test_one_tensorflow_process_needs_no_cluster() -> None:
    """As Kubeflow: no TF_CONFIG where the job has exactly one replica."""
    assert "TF_CONFIG" not in env_of(spec_of("tensorflow", replicas=1), 0)
    launched = spec_of("tensorflow", roles=[{"name": "launcher"}, WORKERS])
    assert "TF_CONFIG" not in env_of(launched, 0)


def test_a_master_of_tensorflow_is_called_so_and_told_of() -> None:
    spec = spec_of("tensorflow", roles=[{"name": "master"}, WORKERS])
    assert set(config_of(spec, 1)["cluster"]) == {"master", "worker"}
    (told,) = surprises(spec)
    assert told.startswith("role master: TF_CONFIG says master")


def test_who_builds_a_tf_config_himself_keeps_it() -> None:
    """cases.md A22."""
    training = {"framework": "tensorflow", "command": ["t"], "env": {"TF_CONFIG": "{}"}}
    plan = plan_of(job(training=training, replicas=2))
    assert plan.replicas[1].env["TF_CONFIG"] == "{}"
    assert "TF_CONFIG" not in plan.replicas[1].processes[0]["env"]
    assert reserved(job(training=training, replicas=2).spec) == []


def test_one_process_a_gpu_numbers_the_ranks_through() -> None:
    """cases.md A04: one GPU on the master, two on each worker."""
    roles = [{"name": "master", "resources": {"gpu": 1}},
             {"name": "worker", "replicas": 2, "resources": {"gpu": 2}}]  # fmt: skip
    spec = spec_of("pytorch", command=(), roles=roles)
    assert numbers(spec) == [
        ("master-0", 0, 0, 0), ("worker-0", 1, 0, 1), ("worker-0", 2, 1, 1), ("worker-1", 3, 0, 2),
        ("worker-1", 4, 1, 2),
    ]  # fmt: skip
    plain = spec_of("pytorch", command=("python", "t.py"), roles=roles)
    assert [rank.number for rank in ranks(plain)] == [0, 1, 2]
    (told,) = surprises(plain)
    assert told.startswith("spec.roles[1].resources.gpu: 2 of 4 GPUs will be unused, PyTorch takes")
    assert surprises(spec) == []


def test_plain_python_leaves_gpus_idle() -> None:
    """cases.md A05: 16 GPUs, two ranks."""
    roles = [{"name": name, "resources": {"gpu": 8}} for name in ("master", "worker")]
    spec = spec_of("pytorch", command=("python", "/app/ddp.py"), roles=roles)
    assert len(ranks(spec)) == 2
    assert [text.split(":")[1].split(",")[0] for text in surprises(spec)] == [
        " 7 of 8 GPUs will be unused",
    ] * 2  # fmt: skip
    assert surprises(spec_of("pytorch", command=("torchrun", "ddp.py"), roles=roles)) == []


def test_torchrun_in_a_shell_is_a_launcher_too() -> None:
    """cases.md A25: its WORLD_SIZE is the number of nodes, and no GPU is idle."""
    script = (
        "export NODE_RANK=$RANK && unset RANK && torchrun --nnodes=$WORLD_SIZE "
        "--node_rank=$NODE_RANK --nproc_per_node=8 t.py"
    )
    spec = spec_of("pytorch", command=("/bin/sh", "-c", script), replicas=4, resources={"gpu": 8})
    env = env_of(spec, 3)
    assert (env["WORLD_SIZE"], env["RANK"], env["PET_NPROC_PER_NODE"]) == ("4", "3", "8")
    assert surprises(spec) == []
    named = ("python", "t.py", "--launcher", "torchrun")
    assert "PET_NNODES" not in env_of(spec_of("pytorch", command=named), 0)
    module = ("bash", "-c", "python -m torch.distributed.launch --nproc_per_node=2 train.py")
    assert "PET_NNODES" in env_of(spec_of("pytorch", command=module), 0)


def test_without_a_master_the_first_worker_is_it() -> None:
    """cases.md A09: node ranks without a shift."""
    spec = spec_of("pytorch", command=("torchrun", "t.py"), replicas=4, resources={"gpu": "4"})
    env = env_of(spec, 3, host="{replica}.nomaster")
    assert (env["MASTER_ADDR"], env["PET_NODE_RANK"], env["PET_NPROC_PER_NODE"]) == (
        "worker-0.nomaster", "3", "4",
    )  # fmt: skip


MPI_WORKERS = {"name": "worker", "replicas": 4, "resources": {"gpu": 8}}


def test_mpirun_finds_its_hosts() -> None:
    """cases.md A13: the launcher has no slot, and starts everything."""
    command = ["mpirun", "-np", "32", "python", "train.py"]
    roles = [{"name": "launcher", "command": command, "resources": {"gpu": 0}}, MPI_WORKERS]
    gang = gang_of(spec_of("mpi", roles=roles), "bench-{replica}.bench.ml.svc")
    assert [(rank.replica, rank.number) for rank in gang.ranks] == [("launcher-0", None)]
    files = hostfiles(gang)
    hosts = [f"bench-worker-{n}.bench.ml.svc" for n in range(4)]
    assert files[HOSTFILE] == "".join(f"{host} slots=8\n" for host in hosts)
    assert files[HYDRA_HOSTFILE] == "".join(f"{host}:8\n" for host in hosts)
    env = environment(gang, gang.ranks[0])
    assert env["OMPI_MCA_orte_default_hostfile"] == env["PRTE_MCA_prte_default_hostfile"]
    assert env["FFDL_HOSTFILE"] == file_placeholder(HOSTFILE)
    hydra = {env["I_MPI_HYDRA_HOST_FILE"], env["HYDRA_HOST_FILE"]}
    assert hydra == {file_placeholder(HYDRA_HOSTFILE)}
    assert "RANK" not in env
    assert surprises(gang.spec) == []


def test_a_wrong_number_of_processes_for_mpirun_is_told_of() -> None:
    role = {"name": "launcher", "command": ["mpirun", "-n", "16", "train"]}
    (told,) = surprises(spec_of("mpi", roles=[role, MPI_WORKERS]))
    assert told == "mpirun is told to start 16 processes, the gang has 32 slots"
    assert surprises(spec_of("mpi", command=("mpirun", "train"), replicas=2)) == []
    training = {"framework": "mpi", "entryPoint": "t.py", "code": "/src", "args": ["-n", "7"]}
    assert surprises(job(training=training, replicas=2).spec) == [], "the program's own -n"


def test_replicas_on_one_host_share_a_line() -> None:
    """Open MPI refuses a host that is named twice with slots."""
    assert hostfiles(gang_of(spec_of("mpi", replicas=3)))[HOSTFILE] == "127.0.0.1 slots=3\n"
    assert hostfiles(gang_of(spec_of("mpi", roles=[{"name": "launcher"}])))[HOSTFILE]
    assert hostfiles(gang_of(spec_of("jax", replicas=3))) == {}


def test_without_a_launcher_the_first_replica_runs_mpirun_and_the_others_hold() -> None:
    training = {"framework": "mpi", "entryPoint": "train.py", "code": "/src", "args": ["--x"]}
    first, second = plan_of(job(training=training, replicas=2)).replicas
    assert first.command == ("mpirun", "/usr/bin/python3", "-u", "train.py", "--x")
    assert (len(first.processes), set(first.files)) == (1, {HOSTFILE, HYDRA_HOSTFILE})
    assert (second.command, second.processes, dict(second.files)) == ((), (), {})
    assert second.env["LEARNER_ID"] == "2"


def test_mpis_ranks_are_tuned_for_the_workers_resources() -> None:
    worker = {"name": "worker", "replicas": 2, "resources": {"gpu": 4, "cpu": 16}}
    training = {"framework": "mpi", "command": ["mpirun", "train"]}
    launcher = plan_of(job(training=training, replicas=None, roles=[{"name": "launcher"}, worker]))
    tuning = launcher.replicas[0].tuning
    assert (tuning["gpu"], tuning["cpu"], tuning["threads_share"]) == (4, 16.0, 4)


def test_cores_are_shared_by_what_runs_in_a_replica() -> None:
    role = {"name": "worker", "processesPerReplica": 4}
    shares = {
        (framework, command): threads_of(spec.all_roles[0], spec)
        for framework, command in [("pytorch", "torchrun"), ("pytorch", "python"),
                                   ("mpi", "mpirun"), ("pytorch", "accelerate")]
        for spec in [spec_of(framework, command=(command, "t.py"), roles=[role])]
    }  # fmt: skip
    assert shares == {("pytorch", "torchrun"): 4, ("pytorch", "python"): 4, ("mpi", "mpirun"): 4,
                      ("pytorch", "accelerate"): 4}  # fmt: skip


def test_the_nodes_own_network_is_warned_of() -> None:
    (told,) = surprises(spec_of("jax", network={"hostNetwork": True}))
    assert told.startswith("spec.network.hostNetwork: the gang shares the network of its nodes")


def test_what_only_the_launcher_may_set() -> None:
    training = {"framework": "pytorch", "command": ["torchrun", "t.py"],
                "env": {"PET_NNODES": "5", "LOG_LEVEL": "debug", "NCCL_DEBUG": "INFO"}}  # fmt: skip
    roles = [{"name": "worker", "env": {"RANK": "0"}}, {"name": "ps", "env": {"RANK": "0"}}]
    spec = job(training=training, replicas=None, roles=roles).spec
    assert reserved(spec) == [("training", "PET_NNODES"), ("roles[0]", "RANK")]


def test_names_of_ours_are_only_the_launchers() -> None:
    """But for the two that a user may set himself, see docs/frameworks.md."""
    env = dict.fromkeys(["FFDL_PLACEMENT", "FFDL_DATA_X", "FFDL_CHECKPOINT_TIMEOUT",
                         "FFDL_HOSTFILE", "MY_FFDL_X"], "1")  # fmt: skip
    training = {"framework": "mpi", "command": ["t"], "env": env}
    spec = job(training=training, replicas=None, roles=[{"name": "launcher"}, ROLE_OF_OURS]).spec
    expected = [("training", "FFDL_PLACEMENT"), ("training", "FFDL_DATA_X"), ("roles[1]", "FFDL_X")]
    assert reserved(spec) == expected


ROLE_OF_OURS = {"name": "worker", "env": {"FFDL_X": "1"}}


drawn_roles = st.lists(
    st.tuples(st.sampled_from(["chief", "master", "worker", "ps", "evaluator", "launcher"]),
              st.integers(1, 4), st.integers(1, 3)),
    min_size=1, max_size=4, unique_by=lambda role: role[0],
).filter(lambda roles: {name for name, _, _ in roles} & set(TRAINING))  # fmt: skip


@given(drawn_roles)
def test_numbers_are_dense_and_start_at_0(drawn: list[tuple[str, int, int]]) -> None:
    spec = spec_of(roles=[
        {"name": name, "replicas": 1 if name in SINGLE else count, "processesPerReplica": size}
        for name, count, size in drawn
    ])  # fmt: skip
    found = ranks(spec)
    counted = [rank for rank in found if rank.number is not None]
    assert [rank.number for rank in counted] == list(range(len(counted)))
    assert all(rank.replica.rpartition("-")[0] not in NOT_RANKS for rank in counted)
    assert len(found) == sum(size * (1 if name in SINGLE else count) for name, count, size in drawn)
    for rank in counted:
        env = environment(gang_of(spec), rank)
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
        ("mpi", [{"name": "launcher"}, WORKERS], "allWorkers", ["launcher-0"]),
        ("mpi", [WORKERS], None, ["worker-0"]),
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


def plain(part: Any) -> Any:
    return iso(part) if isinstance(part, datetime) else part.model_dump(mode="json")


def test_a_whole_plan() -> None:
    """Compared whole with a file that no test run writes."""
    plan = plan_of(FULL)
    found = {**asdict(plan), "placement_id": plan.placement_id, "slots": plan.slots}
    golden = json.loads((GOLDEN / "gang_plan.json").read_text())
    written = json.dumps(found, default=plain)
    assert json.loads(written) == golden


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
