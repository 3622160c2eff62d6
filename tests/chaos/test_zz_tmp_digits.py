"""The real trainer is killed at a random step, and its model comes out the same, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from installation import Installation, job_id_of, show

from ffdl_airflow.core.events import Event, Kind

for module in ("jax", "sklearn"):
    pytest.importorskip(module, reason=f"the digits trainer needs {module}", exc_type=ImportError)

STEPS, EVERY, DELAY_S = 400, 100, 0.01
LIMIT_S = 10.0
"""From the kill to AttemptEnded (issue: at most 10 s)."""


def test_a_killed_rank_changes_nothing_about_the_model(
    installation: Installation, wait_until: Callable[..., Any], rounds: Callable[..., int]
) -> None:
    chance = random.Random(20260302)
    manifest = installation.digits("digits", steps=STEPS, every=EVERY, step_delay=DELAY_S)
    done = installation.run("run", "-f", manifest, timeout=300)
    (job_id,) = installation.jobs()
    assert done.returncode == 0, done.stdout + show(installation.events(job_id))
    undisturbed = _model(installation, job_id)
    assert undisturbed["metrics"]["accuracy"] >= 0.95
    for number in range(rounds(1, soak=6)):
        victim, step = number % 2, chance.randrange(EVERY + 1, STEPS - 10)
        process = installation.start("run", "-f", manifest)
        job_id = job_id_of(process)
        wait_until(lambda j=job_id, s=step: _is_past(installation, j, s), message=f"step {step}")
        installation.ranks(job_id)[victim].kill()
        killed_at = datetime.now(timezone.utc)
        out, _ = process.communicate(timeout=300)
        events = installation.events(job_id)
        assert process.returncode == 0, out + show(events)
        _check(installation, job_id, events, killed_at)
        model = _model(installation, job_id)
        assert model["sha256"] == undisturbed["sha256"], show(events)
        assert model["version"] == undisturbed["version"] + number + 1


def _model(installation: Installation, job_id: str) -> dict[str, Any]:
    model = installation.state(job_id).model
    assert model is not None
    return dict(model)


def _is_past(installation: Installation, job_id: str, step: int) -> bool:
    if not installation.events(job_id, Kind.CHECKPOINT_SEALED):
        return False
    return (installation.steps(job_id) or [(0, 0)])[-1][1] >= step


def _check(
    installation: Installation, job_id: str, events: list[Event], killed_at: datetime
) -> None:
    story = show(events)
    ended = [event for event in events if event.kind is Kind.ATTEMPT_ENDED]
    assert [event.body["ok"] for event in ended] == [False, True], story
    assert (ended[0].at - killed_at).total_seconds() <= LIMIT_S, story
    went = [event.body["resume"] for event in events if event.kind is Kind.GO_INTENDED]
    assert went[0] is None
    for rank in (0, 1):
        steps = installation.steps(job_id, rank)
        first, second = ([s for a, s in steps if a == attempt] for attempt in (1, 2))
        assert second[0] == went[1]["step"] + 1, story
        assert first[-1] - went[1]["step"] <= EVERY, story
        assert second == list(range(second[0], STEPS + 1))
    placements = [event for event in events if event.kind is Kind.PLACED]
    assert len(placements) == 1, story  # the place was kept
