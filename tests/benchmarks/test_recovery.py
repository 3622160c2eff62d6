"""How long a killed rank costs: from the kill until all trainers are started again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from ffdl_airflow.core.events import Event, Kind, parse_iso
from tests.benchmarks.figures import table
from tests.chaos.installation import Installation, job_id_of, show

KILLS = 10
EVERY, STEPS, DELAY_S = 20, 100_000, 0.02


def test_from_the_kill_to_all_trainers_started(
    installation: Installation, wait_until: Callable[..., Any]
) -> None:
    manifest = installation.digits("recovery", steps=STEPS, every=EVERY, step_delay=DELAY_S)
    process = installation.start("run", "-f", manifest)
    job_id = job_id_of(process)
    kills: list[datetime] = []
    for number in range(1, KILLS + 1):
        wait_until(
            lambda n=number: _of(installation, job_id, n, Kind.CHECKPOINT_SEALED),
            message=f"a checkpoint of attempt {number}",
        )
        rank = installation.ranks(job_id)[number % 2]
        kills.append(datetime.now(timezone.utc))
        rank.kill()
    wait_until(
        lambda: _of(installation, job_id, KILLS + 1, Kind.CHECKPOINT_SEALED),
        message="a checkpoint of the last attempt",
    )
    assert installation.run("stop", job_id, "--now").returncode == 0
    process.communicate(timeout=60)
    ended = [_of(installation, job_id, n, Kind.ATTEMPT_ENDED)[0] for n in range(1, KILLS + 2)]
    intended = [_of(installation, job_id, n, Kind.GO_INTENDED)[0].at for n in range(2, KILLS + 2)]
    running = [_of(installation, job_id, n, Kind.RUNNING)[0].at for n in range(2, KILLS + 2)]
    causes = [event.body["cause"]["kind"] for event in ended[:-1]]
    assert causes == ["signal"] * KILLS, show(installation.events(job_id))
    table(
        f"A rank of 2 is killed, {KILLS} times, seconds",
        {
            "kill -> attempt ended": _between(kills, [event.at for event in ended]),
            "attempt ended -> go intended": _between([event.at for event in ended], intended),
            "go intended -> all trainers started": _between(intended, running),
            "kill -> all trainers started": _between(kills, running),
            "trainer's own start: started -> first step": [_own_start(event) for event in ended],
        },
        {"kill -> all trainers started": "3"},
    )


def _of(installation: Installation, job_id: str, attempt: int, kind: Kind) -> list[Event]:
    return [event for event in installation.events(job_id, kind) if event.attempt == attempt]


def _between(first: list[datetime], then: list[datetime]) -> list[float]:
    return [(b - a).total_seconds() for a, b in zip(first, then, strict=False)]


def _own_start(ended: Event) -> float:
    body = ended.body
    started, first = parse_iso(body["running_at"]), parse_iso(body["first_step_at"])
    return (first - started).total_seconds()
