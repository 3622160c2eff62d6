"""Bad input: one clear message with the field's path, exit code 2, and nothing is created."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from ffdl_airflow import __version__, services
from tests.cli.conftest import Ffdl, Result


def refused(result: Result, ffdl: Ffdl, *, code: int = 2) -> str:
    """The one line of the message."""
    assert (result.code, result.out) == (code, ""), result
    (line,) = result.err.splitlines()
    assert line.startswith("ffdl: ")
    assert ". Next: " in line
    assert ffdl.created() == []
    return line


def edited(ffdl: Ffdl, change: Callable[[dict[str, Any]], Any]) -> Path:
    path = ffdl.manifest()
    document = yaml.safe_load(path.read_text())
    change(document["spec"])
    path.write_text(yaml.safe_dump(document))
    return path


def empty_data(spec: dict[str, Any]) -> None:
    spec["dataStores"] = [{"name": "d", "path": "nothing-in-it"}]


FIELDS: list[tuple[str, Callable[[dict[str, Any]], Any], str]] = [
    ("unknown field", lambda spec: spec.update(replica=2),
     "spec.replica: found an unknown field, allowed: replicas is the nearest known field"),
    ("wrong unit", lambda spec: spec.update(resources={"memory": "8Gx"}),
     "spec.resources.memory: found '8Gx', allowed: a number of bytes with K, M, G, T or Ki"),
    ("no value", lambda spec: spec.update(backoffLimit=None),
     "spec.backoffLimit: found nothing, allowed: "),
    ("negative GPUs", lambda spec: spec.update(resources={"gpu": -1}),
     "spec.resources.gpu: found -1, allowed: at least 0"),
    ("true replicas", lambda spec: spec.update(replicas=True),
     "spec.replicas: found true, allowed: a number, not true or false"),
    ("missing entry point", lambda spec: spec["training"].update(entryPoint="trian.py"),
     "spec.training.entryPoint: found 'trian.py', allowed: a file in {home}/code, for example c"),
    ("missing code", lambda spec: spec["training"].update(code="nowhere"),
     "spec.training.code: found {home}/nowhere, no such path, allowed: a path that exists on this"),
    ("a single file as code", lambda spec: spec["training"].update(code="file"),
     "spec.training.code: found {home}/file, a single file, allowed: a folder or zip that the"),
    ("misspelt code", lambda spec: spec["training"].update(code="cod"),
     "exists on this machine (did you mean {home}/code?)"),
    ("a checkpoint path that is a file", lambda spec: spec.update(checkpoint={"path": "file/x"}),
     "spec.checkpoint.path: found {home}/file/x, {home}/file is not a directory, allowed: a direc"),
    ("a checkpoint path in /proc", lambda spec: spec.update(checkpoint={"path": "/proc/nowhere"}),
     "spec.checkpoint.path: found /proc/nowhere, No such file or directory, allowed: a directory"),
    ("an endless checkpoint path", lambda spec: spec.update(checkpoint={"path": "x" * 300}),
     "File name too long, allowed: a directory"),
    ("too much memory", lambda spec: spec.update(resources={"memory": "900Ti"}),
     "spec.resources.memory: found 900.0 TiB for one replica, allowed: at most "),
    ("too many cores", lambda spec: spec.update(resources={"cpu": 5000}),
     "spec.resources.cpu: found 5000 cores for one replica, allowed: at most "),
    ("missing data", lambda spec: spec.update(dataStores=[{"name": "d", "path": "/no/data"}]),
     "spec.dataStores[0].path: found /no/data, no such path, allowed: "),
    ("empty data", empty_data,
     "spec.dataStores[0].path: found {home}/nothing-in-it, 0 files, allowed: at least one"),
    ("a deadline beyond all time", lambda spec: spec.update(deadlines={"launch": 1e300}),
     "spec.deadlines.launch: found 1e+300, allowed: at most 315576000"),
    ("endless code", lambda spec: spec["training"].update(code="x" * 5000),
     "spec.training.code: found "),
    ("too many slots", lambda spec: spec.update(replicas=5),
     "gang of 5 slots, allowed: at most 4, this machine's slots ([ffdl] slots, FFDL_SLOTS)"),
    ("a priority", lambda spec: spec.update(priority="high"),
     "spec.priority: found 'high', allowed: offline-batch, online-high"),
    ("a variable of ours", lambda spec: spec["training"].update(env={"FFDL_PLACEMENT": "x"}),
     "spec.training.env.FFDL_PLACEMENT: found a value, allowed: names that the launcher does not"),
    ("NUL", lambda spec: spec["training"].update(args=["a", "\0"]),
     "spec.training.args[1]: found '\\x00' in a text, allowed: text without NUL"),
    ("a secret in a command", lambda spec: spec["training"].update(args=["--password=hunter2"]),
     "spec.training.args[0]: found a plain value of --password, which looks like a secret"),
    ("a secret", lambda spec: spec["training"].update(env={"DB_PASSWORD": "hunter2"}),
     "spec.training.env.DB_PASSWORD: found a plain value of what looks like a secret"),
]  # fmt: skip


@pytest.mark.parametrize("command", ["run", "validate"])
@pytest.mark.parametrize(("name", "change", "message"), FIELDS, ids=[field[0] for field in FIELDS])
def test_a_wrong_field(
    ffdl: Ffdl, name: str, change: Callable[[dict[str, Any]], Any], message: str, command: str
) -> None:
    (ffdl.home / "nothing-in-it").mkdir()
    (ffdl.home / "file").touch()
    line = refused(ffdl(command, "-f", edited(ffdl, change)), ffdl)
    assert message.format(home=ffdl.home) in line
    assert "hunter2" not in line


TEXTS: list[tuple[str, str | bytes, str]] = [
    ("not YAML", "metadata: [", "line 1, column 12: found no YAML that can be read"),
    (
        "a key twice",
        "kind: TrainingJob\nkind: TrainingJob",
        "line 2, column 1: found no YAML that can be read (key kind stands twice)",
    ),
    (
        "two documents",
        "kind: TrainingJob\n---\nkind: TrainingJob",
        "(document): found 2 documents, allowed: exactly one",
    ),
    ("nothing", "", "(document): found 0 documents, allowed: exactly one"),
    ("a list", "- kind: TrainingJob", "(document): found list"),
    ("no text", b"\xff\xfe\x00binary", "allowed: a YAML file"),
]


@pytest.mark.parametrize(("name", "text", "message"), TEXTS, ids=[text[0] for text in TEXTS])
def test_text_that_is_no_manifest(ffdl: Ffdl, name: str, text: str | bytes, message: str) -> None:
    path = ffdl.write(text)
    line = refused(ffdl("run", "-f", path), ffdl)
    assert message in line
    assert str(path) in line


def test_a_file_that_is_not_there(ffdl: Ffdl) -> None:
    missing, folder = ffdl.home / "missing.yaml", ffdl.home / "code"
    for path, why in ((missing, "No such file"), (folder, "Is a directory")):
        line = refused(ffdl("run", "-f", path), ffdl)
        assert str(path) in line
        assert why in line
        assert "allowed: a YAML file" in line


def test_standard_input_is_a_file_too(ffdl: Ffdl) -> None:
    line = refused(ffdl("validate", "-f", "-", stdin="kind: Job"), ffdl)
    assert "kind: found 'Job', allowed: 'TrainingJob'" in line


def test_neither_file_nor_job(ffdl: Ffdl) -> None:
    assert "allowed: one of them or both" in refused(ffdl("run"), ffdl)


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [(["get"], {"FFDL_SLOTS": "many"}, "slots: found 'many', allowed: a whole number, at least 1"),
     (["get"], {"FFDL_SLOTS": "inf"}, "slots: found 'inf', allowed: a whole number, at least 1"),
     (["get"], {"FFDL_SLOTS": "2.7"}, "slots: found '2.7', allowed: a whole number, at least 1"),
     (["get"], {"FFDL_SLOTS": "0.5"}, "slots: found '0.5', allowed: a whole number, at least 1"),
     (["get"], {"FFDL_SLOTS": "0"}, "slots: found '0', allowed: a whole number, at least 1"),
     (["get"], {"FFDL_SLOTS": "9" * 5000}, "9', allowed: a whole number, at least 1"),
     (["get"], {"FFDL_HOLD_S": "inf"}, "hold_s: found 'inf', allowed: a finite number above 0"),
     (["get"], {"FFDL_SILENT_S": "1"},
      "silent_s: found 1, allowed: more than heartbeat_s, which is 2"),
     (["get"], {"FFDL_HEARTBEAT_S": "nan", "FFDL_SLOTS": "x"},
      "heartbeat_s: found 'nan', allowed: a finite number above 0; slots: found 'x', allowed: a"),
     (["get"], {"FFDL_STATE_DIR": "~nobody-of-this-name/x"},
      "state_dir: found '~nobody-of-this-name/x', allowed: the path of a folder"),
     (["get"], {"FFDL_HOLD_S": "-1"}, "hold_s: found '-1', allowed: a finite number above 0"),
     (["get"], {"FFDL_GPUS": "-1"}, "gpus: found '-1', allowed: a whole number, 0 for none"),
     (["get"], {"FFDL_SLOTS": "3", "FFDL_GPUS": "2"}, "slots: found 3, allowed: at most 2"),
     (["get"], {"FFDL_ENGINE": "slurm"}, "engine: found 'slurm', allowed: local"),
     (["get"], {"FFDL_ENGINE": ":x"}, "engine: found ':x', allowed: local"),
     (["get"], {"FFDL_ENGINE": "..:x"}, "engine: found '..:x', allowed: local"),
     (["get"], {"FFDL_ENGINE": "nowhere.at_all:x"}, "cannot be imported: ModuleNotFoundError: No"),
     (["get"], {"FFDL_ENGINE": "os:nothing"}, "'os:nothing', and os has no function nothing, all"),
     (["get"], {"FFDL_ENGINE": "os:getcwd"}, "'os:getcwd', which does not take the settings")],
)  # fmt: skip
def test_wrong_settings(ffdl: Ffdl, words: list[str], env: dict[str, str], message: str) -> None:
    assert message in refused(ffdl(*words, **env), ffdl)
    assert not (ffdl.home / "state").exists()


@pytest.mark.parametrize(
    ("engine", "message"),
    [("os.path:join", "which fails: TypeError: expected str, bytes or os.PathLike"),
     ("builtins:repr", "which returns str without capacity, reserve, connect, observe, end")],
)  # fmt: skip
def test_a_function_that_makes_no_engine(ffdl: Ffdl, engine: str, message: str) -> None:
    line = refused(ffdl("validate", "-f", ffdl.manifest(), FFDL_ENGINE=engine), ffdl)
    assert f"engine: found {engine!r}, {message}" in line
    assert "allowed: local, kubernetes, or package.module:function" in line


UNKNOWN = ", which is no URL of a database that is known"
URLS = {
    "foo": f"foo{UNKNOWN}",
    "sqlit:///x": f"sqlit:///x{UNKNOWN}",
    "https://u:hunter2@h/": f"https://u:***@h/{UNKNOWN}",
    "postgresql://u:hunter2@h:port/db": f"postgresql://u:***@h:port/db{UNKNOWN}",
    "mysql://u:hunter2@h/db": "mysql://u:***@h/db, which is no database for it",
    "postgresql+asyncpg://u:hunter2@h/db": "asyncpg://u:***@h/db, which is no database for it",
    "postgresql+pg8000://u:hunter2@h/db": "pg8000://u:***@h/db, whose driver is not installed (No",
    "sqlite://": "sqlite://, which names no file",
    "sqlite:///:memory:": "sqlite:///:memory:, which names no file",
    "sqlite:////ffdl-nowhere/at/l.db": "l.db, and /ffdl-nowhere/at is no folder",
}


@pytest.mark.parametrize("command", ["get", "validate", "run"])
@pytest.mark.parametrize("url", URLS)
def test_a_ledger_that_cannot_be(ffdl: Ffdl, url: str, command: str) -> None:
    path = ffdl.manifest()
    words = [command] if command == "get" else [command, "-f", path]
    line = refused(ffdl(*words, FFDL_LEDGER_URL=url), ffdl)
    assert "ledger_url: found " in line
    assert URLS[url] in line
    assert "hunter2" not in line
    assert "allowed: a file in a folder" in line or "allowed: sqlite:////path/of" in line
    assert not Path("/ffdl-nowhere").exists()


@pytest.mark.parametrize(
    "words",
    [["flly"], [], ["get", "-o", "xml"], ["logs"], ["run", "--until", "lunch"],
     ["logs", "x", "--attempt", "0"], ["logs", "x", "--rank", "-1"], ["evidence", "x", "--attempt",
     "0"], ["registry", "x", "one"]],
)  # fmt: skip
def test_wrong_use_of_the_command(ffdl: Ffdl, words: list[str]) -> None:
    result = ffdl(*words)
    assert (result.code, result.out) == (2, "")
    assert "usage: ffdl" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "words",
    [["get", "x"], ["describe", "x"], ["events", "x"], ["logs", "x"], ["logs", "x", "-f"],
     ["evidence", "x"], ["stop", "x"], ["stop", "x", "--now"], ["save", "x"],
     ["run", "--job", "x"]],
)  # fmt: skip
def test_a_job_that_is_not_there(ffdl: Ffdl, words: list[str]) -> None:
    line = refused(ffdl(*words), ffdl, code=4)
    assert "there is no job x" in line
    assert "`ffdl get` lists the jobs" in line
    assert not (ffdl.home / "state").exists()


def test_a_model_that_is_not_there(ffdl: Ffdl) -> None:
    line = refused(ffdl("registry", "nix"), ffdl, code=4)
    assert "no model nix" in line
    assert "`ffdl registry` shows what is there" in line
    assert "no model nix" in refused(ffdl("registry", "nix", 1), ffdl, code=4)


def test_a_checkpoint_directory_of_another_job(ffdl: Ffdl) -> None:
    """The job goes on with a changed spec, whose checkpoint path is somebody else's."""
    job_id = ffdl("run", "-f", ffdl.manifest(), "--until", "submit", "-o", "json").json["job"]
    folder = ffdl.home / "shared" / job_id
    folder.mkdir(parents=True)
    (folder / "OWNER").write_text(json.dumps({"v": 1, "job": "bert-1", "ledger": "f00"}))
    before = ffdl("events", job_id).out
    path = ffdl.manifest(checkpoint={"path": "shared"})
    result = ffdl("run", "-f", path, "--job", job_id)
    assert result.code == 2
    assert f"spec.checkpoint.path: found {folder}, owned by job bert-1 of ledger f00" in result.err
    assert ffdl("events", job_id).out == before
    assert sorted(path.name for path in folder.iterdir()) == ["OWNER"]


