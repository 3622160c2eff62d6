"""Busy, idle, unknown: the windows on traces whose right answer is known (cases.md D and A05)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle, islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow.agent.detect import RankView
from ffdl_airflow.agent.plan import Watch, Watched
from ffdl_airflow.agent.usage import LISTED, MOST_SAMPLES, Usage

BEAT_S, WINDOW_S, FIRST_STEP_S = 2.0, 60.0, 1800.0
BEATS = int(WINDOW_S / BEAT_S)
ROW: dict[str, Any] = {
    "rank": 0, "state": "running", "step": 7, "doing": "training", "cpu_percent": None, "gpus": {},
}  # fmt: skip


class Limits:
    first_step_s, heartbeat_s = FIRST_STEP_S, BEAT_S


class Plan:
    """What ``Usage`` reads of a plan."""

    limits = Limits

    def __init__(self, watch: Watch | None) -> None:
        self.watch = watch


class Trace:
    """A gang that is looked at every heartbeat."""

    def __init__(self, *, resource: str = "gpu", aggregate: str = "mean", replicas: int = 1,
                 cores: float = 1.0, known: bool = True) -> None:  # fmt: skip
        watched = {f"worker-{n}": Watched(30.0, cores) for n in range(replicas)}
        self.usage = Usage(Plan(Watch(resource, WINDOW_S, aggregate, watched)))
        self.now = 1000.0
        self.known = known
        self.began = self.now
        self.look([])

    def look(self, rows: list[dict[str, Any]], *, after_s: float = BEAT_S, age_s: float = 0.0,
             ) -> dict[str, Any]:  # fmt: skip
        self.now += after_s
        views = [RankView(row.get("replica", "worker-0"), {**ROW, **row}, age_s) for row in rows]
        self.usage.see(views, now=self.now, known=self.known, running_s=self.now - self.began)
        return self.document

    @property
    def document(self) -> dict[str, Any]:
        found = self.usage.document()
        assert found is not None
        return found

    def gpu(self, *percents: float | None, **row: Any) -> dict[str, Any]:
        """One row for one GPU, looked at once for each of the percentages."""
        for percent in percents:
            self.look([{"gpus": {"0": percent}, **row}])
        return self.document

    def cpu(self, percent: float | None, *, times: int = 1, **row: Any) -> dict[str, Any]:
        for _ in range(times):
            self.look([{"cpu_percent": percent, **row}])
        return self.document


def counts(document: dict[str, Any]) -> tuple[int, int, int]:
    return document["busy"], document["idle"], document["unknown"]


def of_period(values: Iterable[float | None], beats: int = 3 * BEATS) -> list[float | None]:
    return list(islice(cycle(values), beats))


BUSY, IDLE, UNKNOWN = (1, 0, 0), (0, 1, 0), (0, 0, 1)


@pytest.mark.parametrize(
    ("trace", "verdict"),
    [
        pytest.param([97.0] * BEATS, BUSY, id="busy"),
        pytest.param([0.0] * BEATS, IDLE, id="idle"),
        pytest.param([0.0] * (BEATS - 1), UNKNOWN, id="the window is not full"),
        pytest.param([None] * 3 * BEATS, UNKNOWN, id="nothing could be read"),
        pytest.param(of_period([0, 96, 0, 0, 95, 0, 97, 0, 0, 96]), BUSY, id="D09 a slow loader"),
        pytest.param(of_period([20.0, None]), IDLE, id="D13 half is known"),
        pytest.param(of_period([20.0, None, None]), UNKNOWN, id="D13 less than half is known"),
        pytest.param(of_period([90.0, None]), BUSY, id="D13 a gap is not 0"),
        pytest.param([100.0] * 3 * BEATS, BUSY, id="D08 a spinning collective is not idle"),
        pytest.param([30.0] * BEATS, BUSY, id="at the threshold"),
        pytest.param([29.9] * BEATS, IDLE, id="just below it"),
    ],
)  # fmt: skip
def test_what_one_gpu_does(trace: list[float | None], verdict: tuple[int, int, int]) -> None:
    assert counts(Trace().gpu(*trace)) == verdict


@pytest.mark.parametrize(("aggregate", "verdict"), [("mean", BUSY), ("max", BUSY), ("min", IDLE)])
def test_the_samples_of_a_window_become_one_figure(aggregate: str, verdict: Any) -> None:
    assert counts(Trace(aggregate=aggregate).gpu(*of_period([10.0, 90.0]))) == verdict


@pytest.mark.parametrize(
    ("aggregate", "beats"), [("max", BEATS), ("mean", BEATS - int(0.3 * BEATS) + 1), ("min", 1)]
)
def test_a_drop_is_seen_within_the_window_and_one_sample(aggregate: str, beats: int) -> None:
    trace = Trace(aggregate=aggregate)
    trace.gpu(*[100.0] * 2 * BEATS)
    for beat in range(1, 2 * BEATS):
        if trace.gpu(0.0)["idle"]:
            assert beat == beats <= BEATS + 1
            return
    raise AssertionError(trace.document)


def test_one_idle_gpu_of_sixteen_is_found_and_named() -> None:
    """cases.md A05: all GPUs of all replicas, not their mean."""
    trace = Trace(replicas=2)
    one = {str(number): 90.0 for number in range(8)}
    rows = [{"replica": "worker-0", "gpus": one},
            {"replica": "worker-1", "rank": 1, "gpus": {**one, "5": 0.0}}]  # fmt: skip
    for _ in range(BEATS):
        document = trace.look(rows)
    assert counts(document) == (15, 1, 0)
    (unit,) = document["units"]
    assert (unit["replica"], unit["rank"], unit["unit"]) == ("worker-1", 1, "gpu 5")
    assert (unit["percent"], unit["threshold"]) == (0.0, 30.0)
    assert document["percent"] == pytest.approx(84.4)
    assert document["idle_at"]
    assert document["all_idle_at"] is None


def test_ranks_that_share_gpus_count_them_once() -> None:
    trace = Trace()
    rows = [{"rank": rank, "gpus": {"0": 5.0, "1": 6.0}} for rank in range(2)]
    for _ in range(BEATS):
        document = trace.look(rows)
    assert counts(document) == (0, 2, 0)
    assert document["all_idle_at"] == document["idle_at"] is not None


def test_cpu_is_measured_against_the_cores_that_were_asked_for() -> None:
    assert counts(Trace(resource="cpu").cpu(40.0, times=BEATS)) == BUSY
    assert counts(Trace(resource="cpu", cores=2.0).cpu(40.0, times=BEATS)) == IDLE
    trace = Trace(resource="cpu", cores=2.0)
    for _ in range(BEATS):
        document = trace.look([{"rank": rank, "cpu_percent": 40.0} for rank in range(2)])
    assert counts(document) == (2, 0, 0), "two ranks share the cores of their replica"


def test_a_replica_that_is_not_watched_does_not_count() -> None:
    trace = Trace(resource="cpu")
    for _ in range(BEATS):
        document = trace.look([
            {"cpu_percent": 90.0}, {"replica": "ps-0", "rank": None, "cpu_percent": 0.0},
            {"replica": "worker-0", "rank": 1, "cpu_percent": 0.0, "state": "exited"},
        ])  # fmt: skip
    assert counts(document) == BUSY


def test_a_gang_of_many_idle_units_has_a_small_document() -> None:
    trace = Trace(replicas=256)
    rows = [{"replica": f"worker-{n}", "rank": n, "gpus": {str(g): 0.0 for g in range(8)}}
            for n in range(256)]  # fmt: skip
    for _ in range(BEATS):
        document = trace.look(rows)
    assert document["idle"] == 2048
    assert len(document["units"]) == LISTED


@pytest.mark.parametrize("doing", ["loading", "saving", "evaluating"])
def test_other_work_is_left_out_for_the_whole_gang(doing: str) -> None:
    """90 s of it change nothing, whatever the others' use is meanwhile: they wait."""
    trace = Trace(replicas=2)

    def both(percent: float, what: str = "training") -> dict[str, Any]:
        return trace.look([{"gpus": {"0": percent}, "doing": what},
                           {"replica": "worker-1", "rank": 1, "gpus": {"0": percent}}])  # fmt: skip

    for _ in range(BEATS):
        both(90.0)
    for _ in range(2 * BEATS):
        document = both(0.0, doing)
    assert document["exempt"] == doing
    assert counts(document) == (2, 0, 0)
    assert both(90.0)["exempt"] is None


