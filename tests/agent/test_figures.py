"""The live figures: a step and the metrics that stand beside it are of the same report."""

from __future__ import annotations

import os

from ffdl_airflow.agent import protocol
from ffdl_airflow.agent.detect import RankView
from ffdl_airflow.agent.plan import Process
from ffdl_airflow.agent.ranks import RankRecord
from ffdl_airflow.agent.status import figures
from tests.conftest import wait_for


def record(rank: int) -> RankRecord:
    process = Process(rank=rank, local_rank=0, env={})
    return RankRecord(process, os.getpid(), log_path="/nowhere", regex=None)


def views(*records: RankRecord) -> list[RankView]:
    return [RankView(f"worker-{one.rank}", one.row(), 0.0) for one in records]


def test_a_row_that_was_handed_out_does_not_change():
    one = record(0)
    one.progress.take(41, doing="training", metrics={"loss": 0.41})
    seen = views(one)
    one.progress.take(42, doing="training", metrics={"loss": 0.42})
    document = figures(seen)
    assert (document["step"], document["metrics"]) == (41, {"loss": 0.41})


def test_the_newest_step_is_not_shown_with_the_loss_of_a_rank_that_is_behind():
    behind, ahead, silent = record(0), record(1), record(2)
    behind.progress.take(41, doing="training", metrics={"loss": 0.41, "accuracy": 0.9})
    ahead.progress.take(42, doing="training", metrics={"loss": 0.42})
    silent.progress.take(42, doing="training", metrics={})
    document = figures(views(behind, ahead, silent))
    assert (document["step"], document["metrics"]) == (42, {"loss": 0.42})
    assert document["last_metrics"] == {"accuracy": {"value": 0.9, "step": 41}}
    behind.progress.take(42, doing="training", metrics={"loss": 0.52})
    assert figures(views(behind, ahead))["metrics"] == {"loss": 0.52}, "the lowest rank of the step"


def test_metrics_without_a_step_and_steps_without_metrics():
    one = record(0)
    one.progress.take(None, doing="loading", metrics={"loss": 9.0})
    assert figures(views(one))["metrics"] == {"loss": 9.0}
    one.progress.take(1, doing="training", metrics={"loss": 1.0})
    one.progress.take(None, doing="evaluating", metrics={"accuracy": 0.5})
    assert figures(views(one))["metrics"] == {"loss": 1.0, "accuracy": 0.5}
    one.progress.take(2, doing="training", metrics={})
    document = figures(views(one))
    assert document["metrics"] == {}
    assert document["last_metrics"]["loss"] == {"value": 1.0, "step": 1}


def test_no_document_of_a_running_gang_mixes_reports(make_placement):
    """Every third step has a loss that tells its step; ranks run at different speeds."""
    trainer = """
import os, time
import ffdl
ffdl.SEND_EVERY_S = 0.01
step = 0
while True:
    step += 1
    if step % 3 == 0:
        ffdl.progress(step, loss=step)
    else:
        ffdl.progress(step)
    time.sleep(0.003 * (1 + int(os.environ["RANK"])))
"""
    placement = make_placement(trainer, replicas=2).up()
    placement.go()
    documents: dict[int, dict] = {}

    def enough() -> bool:
        found = placement.status(max(documents, default=-1), wait=1)
        if found.get("step") is not None:
            documents[found["seq"]] = found
        with_loss = [one for one in documents.values() if "loss" in one["metrics"]]
        return len(documents) >= 15 and bool(with_loss)

    wait_for(enough, 20, placement.story)
    for document in documents.values():
        assert document["metrics"].get("loss", document["step"]) == document["step"]
        for metric in document["last_metrics"].values():
            assert metric["value"] == metric["step"] < document["step"]
    assert placement.status()["state"] == protocol.RUNNING
    placement.stop(then="leave")
    placement.ended()
