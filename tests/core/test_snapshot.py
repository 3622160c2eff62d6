"""A state comes back from its document as it was, or not at all."""

from __future__ import annotations

import json

import pytest

from ffdl_airflow.core import snapshot
from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.lifecycle import JobState, fold
from ffdl_airflow.testing.builders import LogBuilder


def states() -> list[JobState]:
    log = LogBuilder()
    log.add(Kind.VALIDATED, 1)
    log.add(Kind.MOVER_INTENDED, 2)
    log.add(Kind.DATA_READY, 3, stores={"corpus": {"generation": "g1", "path": "/c"}})
    log.add(Kind.RESERVE_INTENDED, 4, placement=1)
    log.add(Kind.PLACED, 5, placement=1, slots=[0, 3])
    log.add(Kind.RESERVED, 6, placement=1)
    log.add(Kind.GO_INTENDED, 7, 1, placement=1, attempt=1, resume=None)
    log.add(Kind.RUNNING, 8, 1, placement=1)
    log.add(Kind.CHECKPOINT_SEALED, 9, 1, placement=1, step=100, path="/c/1", sha256="ab")
    return [fold(log.job_id, log.events[:count]) for count in range(len(log.events) + 1)]


@pytest.mark.parametrize("state", states(), ids=lambda state: str(state.seq))
def test_it_comes_back_through_json(state: JobState) -> None:
    assert snapshot.restore(json.loads(json.dumps(snapshot.take(state)))) == state


def test_what_cannot_be_used_is_passed_over() -> None:
    taken = snapshot.take(JobState(job_id="bert-base-0123456789"))
    assert snapshot.restore(None) is None
    assert snapshot.restore(taken | {"shape": "0-old"}) is None
    assert snapshot.restore({"shape": taken["shape"], "state": {"seq": "many"}}) is None