def test_before_the_first_step_nothing_is_idle() -> None:
    trace = Trace()
    document = trace.gpu(*[0.0] * 3 * BEATS, step=None)
    assert (document["exempt"], counts(document)) == ("starting", (0, 0, 0))
    document = trace.gpu(*[0.0] * (BEATS - 1))
    assert (document["exempt"], counts(document)) == (None, UNKNOWN)
    assert counts(trace.gpu(0.0)) == IDLE


def test_who_reports_nothing_starts_until_it_has_worked() -> None:
    """Without progress the use itself says that the start is over, at the latest ``firstStep``."""
    trace = Trace(known=False)
    start = trace.gpu(*[0.0] * 3 * BEATS, step=None, doing=None)
    assert (start["exempt"], start["idle_at"]) == ("starting", None)
    assert trace.gpu(*[90.0] * BEATS, step=None, doing=None)["exempt"] is None
    assert trace.gpu(*[0.0] * BEATS, step=None, doing=None)["exempt"] is None
    late = Trace(known=False)
    beats = int(FIRST_STEP_S / BEAT_S) + 1
    assert late.gpu(*[0.0] * beats, step=None, doing=None)["exempt"] is None


def test_a_long_window_is_sampled_more_rarely() -> None:
    watch = Watch("gpu", 3600.0, "mean", {"worker-0": Watched(30.0, 1.0)})
    usage, beats = Usage(Plan(watch)), int(3600 / BEAT_S)
    for beat in range(beats + 20):
        row = {**ROW, "gpus": {"0": 90.0}}
        now, view = beat * BEAT_S, RankView("worker-0", row, 0.0)
        usage.see([view], now=now, known=True, running_s=now)
        found = usage.document()
        assert found is not None
        assert found["busy"] == (beat >= beats)
    (window,) = usage._windows.values()
    assert len(window._samples) <= MOST_SAMPLES


