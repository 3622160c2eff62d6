"""Code as a source: what is left out, and the commit."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from ffdl_airflow.stores.adapters import open_store
from ffdl_airflow.stores.code import code_source


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    for name in (
        "train.py", "lib/net.py", "lib/net.pyc", "lib/__pycache__/net.cpython-311.pyc",
        ".venv/bin/python", "node_modules/x/index.js", ".gitignore", "data.pyc.txt",
    ):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True,
                          capture_output=True, text=True)  # fmt: skip
    return done.stdout.strip()


KEPT = [".gitignore", "data.pyc.txt", "lib/net.py", "train.py"]


def test_what_is_no_code_is_left_out(project):
    git(project, "init", "-q")
    store = open_store(code_source(project))
    assert [entry.key for entry in store.list()] == KEPT
    assert store.describe() == f"code, folder {project}"


def test_a_zip_is_read_in_the_same_way(project, tmp_path):
    path = tmp_path / "code.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(project.rglob("*")):
            archive.write(file, file.relative_to(project))
    store = open_store(code_source(path))
    assert [e.key for e in store.list() if not e.key.endswith("/")] == KEPT
    assert store.facts() == {"gitCommit": None, "gitDirty": None}


def test_the_commit_and_changes(project):
    store = open_store(code_source(project))
    assert store.facts() == {"gitCommit": None, "gitDirty": None}
    git(project, "init", "-q")
    assert store.facts()["gitCommit"] is None  # no commit yet
    (project / ".gitignore").write_text(".venv\nnode_modules\n*.pyc\n__pycache__\n")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "first")
    commit = git(project, "rev-parse", "HEAD")
    assert store.facts() == {"gitCommit": commit, "gitDirty": False}
    (project / "new.py").write_text("x")
    assert store.facts() == {"gitCommit": commit, "gitDirty": True}
    # Changes elsewhere in the checkout are not changes of this code.
    below = open_store(code_source(project / "lib"))
    assert below.facts() == {"gitCommit": commit, "gitDirty": False}


def test_without_git_there_is_no_commit(project, monkeypatch, tmp_path):
    git(project, "init", "-q")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert open_store(code_source(project)).facts() == {"gitCommit": None, "gitDirty": None}


def test_a_program_of_the_checkout_is_not_run(project, tmp_path):
    git(project, "init", "-q")
    git(project, "add", "train.py")
    git(project, "commit", "-q", "-m", "first")
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    hook.chmod(0o755)
    git(project, "config", "core.fsmonitor", str(hook))
    assert open_store(code_source(project)).facts()["gitCommit"]
    assert not (tmp_path / "was-run").exists()
