"""The README and the guides: what is shown works, and what is linked is there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.architecture import source
from tests.docs.blocks import Block, blocks_of, links_of

BLOCK_TIME_S = 120
SHELLS = ("", "bash", "console", "sh", "shell")
OURS = re.compile(r"^(?:\$ )?(?P<command>(?:make|ffdl|python3?) .*)$", re.MULTILINE)
README = source.ROOT / "README.md"
PAGES = [path for path in source.kept_files() if path.suffix == ".md"]
BLOCKS = [(path, block) for path in PAGES for block in blocks_of(path)]


def name_of(value: object) -> str:
    if isinstance(value, Block):
        return f"line-{value.line}"
    return str(value.relative_to(source.ROOT)) if isinstance(value, Path) else ""


def test_readme_shows_something_that_is_run() -> None:
    assert any(block.tested for path, block in BLOCKS if path == README)


@pytest.mark.parametrize(
    ("path", "block"), [pair for pair in BLOCKS if pair[1].tested], ids=name_of
)
def test_marked_block_runs(path: Path, block: Block, ffdl_home: Path) -> None:
    """In the root of the repository, with an empty home and this Python's commands first."""
    shell = ["bash", "-euo", "pipefail", "-c"]
    command = [sys.executable, "-c"] if block.language == "python" else shell
    programs = str(Path(sys.executable).parent)
    done = subprocess.run(
        [*command, block.code],
        cwd=source.ROOT,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(ffdl_home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BLOCK_TIME_S,
        check=False,
    )
    assert done.returncode == 0, f"{path}:{block.line}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    ("path", "block"),
    [pair for pair in BLOCKS if pair[1].language in SHELLS and OURS.search(pair[1].code)],
    ids=name_of,
)
def test_shown_commands_exist(path: Path, block: Block) -> None:
    for words in commands_of(block.code):
        assert is_there(words), f"{path}:{block.line}: {shlex.join(words)}"


def commands_of(code: str) -> list[list[str]]:
    """Return the words of each line that calls something of ours; a prompt before it is allowed."""
    lines = [match["command"] for match in OURS.finditer(code.replace("\\\n", " "))]
    return [shlex.split(line.partition(" | ")[0], comments=True) for line in lines]


def is_there(words: list[str]) -> bool:
    """Whether our part of a command exists: a Make target, a script, a verb of ffdl."""
    program, arguments = words[0], words[1:]
    if program == "make":
        targets = [word for word in arguments if not word.startswith("-") and "=" not in word]
        return all(target in make_targets() for target in targets)
    if program.startswith("python"):
        scripts = [word for word in arguments[:1] if word.endswith(".py")]
        return all((source.ROOT / script).exists() for script in scripts)
    return arguments[0].startswith("-") or verb_exists(arguments[0])


def make_targets() -> set[str]:
    text = (source.ROOT / "Makefile").read_text()
    return set(re.findall(r"^([a-z][a-z0-9-]*):", text, re.MULTILINE))


@cache
def verb_exists(verb: str) -> bool:
    done = subprocess.run(
        [sys.executable, "-m", "ffdl_airflow.cli", verb, "--help"],
        cwd=source.ROOT,
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_linked_files_exist(path: Path) -> None:
    missing = [target for target in links_of(path) if not (path.parent / target).exists()]
    assert not missing
