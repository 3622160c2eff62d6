"""Who decides that a gang has ended, and how its members find one another: with plain processes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from installation import Installation, job_id_of, show

from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.lifecycle import Phase
from tests.conftest import environ_of

MEMBER = """
import json, os, pathlib, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
out = pathlib.Path(os.environ["FFDL_OUTPUT_DIR"])
name = "%s-%s" % (task["type"], task["index"])
(out / (name + ".json")).write_text(json.dumps(dict(os.environ)))
print("this is", name, flush=True)
deadline = time.monotonic() + 120
def wait(*names):
    while not all((out / n).exists() for n in names):
        assert time.monotonic() < deadline
        time.sleep(0.02)
ends = dict(word.split("=") for word in sys.argv[1:])
if name in ends:
    wait(*[n for n in ends.get("after", "").split(",") if n])
    sys.exit(int(ends[name]))
if name == "evaluator-0":
    wait("chief-0.json")
    wait("last-look") if "slow" in ends else None
    (out / "evaluated").write_text("")
    sys.exit(0)
time.sleep(120)
"""
ROLES = [{"name": "chief"}, {"name": "ps", "replicas": 2}, {"name": "worker"},
         {"name": "evaluator"}]  # fmt: skip
ALL = "chief-0.json,ps-0.json,ps-1.json,worker-0.json,evaluator-0.json"


@pytest.fixture
def job(installation: Installation) -> Callable[..., Path]:
    installation.values["slots"] = "5"

    def make(*words: str, **spec: Any) -> Path:
        code = installation.home / "member"
        code.mkdir()
        (code / "member.py").write_text(MEMBER)
        path = installation.manifest("roles", replicas=1, options={})
        document = yaml.safe_load(path.read_text())
        del document["spec"]["replicas"], document["spec"]["model"]
        training = {"framework": "tensorflow", "code": str(code), "entryPoint": "member.py",
                    "args": list(words)}  # fmt: skip
        document["spec"] |= {"training": training, "roles": ROLES, **spec}
        path.write_text(yaml.safe_dump(document))
        return path

    return make


def ended(installation: Installation) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """(job id, body of AttemptEnded, process name → its end)."""
    (job_id,) = installation.jobs()
    body = dict(installation.events(job_id, Kind.ATTEMPT_ENDED)[-1].body)
    return job_id, body, {entry["replica"]: entry for entry in body["ranks"]}


def test_the_chiefs_end_is_the_jobs(installation: Installation, job: Callable[..., Path]) -> None:
    """Servers and worker wait for ever and are told to go; the evaluator ends by itself."""
    done = installation.run("run", "-f", job("chief-0=0", f"after={ALL}"), "--until", "launch")
    job_id, body, ends = ended(installation)
    assert done.returncode == 0, done.stdout + show(installation.events(job_id))
    assert body["ok"]
    assert {name: end["exit"] for name, end in ends.items() if end["exit"] is not None} == {
        "chief-0": 0, "evaluator-0": 0,
    }  # fmt: skip
    assert {ends[name]["signal"] for name in ("ps-0", "ps-1", "worker-0")} == {15}
    assert {name: end["rank"] for name, end in ends.items()} == {
        "chief-0": 0, "worker-0": 1, "ps-0": None, "ps-1": None, "evaluator-0": None,
    }  # fmt: skip
    for name in ends:
        assert installation.run("logs", job_id, "--replica", name).stdout.endswith(
            f"this is {name}\n"
        )
    members = environments(installation, job_id)
    config = {name: json.loads(env["TF_CONFIG"]) for name, env in members.items()}
    (cluster,) = {json.dumps(found["cluster"]) for found in config.values()}
    listed = json.loads(cluster)
    assert {role: len(addresses) for role, addresses in listed.items()} == {
        "chief": 1, "ps": 2, "worker": 1,
    }  # fmt: skip
    addresses = [address for role in listed.values() for address in role]
    assert len(set(addresses)) == 4
    assert all(re.fullmatch(r"127\.0\.0\.1:\d{5}", address) for address in addresses)
    assert config["ps-1"]["task"] == {"type": "ps", "index": 1}
    assert config["evaluator-0"]["task"] == {"type": "evaluator", "index": 0}
    assert "RANK" not in members["ps-0"]
    assert (members["worker-0"]["RANK"], members["worker-0"]["WORLD_SIZE"]) == ("1", "2")


def environments(installation: Installation, job_id: str) -> dict[str, dict[str, str]]:
    output = installation.home / "state" / "jobs" / job_id / "output"
    return {path.stem: json.loads(path.read_text()) for path in output.glob("*-?.json")}


def test_an_evaluator_has_its_grace_and_no_more(
    installation: Installation, job: Callable[..., Path]
) -> None:
    manifest = job("chief-0=0", f"after={ALL}", "slow=1", evaluatorGrace=0.5)
    done = installation.run("run", "-f", manifest, "--until", "launch")
    job_id, body, ends = ended(installation)
    assert done.returncode == 0, done.stdout + show(installation.events(job_id))
    assert body["ok"]
    assert ends["evaluator-0"]["signal"] == 15


def test_the_end_waits_for_the_evaluator(
    installation: Installation, job: Callable[..., Path], wait_until: Callable[..., Any]
) -> None:
    process = installation.start("run", "-f", job("chief-0=0", f"after={ALL}", "slow=1"),
                                 "--until", "launch")  # fmt: skip
    job_id = job_id_of(process)

    def left() -> set[str]:
        found = {environ_of(one).get("FFDL_REPLICA") for one in installation.processes()}
        return {name for name in found if name}

    output = installation.home / "state" / "jobs" / job_id / "output"
    began = [output / name for name in ALL.split(",")]
    wait_until(lambda: all(path.exists() for path in began), message="all five have begun")
    wait_until(lambda: left() == {"evaluator-0"}, message="the evaluator alone")
    assert installation.state(job_id).phase is not Phase.TRAINED
    (output / "last-look").write_text("")
    process.communicate(timeout=60)
    assert (output / "evaluated").exists()
    assert ended(installation)[2]["evaluator-0"]["exit"] == 0


def test_a_server_that_fails_fails_the_attempt_and_is_named(
    installation: Installation, job: Callable[..., Path]
) -> None:
    done = installation.run("run", "-f", job("ps-1=3", f"after={ALL}", backoffLimit=0))
    job_id, body, _ = ended(installation)
    assert done.returncode == 1, done.stdout
    assert (body["ok"], body["cause"]["replica"], body["cause"]["rank"]) == (False, "ps-1", None)
    assert body["cause"]["text"] == "ps-1 exited with code 3"
    assert "this is ps-1" in body["tail"]
    told = installation.run("evidence", job_id).stdout
    assert "(ps-1), costs" in told
    tails = json.loads(installation.run("evidence", job_id, "-o", "json").stdout)["tails"]
    assert {label: text.splitlines()[-1] for label, text in tails.items()} == {
        "0": "this is chief-0", "1": "this is worker-0", "ps-0": "this is ps-0",
        "ps-1": "this is ps-1", "evaluator-0": "this is evaluator-0",
    }  # fmt: skip
