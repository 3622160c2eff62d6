"""The jobs that somebody outside owns, found by their owner's key."""

from collections.abc import Callable
from datetime import timedelta

from ffdl_airflow.core.events import Kind, NewEvent
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import TERMINAL
from ffdl_airflow.ledger.base import Batch, JobRow
from ffdl_airflow.stages import wishes
from ffdl_airflow.stages.advance import Driver, Waits
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.drive import wait

_ENDED = frozenset(phase.value for phase in TERMINAL)
_SEE_TO_IT = timedelta(seconds=60)
"""How long a stop is seen to. Chosen: longer than a save within the default grace of 30 s."""
Owns = Callable[[str], bool]


def living(deps: Deps, owns: Owns) -> list[JobRow]:
    """The jobs that are not over, of the owners for whose key ``owns`` is true."""
    return [
        row
        for row in deps.ledger.jobs()
        if row.phase not in _ENDED and owns(str(row.summary["owner"].get("key")))
    ]


def wish_stop(deps: Deps, row: JobRow, *, mode: str, why: str) -> None:
    """Wish that a job stops. The ledger is enough for it: its engine need not be at hand."""
    clears = Driver(deps, row.job_id).refresh().clears
    wishes.stop(deps, row.job_id, mode=mode, by="airflow", why=why, clears=clears)


def see_to_it(deps: Deps, row: JobRow) -> None:
    """Do for a while what is wished of a job: perhaps nobody else drives it any more.

    The goal is the first one, so that nothing but the wish is acted on: after a newer clear it has
    no effect, and the job is somebody else's.
    """
    driver = Driver(deps, row.job_id)
    until = deps.clock() + _SEE_TO_IT
    while isinstance(outcome := driver.advance(Goal.SUBMIT), Waits) and deps.clock() < until:
        wait(deps, outcome.wait, at_most_s=1.0)


def deadline_missed(deps: Deps, row: JobRow, *, limit_s: float, stops: bool) -> None:
    """Write down that the run of the job has missed its deadline."""
    body = {"limit_s": limit_s, "action": "stop" if stops else "report",
            "reason": f"the DAG run is not over {limit_s:g} s after it was queued"}  # fmt: skip
    event = NewEvent(kind=Kind.DEADLINE_MISSED, at=deps.clock(), body=body, source=deps.source,
                     dedupe=f"deadline:{limit_s:g}")  # fmt: skip
    deps.ledger.append(Batch(stream=row.job_id, expected_seq=None, events=[event]))