def test_a_gap_between_two_looks_is_unknown() -> None:
    trace = Trace()
    trace.gpu(*[90.0] * BEATS)
    document = trace.look([{"gpus": {"0": 0.0}}], after_s=600.0)
    assert counts(document) == UNKNOWN


def test_an_old_row_is_no_sample() -> None:
    trace = Trace()
    trace.gpu(*[90.0] * BEATS)
    for _ in range(BEATS):
        document = trace.look([{"gpus": {"0": 90.0}}], age_s=30.0)
    assert counts(document) == UNKNOWN


def test_use_that_comes_back_ends_the_idle_time() -> None:
    trace = Trace()
    first = trace.gpu(*[0.0] * BEATS)["idle_at"]
    assert trace.gpu(0.0)["idle_at"] == first
    assert trace.gpu(*[90.0] * BEATS)["idle_at"] is None


def test_a_new_attempt_knows_nothing_of_the_old_one() -> None:
    trace = Trace()
    trace.gpu(*[0.0] * BEATS)
    trace.usage.begin()
    assert counts(trace.document) == (0, 0, 0)
    assert trace.document["exempt"] == "starting"


def test_without_a_watch_there_is_no_document() -> None:
    usage = Usage(Plan(None))
    usage.see([], now=0.0, known=True, running_s=0.0)
    usage.see([], now=1.0, known=True, running_s=1.0)
    assert usage.document() is None


@given(st.lists(st.none() | st.floats(0, 100), min_size=BEATS, max_size=3 * BEATS))
def test_never_idle_by_what_nobody_has_read(trace: list[float | None]) -> None:
    document = Trace().gpu(*trace)
    known = [percent for percent in trace[-BEATS:] if percent is not None]
    assert sum(counts(document)) == 1
    if len(known) < BEATS / 2:
        assert counts(document) == UNKNOWN
    elif min(known) >= 30:
        assert counts(document) == BUSY
    elif max(known) < 30:
        assert counts(document) == IDLE
