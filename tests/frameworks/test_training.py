"""Real two-process training on the digits, by framework; each is killed once and goes on.

JAX's own test is tests/chaos/test_digits.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from installation import Installation, job_id_of, show

from ffdl_airflow.core.events import Kind

for module in ("torch", "tensorflow", "mpi4py", "sklearn"):
    pytest.importorskip(module, reason=f"training needs {module}", exc_type=ImportError)

TRAINERS = Path(__file__).parent / "trainers"
STEPS, EVERY, DELAY_S = 200, 50, 0.02
SEEN_S = 240
"""Deadline for what a busy machine needs to import a framework and train. Generous."""

Wait = Callable[..., Any]


def test_pytorch_ends_with_the_same_weights_however_it_is_started_and_killed(
    installation: Installation, wait_until: Wait
) -> None:
    """One replica with two processes, two replicas, and torchrun: each is a world of two."""
    own = installation.digits("own", steps=STEPS, every=EVERY, example="digits_torch")
    alone = changed(own, "alone", replicas=None,
                    roles=[{"name": "worker", "processesPerReplica": 2}])  # fmt: skip
    undisturbed = finished(installation, alone)
    assert undisturbed["metrics"]["accuracy"] >= 0.95
    slow = {"steps": STEPS, "every": EVERY, "step_delay": DELAY_S, "example": "digits_torch"}
    killed = killed_once(installation, wait_until, installation.digits("killed", **slow),
                         victim={"RANK": "1"})  # fmt: skip
    assert killed["sha256"] == undisturbed["sha256"]
    command = {"entryPoint": None, "command": ["torchrun", "train.py"]}
    manifest = installation.digits("torchrun", **slow, **command)
    launched = killed_once(installation, wait_until, manifest,
                           victim={"RANK": "1", "TORCHELASTIC_RUN_ID": "none"},
                           failure="HOST_OOM")  # fmt: skip
    assert launched["sha256"] == undisturbed["sha256"]


def test_tensorflow_on_mirrored_workers(installation: Installation, wait_until: Wait) -> None:
    manifest = installation.digits("mirrored", steps=STEPS, every=EVERY, step_delay=DELAY_S,
                                   example="digits_tf")  # fmt: skip
    model = killed_once(installation, wait_until, manifest, victim={"RANK": "1"})
    assert model["metrics"]["accuracy"] >= 0.95


def test_tensorflow_with_a_parameter_server(installation: Installation) -> None:
    """The chief's end is the job's; worker and server, which wait for ever, are told to go."""
    manifest = own_trainer(
        installation, "tensorflow", "parameter_server.py", replicas=None,
        roles=[{"name": "chief"}, {"name": "worker"}, {"name": "ps"}],
    )  # fmt: skip
    assert finished(installation, manifest)["metrics"]["accuracy"] >= 0.95
    (job_id,) = installation.jobs()
    ended = installation.events(job_id, Kind.ATTEMPT_ENDED)[0].body
    codes = {entry["replica"]: (entry["rank"], entry["exit"]) for entry in ended["ranks"]}
    assert codes["chief-0"] == (0, 0)
    assert codes["worker-0"] != (1, 0)
    assert codes["ps-0"][0] is None
    assert not installation.processes()


@pytest.mark.parametrize("launcher", [True, False])
def test_mpi(installation: Installation, wait_until: Wait, *, launcher: bool) -> None:
    """With a launcher and without: mpirun finds two slots in the hostfile."""
    roles: dict[str, Any] = {"replicas": 2}
    if launcher:
        roles = {"replicas": None, "roles": [{"name": "launcher"}, {"name": "worker",
                                                                    "replicas": 2}]}  # fmt: skip
    manifest = own_trainer(installation, "mpi", "mpi.py", **roles)
    model = killed_once(installation, wait_until, manifest, victim={"OMPI_COMM_WORLD_RANK": "1"},
                        of="launcher-0" if launcher else "worker-0",
                        failure="HOST_OOM")  # fmt: skip
    assert model["metrics"]["accuracy"] >= 0.95
    assert model["metrics"]["ranks"] == 2


def test_a_save_request_does_not_end_an_mpi_job(
    installation: Installation, wait_until: Wait
) -> None:
    """mpirun catches SIGUSR1 and hands it on to ranks that would die of it."""
    manifest = own_trainer(installation, "mpi", "mpi.py", replicas=2)
    process = installation.start("run", "-f", manifest)
    job_id = job_id_of(process)
    wait_until(lambda: is_past(installation, job_id, EVERY + 2, "worker-0"), timeout=SEEN_S)
    installation.run("save", job_id)

    def asked_for() -> bool:
        sealed = installation.events(job_id, Kind.CHECKPOINT_SEALED)
        return any(event.body["step"] % EVERY for event in sealed)

    wait_until(lambda: asked_for() or process.poll() is not None, timeout=SEEN_S)
    assert asked_for(), show(installation.events(job_id)) + tails(installation, job_id)
    process.communicate(timeout=SEEN_S)
    ended = installation.events(job_id, Kind.ATTEMPT_ENDED)
    assert [event.body["ok"] for event in ended] == [True], tails(installation, job_id)


def own_trainer(installation: Installation, framework: str, program: str, **spec: Any) -> Path:
    """A job of one of the trainers beside this file. mpirun lets root run only where told so."""
    code = installation.home / "trainers"
    shutil.copytree(TRAINERS, code, ignore=shutil.ignore_patterns("__pycache__"))
    training = {
        "framework": framework, "code": str(code), "entryPoint": program,
        "args": [str(STEPS), str(EVERY), str(DELAY_S)],
        "env": {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    }  # fmt: skip
    made = installation.digits(framework, steps=STEPS, every=EVERY, **training)
    return changed(made, framework, **spec)


def changed(manifest: Path, name: str, **spec: Any) -> Path:
    """The same job under another name; parts that are None are left out."""
    document = yaml.safe_load(manifest.read_text())
    document["metadata"]["name"] = document["spec"]["model"]["name"] = name
    every = document["spec"] | spec
    document["spec"] = {key: value for key, value in every.items() if value is not None}
    path = manifest.with_name(f"{name}-changed.yaml")
    path.write_text(yaml.safe_dump(document))
    return path


def finished(installation: Installation, manifest: Path) -> dict[str, Any]:
    """Run the job to its end; returns its model."""
    before = set(installation.jobs())
    done = installation.run("run", "-f", manifest, timeout=SEEN_S)
    (job_id,) = set(installation.jobs()) - before
    assert done.returncode == 0, done.stdout + tails(installation, job_id)
    return model_of(installation, job_id)


def killed_once(installation: Installation, wait_until: Wait, manifest: Path, *,
                victim: dict[str, str], failure: str = "KILLED_OUTSIDE",
                of: str | None = None) -> dict[str, Any]:  # fmt: skip
    """Run the job, kill the process with that environment in the middle; returns the model.

    ``failure``: the class; a child that its launcher saw killed is thought to lack memory.
    """
    process = installation.start("run", "-f", manifest)
    job_id = job_id_of(process)
    wait_until(lambda: process.poll() is not None or is_past(installation, job_id, EVERY + 10, of),
               timeout=SEEN_S, message=f"past step {EVERY + 10}")  # fmt: skip
    found = [one for one in installation.processes() if carries(one, victim)]
    assert len(found) == 1, [one.cmdline() for one in found] + [tails(installation, job_id)]
    found[0].kill()
    out, _ = process.communicate(timeout=SEEN_S)
    story = out + show(installation.events(job_id)) + tails(installation, job_id)
    assert process.returncode == 0, story
    ended = installation.events(job_id, Kind.ATTEMPT_ENDED)
    assert [event.body["ok"] for event in ended] == [False, True], story
    verdict = installation.events(job_id, Kind.VERDICT)[0].body
    assert verdict["class"] == failure, story
    resumed = installation.events(job_id, Kind.GO_INTENDED)[1].body["resume"]
    assert resumed["step"] >= EVERY, story
    return model_of(installation, job_id)


def is_past(installation: Installation, job_id: str, step: int, of: str | None) -> bool:
    if not installation.events(job_id, Kind.CHECKPOINT_SEALED):
        return False
    logs = installation.deps().engine.logs(job_id)  # type: ignore[attr-defined]
    text = next(Path(log.path).read_text() for log in logs if of in (None, log.replica))
    steps = [line for line in text.splitlines() if line.startswith("step=")]
    return bool(steps) and int(steps[-1].split()[0].removeprefix("step=")) >= step


def carries(process: psutil.Process, wanted: dict[str, str]) -> bool:
    try:
        env = process.environ()
    except psutil.Error:
        return False
    return all(env.get(name) == value for name, value in wanted.items())


def model_of(installation: Installation, job_id: str) -> dict[str, Any]:
    model = installation.state(job_id).model
    assert model is not None
    return dict(model)


def tails(installation: Installation, job_id: str) -> str:
    logs = installation.deps().engine.logs(job_id)  # type: ignore[attr-defined]
    return "\n".join(f"-- {log.label}\n{Path(log.path).read_text()[-1500:]}" for log in logs)
