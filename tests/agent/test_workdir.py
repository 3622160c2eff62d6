"""A replica works in a copy of the code, never in the generation that others use too."""

from __future__ import annotations

import os
from pathlib import Path

from ffdl_airflow.agent import workdir


def generation(folder: Path) -> Path:
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "module.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "package" / "module.py").chmod(0o444)
    (folder / "run.sh").chmod(0o555)
    (folder / "package").chmod(0o555)
    folder.chmod(0o555)
    return folder


def test_the_copy_can_be_written_and_the_generation_stays(tmp_path: Path) -> None:
    source = generation(tmp_path / "generation")
    target = tmp_path / "agents" / "worker-0" / "work"
    target.parent.mkdir(parents=True)
    workdir.make(str(source), str(target))
    assert (target / "package" / "module.py").read_text() == "x = 1\n"
    assert os.access(target / "run.sh", os.X_OK)
    modes = {path.name: path.stat().st_mode & 0o200 for path in [target, *target.rglob("*")]}
    assert set(modes.values()) == {0o200}, modes
    (target / "scratch.txt").write_text("of a trainer")
    workdir.make(str(source), str(target))
    assert (target / "scratch.txt").exists()
    assert sorted(path.name for path in source.iterdir()) == ["package", "run.sh"]
    assert [path.name for path in target.parent.iterdir()] == ["work"]
