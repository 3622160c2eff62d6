"""A rank is killed at a random step: the attempt ends in seconds, the next goes on from there."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from installation import Installation, job_id_of, show

from ffdl_airflow.core.events import Event, Kind
from tests.trainers.counting import weights_after

STEPS, EVERY = 160, 10
LATEST = STEPS - 6 * EVERY
"""A survivor goes on for up to half a second (25 steps): it must not come to its end."""
LIMIT_S = 10.0
"""From the kill to AttemptEnded (issue: at most 10 s)."""


def test_the_next_attempt_goes_on_where_the_checkpoint_is(
    installation: Installation, wait_until: Callable[..., Any], rounds: Callable[..., int]
) -> None:
    chance = random.Random(20260301)
    options = {"steps": STEPS, "every": EVERY, "step-delay": 0.02}
    manifest = installation.manifest("kill", replicas=2, options=options)
    for number in range(rounds(4, soak=20)):
        victim, step = number % 2, chance.randrange(EVERY + 1, LATEST)
        process = installation.start("run", "-f", manifest)
        job_id = job_id_of(process)
        wait_until(lambda j=job_id, s=step: _is_past(installation, j, s), message=f"step {step}")
        rank = installation.ranks(job_id)[victim]
        rank.kill()
        out, _ = process.communicate(timeout=120)
        events = installation.events(job_id)
        assert process.returncode == 0, out + show(events)
        _check(installation, job_id, events, victim)


def _is_past(installation: Installation, job_id: str, step: int) -> bool:
    sealed = installation.events(job_id, Kind.CHECKPOINT_SEALED)
    return bool(sealed) and (installation.steps(job_id) or [(0, 0)])[-1][1] >= step


def _check(installation: Installation, job_id: str, events: list[Event], victim: int) -> None:
    story = show(events)
    ended = [event for event in events if event.kind is Kind.ATTEMPT_ENDED]
    killed = [e for e in events if e.kind is Kind.RANK_EXITED and e.body.get("signal") == 9]
    assert [event.body["ok"] for event in ended] == [False, True], story
    assert ended[0].body["cause"]["rank"] == victim, story
    assert (ended[0].at - killed[0].at).total_seconds() <= LIMIT_S, story
    resume = next(e for e in events if e.kind is Kind.GO_INTENDED and e.attempt == 2).body["resume"]
    first, second = _logged(installation, job_id, 1), _logged(installation, job_id, 2)
    assert second[0] == resume["step"] + 1, story
    assert first[-1] - resume["step"] <= EVERY, story
    assert second[-1] == STEPS
    assert installation.weights(job_id) == weights_after(STEPS), story
    verdicts = [event.body for event in events if event.kind is Kind.VERDICT]
    assert [(v["class"], v["costs"]) for v in verdicts] == [("KILLED_OUTSIDE", False)], story


def _logged(installation: Installation, job_id: str, attempt: int) -> list[int]:
    return [step for number, step in installation.steps(job_id) if number == attempt]
