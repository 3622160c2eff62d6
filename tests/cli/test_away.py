"""Commands while the engine cannot be asked: what the ledger holds is shown, and a stop is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ffdl_airflow.core.errors import InfrastructureError
from ffdl_airflow.engines.local.engine import LocalEngine
from tests.cli.conftest import Ffdl


@pytest.fixture
def reserved(ffdl: Ffdl) -> str:
    """Id of a job that has its placement."""
    done = ffdl("run", "-f", ffdl.manifest(), "--until", "reserve")
    assert done.code == 0, done
    return str(ffdl("get", "-o", "json").json[0]["job"])


def away(*_: object, **__: object) -> Any:
    raise InfrastructureError("the cluster cannot be reached", evidence="https://lab")


@pytest.mark.parametrize("what", ["__init__", "observe"])
def test_what_the_ledger_holds_is_shown(
    ffdl: Ffdl, reserved: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the engine cannot be made: a cluster's credentials plugin may fail."""
    asked = [["get"], ["get", reserved], ["describe", reserved], ["events", reserved]]
    before = [ffdl(*words, "-o", "json") for words in asked]
    monkeypatch.setattr(LocalEngine, what, away)
    for words, known in zip(asked, before, strict=True):
        result = ffdl(*words, "-o", "json")
        assert result.code == 0
        (line,) = result.err.splitlines()
        assert line == (
            "ffdl: warning: what the gang has written since is not among this: "
            "the cluster cannot be reached"
        )
        assert len(result.json) == len(known.json)
        assert reserved in json.dumps(result.json)
    assert [ffdl(name, "no-such-job").code for name in ("get", "describe", "events")] == [4] * 3


def test_a_stop_is_recorded(ffdl: Ffdl, reserved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        for method in ("observe", "end"):
            patched.setattr(LocalEngine, method, away)
        result = ffdl("stop", reserved)
    assert (result.code, result.out) == (3, "")
    assert f"{reserved} is not stopped yet: the cluster cannot be reached" in result.err
    assert "the stop is recorded; whoever drives the job next obeys" in result.err
    assert ffdl("stop", reserved).code == 0
    assert ffdl.job(reserved)["phase"] == "Stopped"