def test_a_checkpoint_path_that_spoils_later(ffdl: Ffdl) -> None:
    """The job is there already: it is refused, and does not stay where it was."""
    job_id = ffdl("run", "-f", ffdl.manifest(), "--until", "submit", "-o", "json").json["job"]
    (ffdl.home / "file").touch()
    path = ffdl.manifest(checkpoint={"path": "file"})
    result = ffdl("run", "-f", path, "--job", job_id)
    assert (result.code, result.out) == (2, "")
    assert f"spec.checkpoint.path: found {ffdl.home}/file, {ffdl.home}/file is not" in result.err


def test_what_is_allowed_of_numbers(ffdl: Ffdl) -> None:
    result = ffdl("logs", "x", "--attempt", 0)
    assert "argument --attempt: found 0, allowed: a whole number, at least 1" in result.err


def test_a_look_creates_nothing(ffdl: Ffdl) -> None:
    """No installation yet: an empty list, and there still is none."""
    state = ffdl.home / "state"
    assert ffdl("get").out.split() == [
        "JOB",
        "PHASE",
        "REPLICAS/GPUS",
        "STEP",
        "DURATION",
        "REASON",
    ]
    assert ffdl("get", "-o", "json").json == []
    assert ffdl("get", "x").code == 4
    assert not state.exists()


