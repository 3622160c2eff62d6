"""The ladder: what figures lead to, and how that is told."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow.core.events import iso
from ffdl_airflow.core.job import Watchdog
from ffdl_airflow.core.utilization import (
    Past,
    Reading,
    Recovered,
    Stop,
    Use,
    Warn,
    reading,
    rung,
    text,
    told,
    warning,
    watched,
)
from ffdl_airflow.testing.builders import T0, job

MINUTE = timedelta(minutes=1)
UNIT = {"replica": "worker-0", "rank": 0, "unit": "gpu 0", "percent": 2.0, "threshold": 30.0,
        "since": iso(T0 - MINUTE)}  # fmt: skip
IDLE = Reading(use=Use.IDLE, window_s=60, percent=2.0, idle=1, total=1, idle_at=T0,
               all_idle_at=T0, units=(UNIT,))  # fmt: skip
PART = replace(IDLE, total=2, all_idle_at=None)
BUSY = Reading(use=Use.BUSY, window_s=60, percent=90.0, total=1)
EXEMPT = replace(IDLE, use=Use.EXEMPT, exempt="saving")
UNKNOWN = Reading(use=Use.UNKNOWN, window_s=60, total=1)
OFF = Reading(use=Use.OFF)
NEVER = Past()
POLICY = Watchdog()
STOP = Watchdog(action="stop")


def document(**fields: Any) -> dict[str, Any]:
    found = {"resource": "gpu", "window_s": 60.0, "aggregate": "mean", "exempt": None,
             "percent": 2.0, "busy": 0, "idle": 1, "unknown": 0, "idle_at": iso(T0),
             "all_idle_at": iso(T0), "units": [UNIT]}  # fmt: skip
    return {"utilization": found | fields}


@pytest.mark.parametrize(
    ("status", "use"),
    [
        (None, Use.OFF),
        ({}, Use.OFF),
        ({"utilization": None}, Use.OFF),
        (document(), Use.IDLE),
        (document(busy=15), Use.IDLE),
        (document(unknown=1), Use.IDLE),
        (document(idle=0, busy=1), Use.BUSY),
        (document(idle=0, busy=1, unknown=1), Use.UNKNOWN),
        (document(idle=0, busy=15, unknown=1), Use.BUSY),
        (document(idle=0), Use.UNKNOWN),
        (document(exempt="loading"), Use.EXEMPT),
    ],
)
def test_what_a_status_document_says(status: Any, use: Use) -> None:
    assert reading(status).use is use


def test_a_reading_has_the_whole_evidence() -> None:
    assert reading(document()) == IDLE


@pytest.mark.parametrize("found", [BUSY, UNKNOWN, EXEMPT, OFF])
@pytest.mark.parametrize("action", ["warn", "downgrade", "stop", "observe"])
def test_what_is_not_idle_is_let_be(found: Reading, action: str) -> None:
    assert rung(found, Watchdog(action=action), NEVER, now=T0 + 60 * MINUTE) is None


@pytest.mark.parametrize("action", ["warn", "downgrade", "stop"])
@pytest.mark.parametrize("found", [IDLE, PART])
def test_what_is_idle_is_warned_of_with_the_time_it_became_so(found: Reading, action: str) -> None:
    """Also by a driver that looks an hour later."""
    for late in (timedelta(), 60 * MINUTE):
        assert rung(found, Watchdog(action=action), NEVER, now=T0 + late) == Warn(at=T0)


def test_observe_never_acts() -> None:
    policy = Watchdog(action="observe")
    for past in (NEVER, Past(warned_at=T0, warnings=(T0,))):
        assert rung(IDLE, policy, past, now=T0 + 60 * MINUTE) is None


def test_a_warning_that_stands_is_not_repeated_and_is_withdrawn_by_work() -> None:
    past = Past(warned_at=T0, warnings=(T0,))
    later = T0 + 60 * MINUTE
    for found in (IDLE, UNKNOWN, EXEMPT, OFF):
        assert rung(found, POLICY, past, now=later) is None
    assert rung(BUSY, POLICY, past, now=later) == Recovered()


def test_the_next_warning_comes_after_the_cooldown() -> None:
    past = Past(warnings=(T0 - 4 * MINUTE,))
    assert rung(IDLE, POLICY, past, now=T0 + 5 * MINUTE) is None
    assert rung(IDLE, POLICY, past, now=T0 + 6 * MINUTE) == Warn(at=T0 + 6 * MINUTE)
    assert rung(IDLE, POLICY, Past(warnings=(T0 - 20 * MINUTE,)), now=T0) == Warn(at=T0)


def test_so_many_warnings_a_day() -> None:
    times = tuple(T0 - hours * 60 * MINUTE for hours in (23, 20, 9, 1))
    assert rung(IDLE, POLICY, Past(warnings=times), now=T0) is None
    assert rung(IDLE, POLICY, Past(warnings=times), now=T0 + 61 * MINUTE) == Warn(at=T0)
    assert rung(IDLE, Watchdog(maxActionsPerDay=0), NEVER, now=T0) is None


def test_a_stop_comes_when_all_was_idle_for_another_cooldown() -> None:
    past = Past(warned_at=T0, warnings=(T0,))
    assert rung(IDLE, STOP, past, now=T0 + 9 * MINUTE) is None
    assert rung(IDLE, STOP, past, now=T0 + 10 * MINUTE) == Stop()
    assert rung(PART, STOP, past, now=T0 + 60 * MINUTE) is None, "a part of the gang works"
    since = replace(IDLE, all_idle_at=T0 + 5 * MINUTE)
    assert rung(since, STOP, past, now=T0 + 14 * MINUTE) is None
    assert rung(since, STOP, past, now=T0 + 15 * MINUTE) == Stop()
    for found in (UNKNOWN, EXEMPT, OFF):
        assert rung(found, STOP, past, now=T0 + 60 * MINUTE) is None
    for action in ("warn", "downgrade"):
        assert rung(IDLE, Watchdog(action=action), past, now=T0 + 60 * MINUTE) is None


moments = st.integers(-2000, 2000).map(lambda minutes: T0 + minutes * MINUTE)


@given(
    found=st.sampled_from([IDLE, PART, BUSY, EXEMPT, UNKNOWN, OFF]),
    action=st.sampled_from(["warn", "downgrade", "stop", "observe"]),
    warned_at=st.none() | moments,
    warnings=st.lists(moments, max_size=5).map(tuple),
    now=moments,
)
def test_no_action_without_what_it_needs(
    found: Reading, action: Any, warned_at: datetime | None, warnings: Any, now: datetime
) -> None:
    policy = Watchdog(action=action)
    done = rung(found, policy, Past(warned_at=warned_at, warnings=warnings), now=now)
    if done is None:
        return
    assert action != "observe"
    if isinstance(done, Warn):
        assert found.use is Use.IDLE
        assert warned_at is None
        assert done.at >= T0
    elif isinstance(done, Stop):
        assert (action, found) == ("stop", IDLE)
        assert warned_at is not None
        assert now - warned_at >= 10 * MINUTE
    else:
        assert (found, warned_at is None) == (BUSY, False)


def test_a_warning_names_reason_evidence_and_what_to_do() -> None:
    body = warning(IDLE, action="warn")
    assert body["reason"] == "GPU use below 30 % over 60 s (mean): gpu 0 of worker-0 2 %"
    assert (body["level"], body["action"], body["resource"]) == ("warn", "warn", "gpu")
    assert (body["idle"], body["of"], body["percent"]) == (1, 1, 2.0)
    assert body["since"] == UNIT["since"]
    assert body["units"] == [UNIT]
    assert "minGpuUtilization" in body["next_step"]


def test_a_sentence_names_few_of_many() -> None:
    many = replace(IDLE, resource="cpu", idle=9, total=16, units=(UNIT,) * 9)
    assert told(many).endswith("gpu 0 of worker-0 2 % and 5 more")
    assert told(many).startswith("CPU use")
    assert "its threshold" in told(replace(IDLE, units=()))


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (OFF, "utilization is not measured"),
        (BUSY, "GPU utilization 90 % (mean of 60 s), busy"),
        (UNKNOWN, "GPU utilization is not known yet (mean of 60 s)"),
        (
            replace(UNKNOWN, total=0),
            "GPU utilization unknown: no GPU can be read (extra `gpu`, the host's driver)",
        ),
        (EXEMPT, "GPU utilization 2 % (mean of 60 s), exempt: saving"),
        (PART, "GPU utilization 2 % (mean of 60 s), idle: 1 of 2"),
        (replace(BUSY, resource="cpu"), "CPU utilization 90 % (mean of 60 s), busy"),
    ],
)
def test_a_reading_in_one_line(found: Reading, line: str) -> None:
    assert text(found) == line


def test_a_job_with_gpus_is_measured_by_them() -> None:
    roles = [{"name": "worker", "replicas": 2, "resources": {"gpu": 4, "minGpuUtilization": 50}},
             {"name": "ps"}]  # fmt: skip
    spec = job(roles=roles, watchdog={"window": 30, "aggregate": "max"}, replicas=None).spec
    assert watched(spec) == {
        "resource": "gpu", "window_s": 30.0, "aggregate": "max",
        "replicas": {"worker-0": {"min_percent": 50.0, "cores": 1.0},
                     "worker-1": {"min_percent": 50.0, "cores": 1.0}},
    }  # fmt: skip


@pytest.mark.parametrize("launcher", [True, False])
def test_with_mpi_the_replica_that_runs_mpirun_is_measured(launcher: bool) -> None:
    """Only it has processes, and the GPUs of all are seen there."""
    roles = [{"name": "launcher"}] * launcher + [
        {"name": "chief", "resources": {"gpu": 1, "minGpuUtilization": 20}},
        {"name": "worker", "replicas": 2, "resources": {"gpu": 1, "minGpuUtilization": 50}},
    ]
    training = {"framework": "mpi", "command": ["mpirun", "train"]}
    spec = job(roles=roles, replicas=None, resources={"gpu": 0}, training=training).spec
    head = "launcher-0" if launcher else "chief-0"
    assert watched(spec)["replicas"] == {head: {"min_percent": 20.0, "cores": 1.0}}


def test_a_job_without_gpus_is_measured_by_the_cores_of_those_that_train() -> None:
    roles = [{"name": "chief"}, {"name": "worker", "resources": {"cpu": 2}}, {"name": "ps"},
             {"name": "evaluator"}]  # fmt: skip
    found = watched(job(roles=roles, replicas=None, resources={"gpu": 0}).spec)
    assert found["resource"] == "cpu"
    assert found["replicas"] == {"chief-0": {"min_percent": 30.0, "cores": 1.0},
                                 "worker-0": {"min_percent": 30.0, "cores": 2.0}}  # fmt: skip
