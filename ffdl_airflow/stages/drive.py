"""A loop around ``advance`` for whoever may block: the command line, a worker, a test."""

import time
from collections.abc import Callable

from ffdl_airflow.core.errors import FfdlError
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.engines.base import AgentAway, AgentRefused
from ffdl_airflow.stages.advance import Driver, Outcome, Waits
from ffdl_airflow.stages.deps import Deps, Wait

FAULTS = 10
"""Looks in a row that may fail by infrastructure before who waits in Airflow is told. Chosen."""
WISH_S = 1.0
"""Longest wait on a gang before the log is looked at for wishes again. Chosen."""


def drive(deps: Deps, driver: Driver, until: Goal, *, give_back: bool = False, faults: int = 1,
          on_wait: Callable[[Waits], None] | None = None) -> Outcome:  # fmt: skip
    """Advance until the goal is reached or cannot be reached any more.

    ``faults``: so many looks in a row that fail by infrastructure are raised.
    """
    failed = 0
    while True:
        try:
            outcome = driver.advance(until, give_back=give_back)
        except FfdlError as error:
            failed += 1
            if not error.retryable or failed >= faults:
                raise
            time.sleep(WISH_S * failed)
            continue
        failed = 0
        if not isinstance(outcome, Waits):
            return outcome
        if on_wait is not None:
            on_wait(outcome)
        wait(deps, outcome.wait, at_most_s=WISH_S)


def wait(deps: Deps, what: Wait, *, at_most_s: float) -> None:
    """Until something may have changed: the gang's next word, or the time is over."""
    limit_s = min(what.at_most_s, at_most_s)
    if what.placement_id is None or what.status is None:
        time.sleep(limit_s)
        return
    try:
        deps.engine.connect(what.placement_id).status(after=what.status["seq"], wait_s=limit_s)
    except (AgentAway, AgentRefused):
        time.sleep(min(limit_s, 0.05))