def test_the_version(ffdl: Ffdl) -> None:
    assert (ffdl("--version").code, ffdl("--version").out) == (0, f"ffdl {__version__}\n")


def test_a_full_disk_for_the_output(ffdl: Ffdl) -> None:
    with Path("/dev/full").open("w") as full:
        process = ffdl.start("get", stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    (line,) = err.splitlines()
    assert "the output cannot be written: No space left on device. Next: " in line


@contextmanager
def as_nobody(inside: Path) -> Iterator[None]:
    """Modes do not stop root: it becomes nobody for a time, who may come as far as to here."""
    opened: list[tuple[Path, int]] = []
    for folder in inside.parents:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not mode & stat.S_IXOTH:
            opened.append((folder, mode))
            folder.chmod(mode | stat.S_IXOTH | stat.S_IXGRP)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        for folder, mode in opened:
            folder.chmod(mode)


@pytest.fixture
def closed(ffdl: Ffdl) -> Iterator[Path]:
    """A folder that the user may not enter, and a manifest whose code is in it."""
    folder = ffdl.home / "closed"
    (folder / "inside").mkdir(parents=True)
    code = {"framework": "custom", "code": f"{folder}/inside", "entryPoint": "counting.py"}
    ffdl.manifest(training=code)
    folder.chmod(0o700 if os.geteuid() == 0 else 0)
    with as_nobody(folder) if os.geteuid() == 0 else nullcontext():
        yield folder
    folder.chmod(0o700)


@pytest.mark.parametrize("words", [["get"], ["describe", "x"], ["registry"], ["doctor"]])
def test_a_folder_of_somebody_else(ffdl: Ffdl, closed: Path, words: list[str]) -> None:
    folders = {"FFDL_STATE_DIR": f"{closed}/inside", "FFDL_MODEL_ROOT": f"{closed}/inside"}
    for places in (folders, {"FFDL_STATE_DIR": str(closed), "FFDL_MODEL_ROOT": str(closed)}):
        result = ffdl(*words, **places)
        assert result.code == 3, result.err
        told = result.err or result.out
        assert str(closed) in told
        assert "Traceback" not in told
        assert "fault of ffdl" not in told


def test_a_ledger_in_a_folder_of_somebody_else(ffdl: Ffdl, closed: Path) -> None:
    result = ffdl("get", FFDL_LEDGER_URL=f"sqlite:///{closed}/inside/ledger.db")
    assert result.code == 3, result.err
    (line,) = result.err.splitlines()
    assert str(closed) in line


def test_code_in_a_folder_of_somebody_else(ffdl: Ffdl, closed: Path) -> None:
    result = ffdl("validate", "-f", ffdl.home / "count.yaml")
    assert result.code == 2, result.err
    assert f"spec.training.code: found {closed}/inside, " in result.err


@pytest.mark.parametrize("left", [b"", b"abc"])
def test_a_damaged_installation_key(ffdl: Ffdl, left: bytes) -> None:
    (ffdl.home / "state").mkdir()
    (ffdl.home / "state" / "installation_key").write_bytes(left)
    result = ffdl("run", "-f", ffdl.manifest())
    assert result.code == 3
    assert f"the installation key is damaged: {len(left)} bytes are left of it" in result.err
    assert ffdl("get", "-o", "json").json == []


@pytest.fixture
def read_only(ffdl: Ffdl) -> Iterator[Ffdl]:
    """The installation, after one submit, with a ledger that may be read only."""
    assert ffdl("run", "-f", ffdl.manifest(), "--until", "submit").code == 0
    state = ffdl.home / "state"
    for path in (ffdl.home, *ffdl.home.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    services.ledger(f"sqlite:///{state / 'ledger.db'}").close()
    services.ledger.cache_clear()  # whoever comes now is another process
    if os.geteuid() == 0:
        with as_nobody(state):
            yield ffdl
    else:
        for path in (*state.glob("ledger.db*"), state):
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)
        yield ffdl
    state.chmod(0o755)


def test_a_ledger_that_cannot_be_written(read_only: Ffdl) -> None:
    for words in (["run", "-f", read_only.home / "count.yaml"], ["get"]):
        result = read_only(*words)
        assert (result.code, result.out) == (3, "")
        (line,) = result.err.splitlines()
        assert "the ledger cannot be used" in line
        assert "ledger.db" in line
        assert "nothing that was acknowledged is lost" in line


def test_a_state_directory_that_cannot_be_made(ffdl: Ffdl) -> None:
    file = ffdl.write("x")
    result = ffdl("run", "-f", ffdl.manifest(), FFDL_STATE_DIR=str(file / "state"))
    assert (result.code, result.out) == (3, "")
    assert "set [ffdl] state_dir to a folder that is writable" in result.err


@pytest.mark.parametrize("words", [["get"], ["registry"], ["events", "x"]])
def test_a_state_directory_that_cannot_be(ffdl: Ffdl, words: list[str]) -> None:
    """A list of nothing would be a wrong answer: nothing can ever be there."""
    file = ffdl.write("x")
    folders = {"FFDL_STATE_DIR": f"{file}/state", "FFDL_MODEL_ROOT": f"{file}/models"}
    result = ffdl(*words, **folders)
    assert (result.code, result.out) == (3, "")
    assert f"cannot be there: {file} is not a directory" in result.err
    assert "to a folder that is writable" in result.err


@pytest.mark.parametrize("key", ["cache_dir", "checkpoint_root", "model_root"])
@pytest.mark.parametrize("command", ["run", "validate"])
def test_folders_that_a_job_cannot_write(ffdl: Ffdl, command: str, key: str) -> None:
    """Else it would train first, and fail then."""
    file = ffdl.write("x")
    path = ffdl.manifest()
    result = ffdl(command, "-f", path, **{f"FFDL_{key.upper()}": str(file)})
    assert (result.code, result.out) == (2, "")
    assert f"[ffdl] {key}: found {file}, {file} is not a directory, allowed: a dir" in result.err
    assert ffdl.created() == []
    if key == "model_root":
        path = ffdl.manifest("nameless", model=None)
        assert ffdl("validate", "-f", path, FFDL_MODEL_ROOT=str(file)).code == 0, "it needs none"


def test_a_database_that_nobody_serves_is_one_line(ffdl: Ffdl) -> None:
    url = "postgresql://u:hunter2@127.0.0.1:1/db"
    result = ffdl("get", FFDL_LEDGER_URL=url, FFDL_INSTALLATION_KEY="k")
    assert result.code == 3
    (line,) = result.err.splitlines()
    assert "Connection refused" in line
    assert "hunter2" not in line


def test_a_fault_of_our_own_is_told_as_such(ffdl: Ffdl, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*words: object, **named: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ffdl_airflow.services.deps", broken)
    result = ffdl("reap")
    assert result.code == 5
    assert "a fault of ffdl itself" in result.err.splitlines()[-1]
