"""The commands on a job that has succeeded and one that has failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ffdl_airflow.stages.reap import Reaped
from tests.cli.conftest import Ffdl
from tests.trainers.counting import weights_after

Done = tuple[Ffdl, str, str]


def table(text: str) -> list[list[str]]:
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    return [line.split() for line in text.splitlines()]


def test_get_lists_jobs_newest_first(done: Done) -> None:
    ffdl, good, bad = done
    head, first, second = table(ffdl("get").out)
    assert head == ["JOB", "PHASE", "REPLICAS/GPUS", "STEP", "DURATION", "REASON"]
    assert first[:3] == [bad, "Failed", "2/0"]
    assert second[:4] == [good, "Succeeded", "2/0", "10"]
    assert "exit code 3" in ffdl("get", bad).out


def test_get_wide_shows_what_is_asked_for(done: Done) -> None:
    ffdl, good, _ = done
    head, row = table(ffdl("get", good, "-o", "wide").out)
    assert head == [
        "JOB", "NAME", "PHASE", "REPLICAS/GPUS", "UTILIZATION", "DURATION", "GENERATION", "MODEL",
        "SHA256", "REASON",
    ]  # fmt: skip
    shown = ffdl.job(good)
    assert row[:4] == [good, "count", "Succeeded", "2/0"]
    assert row[-4:] == [shown["generation"], "count:1", shown["sha256"], "-"]
    assert shown["generation"].startswith("numbers=")
    assert len(shown["sha256"]) == 64


@pytest.mark.parametrize("words", [["get"], ["events"], ["registry"]])
def test_documents_are_the_same_in_json_and_yaml(done: Done, words: list[str]) -> None:
    ffdl, good, _ = done
    words = [*words, good] if words == ["events"] else words
    found = ffdl(*words, "-o", "json").json
    assert yaml.safe_load(ffdl(*words, "-o", "yaml").out) == found
    assert isinstance(found, list)
    assert found


def test_describe_tells_the_story(done: Done) -> None:
    ffdl, good, bad = done
    story = ffdl("describe", good, "-o", "json").json
    assert (story["phase"], story["gang"]) == ("Succeeded", {"replicas": 2, "gpus": 0, "slots": 2})
    assert [phase["phase"] for phase in story["phases"]] == [
        "Submitted", "Validated", "Prefetching", "DataReady", "Reserving", "Reserved", "Starting",
        "Running", "Stopping", "Trained", "Registering", "Succeeded",
    ]  # fmt: skip
    cost = story["slot_seconds"]
    assert cost.pop("total") == pytest.approx(sum(cost.values()), abs=0.01)
    assert story["checkpoint"]["step"] == 10
    assert yaml.safe_load(ffdl("describe", good).out)["model"] == story["model"]
    failed = ffdl("describe", bad, "-o", "json").json
    (attempt,) = failed["attempts"]
    assert (attempt["result"], attempt["class"]) == ("failed", "UNKNOWN")
    assert attempt["last_step"] >= 7
    assert failed["verdict"]["next_step"] == attempt["next_step"]


def test_events_say_the_reason_first(done: Done) -> None:
    ffdl, good, bad = done
    told = {row["kind"]: row["text"] for row in ffdl("events", good, "-o", "json").json}
    assert told["GoIntended"] == "from nothing"
    assert told["AttemptEnded"] == "well after step 10"
    assert told["DataReady"].startswith("numbers is generation ")
    assert told["ModelRegistered"].startswith("count version 1, sha256 ")
    told = {row["kind"]: row["text"] for row in ffdl("events", bad, "-o", "json").json}
    assert told["AttemptEnded"].startswith("rank 1 of worker-1 exited with code 3 after step ")
    assert told["Verdict"].startswith("UNKNOWN: rank 1 of worker-1 ended with exit code 3")
    assert told["Failed"].endswith("(backoffLimit 0 is used up)")
    head, *rows = table(ffdl("events", bad).out)
    assert head == ["SEQ", "AT", "KIND", "ATTEMPT", "TEXT"]
    assert [row[0] for row in rows] == [str(n) for n in range(1, len(rows) + 1)]


def test_logs_of_attempts_that_have_started_nothing(ffdl: Ffdl) -> None:
    training = {"framework": "custom", "command": ["/nowhere/train"]}
    ffdl("run", "-f", ffdl.manifest("nowhere", training=training, model=None))
    (row,) = ffdl("get", "-o", "json").json
    result = ffdl("logs", row["job"])
    assert result.code == 4
    assert "has no logs: no process has started in 1 attempt; the newest one: " in result.err
    assert "/nowhere/train" in result.err
    assert f"see `ffdl evidence {row['job']}`" in result.err


def test_logs(done: Done) -> None:
    ffdl, good, bad = done
    lines = ffdl("logs", good).out.splitlines()
    assert lines[0].startswith("ffdl: OMP_NUM_THREADS=1: the replica asks for 1 core")
    assert lines[1].startswith("start rank=0")
    assert lines[-1] == f"end weights={weights_after(10)}"
    assert "\nstart rank=1" in ffdl("logs", good, "--rank", 1, "--attempt", 1).out
    assert "\nstart rank=1" in ffdl("logs", good, "--replica", "worker-1").out
    assert ffdl("logs", good, "-f").out.splitlines() == lines
    assert ffdl("logs", bad, "--rank", 1).out.endswith("failing with 3\n")
    missing = ffdl("logs", good, "--rank", 7)
    assert (missing.code, missing.out) == (4, "")
    assert "attempt 1 rank 0 of worker-0, attempt 1 rank 1 of worker-1" in missing.err
    assert "attempt 1 ps-0" in ffdl("logs", good, "--replica", "ps-0").err


def test_evidence(done: Done) -> None:
    ffdl, good, bad = done
    text = ffdl("evidence", bad).out
    first, cause, then, kept, *tails = text.splitlines()
    assert first == "attempt 1: UNKNOWN (rank 1 of worker-1), costs one of backoffLimit"
    assert cause.startswith("cause: rank 1 of worker-1 ended with exit code 3")
    assert then.startswith("next:  ")
    assert kept.endswith(f"jobs/{bad}/attempts/1/evidence")
    assert tails[0] == "--- rank 0"
    assert tails[-1] == "failing with 3"
    document = ffdl("evidence", bad, "-o", "json").json
    assert (document["attempt"], document["verdict"]["class"]) == (1, "UNKNOWN")
    assert set(document["tails"]) == {"0", "1"}
    for words in ([good], [bad, "--attempt", 9]):
        missing = ffdl("evidence", *words)
        assert missing.code == 4
        assert "has left evidence" in missing.err


def test_a_failed_job_says_cause_evidence_and_what_to_do(done: Done) -> None:
    ffdl, _, bad = done
    result = ffdl("run", "--job", bad, "--until", "submit")
    assert result.code == 0, "it may go on: the clear is an event"
    assert ffdl.job(bad)["phase"] == "Validated"
    path = ffdl.manifest("broken", args="--steps 10 --every 5 --fail-at 7:3", backoffLimit=0)
    result = ffdl("run", "-f", path)
    assert result.code == 1
    assert "Traceback" not in result.err
    (line,) = result.err.splitlines()
    job_id = result.out.splitlines()[0].removeprefix("job ")
    assert line.startswith(f"ffdl: job {job_id} Failed: rank ")
    assert f"Evidence: `ffdl evidence {job_id}`, `ffdl logs {job_id}`" in line
    assert "Next: read the tail of the first failing rank" in line


def test_progress_in_a_pipe_is_plain_lines(done: Done) -> None:
    ffdl, _, _ = done
    result = ffdl("run", "-f", ffdl.manifest("plain", model=None))
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].startswith("job plain-")
    phases = [line.split()[-1] for line in lines if "  +" in line]
    assert phases[0] == "Submitted"
    assert phases[-1] == "Succeeded"
    assert "\x1b" not in result.out
    assert "\r" not in result.out


def test_a_program_gets_json_and_nothing_else(done: Done) -> None:
    ffdl, good, _ = done
    result = ffdl("run", "--job", good, "-o", "json")
    assert (result.code, result.json["job"]) == (0, good)
    assert f"job {good}" in result.err
    assert "model count version 1" in result.err
    assert yaml.safe_load(ffdl("run", "--job", good, "-o", "yaml").out)["phase"] == "Succeeded"


def test_validate_says_what_it_means(done: Done) -> None:
    ffdl, _, _ = done
    path = ffdl.manifest("gpus", resources={"gpu": 1}, replicas=2)
    text = f"{path}: valid; 2 replicas, 2 GPUs, time limit 3600 s of running\n"
    assert ffdl("validate", "-f", path).out == text
    assert ffdl("validate", "-f", ffdl.manifest()).out.endswith("0 GPUs, time limit none\n")
    one = ffdl("validate", "-f", ffdl.manifest(replicas=1))
    assert (": valid; 1 replica, 0 GPUs" in one.out, one.err) == (True, "")
    document = ffdl("validate", "-f", path, "-o", "json").json
    assert (document["valid"], document["spec"]["spec"]["replicas"]) == (True, 2)


def test_validate_leaves_nothing_where_nothing_was(
    done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ffdl, _, _ = done
    path = ffdl.manifest(replicas=1)
    monkeypatch.setenv("FFDL_STATE_DIR", str(tmp_path / "not" / "yet"))
    assert ffdl("validate", "-f", path).code == 0
    assert ffdl("validate", "-f", ffdl.manifest(replicas=99)).code == 2
    assert not (tmp_path / "not").exists()


def test_a_gpu_job_on_a_machine_without_one(done: Done) -> None:
    """It runs: a GPU is a CPU slot then, and a warning says so."""
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has GPUs")
    ffdl, _, _ = done
    path = ffdl.manifest("gpus", resources={"gpu": 1}, replicas=2, model=None)
    warning = "spec.resources.gpu: 2 GPUs are asked for and this machine has none"
    for words in (["validate"], ["run", "-o", "json"]):
        result = ffdl(*words, "-f", path)
        assert result.code == 0
        (line,) = (line for line in result.err.splitlines() if "warning" in line)
        assert line.startswith(f"ffdl: warning: {warning}")
    events = ffdl("events", result.json["job"], "-o", "json").json
    (told,) = (event["body"]["warnings"] for event in events if event["kind"] == "Validated")
    assert told[0].startswith(warning)


def test_a_job_that_has_succeeded_is_not_run_again(done: Done) -> None:
    ffdl, good, _ = done
    before = ffdl("events", good).out
    result = ffdl("run", "-f", ffdl.manifest("other"), "--job", good)
    assert (result.code, result.out) == (2, "")
    (line,) = result.err.splitlines()
    assert "a finished job is not run again. Next: leave out --job" in line
    assert ffdl("events", good).out == before


def test_registry(done: Done) -> None:
    ffdl, good, _ = done
    head, row = table(ffdl("registry").out)
    assert head == ["NAME", "VERSION", "SHA256", "JOB", "ATTEMPTS", "STEP", "CREATEDAT"]
    assert (row[0], row[1], row[3], row[5]) == ("count", "1", good, "10")
    assert table(ffdl("registry", "count").out) == [head, row]
    model = ffdl("registry", "count", 1, "-o", "json").json
    assert (model["job"], model["sha256"]) == (good, row[2])
    assert set(model["data"]) == {"numbers"}
    assert ffdl("registry", "count", 9).code == 4


def test_what_has_ended_is_not_stopped(done: Done) -> None:
    ffdl, good, _ = done
    before = ffdl("events", good).out
    assert ffdl("stop", good).out == f"{good} has ended already: Succeeded\n"
    assert ffdl("stop", good, "--now", "-o", "json").json["phase"] == "Succeeded"
    assert ffdl("events", good).out == before
    refused = ffdl("save", good)
    assert refused.code == 2
    assert "found phase Succeeded, allowed: Running" in refused.err


def test_nothing_to_reap(done: Done) -> None:
    ffdl, _, _ = done
    assert ffdl("reap").out == "PLACEMENT  WHY  KILLED  ERROR\n"
    assert ffdl("reap", "-o", "json").json == []


def test_what_could_not_be_reaped_is_told(done: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    ffdl, _, _ = done
    found = [Reaped(placement_id="a-1/1", why="its job has ended (Failed)", killed=2),
             Reaped(placement_id="b-2/1", why="", error="ValueError: torn")]  # fmt: skip
    monkeypatch.setattr("ffdl_airflow.commands.reap", lambda deps: found)
    result = ffdl("reap")
    assert result.code == 3
    assert "b-2/1" in result.out
    assert "ValueError: torn" in result.out
    monkeypatch.setattr("ffdl_airflow.commands.reap", lambda deps: found[:1])
    assert ffdl("reap").code == 0


def test_a_reader_that_goes_away_is_no_fault(done: Done) -> None:
    ffdl, good, _ = done
    with ffdl.start("events", good, "-o", "json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (0, "")


def test_the_program_itself_starts(done: Done) -> None:
    ffdl, good, _ = done
    out, err = ffdl.start("get", good, "-o", "json").communicate(timeout=60)
    rows: Any = json.loads(out)
    assert (rows[0]["job"], err) == (good, "")
