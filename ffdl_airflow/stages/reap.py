"""Reap: end what is left of placements that nobody will come back for."""

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ffdl_airflow.core.errors import FfdlError
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.core.lifecycle import JobState
from ffdl_airflow.engines.base import Ending, EndRequest, SupportsPlacements
from ffdl_airflow.stages import wishes
from ffdl_airflow.stages.advance import Driver
from ffdl_airflow.stages.deps import Deps
from ffdl_airflow.stages.drive import drive


@dataclass(frozen=True, kw_only=True)
class Reaped:
    """One placement that was ended, and why. ``killed``: processes that were left of it.

    ``error``: why it could not be looked at or ended; None where it was ended.
    """

    placement_id: str
    why: str
    killed: int = 0
    error: str | None = None

    @property
    def text(self) -> str:
        """In one line, for logs."""
        if self.error is not None:
            return f"{self.placement_id} could not be looked at or ended: {self.error}"
        return f"ended {self.placement_id}: {self.why}"


GONE = frozenset({"taken", "missing"})
"""Standings of an owner that will not come back (``hooks.standing.Standing``)."""
Standing = Callable[[Mapping[str, Any]], str]
"""What is known of a job's owner."""


def reap(deps: Deps, *, standing: Standing | None = None,
         at_most: int | None = None) -> list[Reaped]:  # fmt: skip
    """End every placement that its job does not need. Safe to run twice, and beside drivers.

    A fault with one placement is told in its ``error`` and stops nothing else.

    :param standing: asks for the owner of a job that still holds a place; without it only what the
        ledger says counts
    :param at_most: look at so many and no more, chosen by chance, so that each has its turn
    """
    if not isinstance(deps.engine, SupportsPlacements):
        return []
    found = [_look(deps, placement, standing)
             for placement in _chosen(deps.engine.placements(), at_most)]  # fmt: skip
    return [one for one in found if one is not None]


def _chosen(placements: Collection[str], at_most: int | None) -> list[str]:
    if at_most is None or at_most >= len(placements):
        return list(placements)
    return secrets.SystemRandom().sample(list(placements), at_most)


def _look(deps: Deps, placement_id: str, standing: Standing | None) -> Reaped | None:
    """End it where nobody needs it; None where somebody does."""
    try:
        driver = Driver(deps, placement_id.rsplit("/", 1)[0])
        state = driver.refresh()  # from the newest snapshot, not from the log's start
        why = _not_needed(state, placement_id)
        if why is not None:
            return _ended(deps, placement_id, why)
        if standing is not None and standing(state.owner) in GONE:
            return _stopped(deps, driver, state)
    except FfdlError as error:
        return Reaped(placement_id=placement_id, why="", error=error.message)
    except Exception as error:  # noqa: BLE001 - a job that cannot be read must not keep the others
        return Reaped(placement_id=placement_id, why="", error=f"{type(error).__name__}: {error}")
    return None


def _not_needed(state: JobState, placement_id: str) -> str | None:
    if state.phase is None:
        return "the ledger does not know its job"
    if int(placement_id.rsplit("/", 1)[1]) < state.placement:
        return "its job has a newer placement"
    if not state.placed:
        return f"its job has released it ({state.phase})"
    if state.terminal:
        return f"its job has ended ({state.phase})"
    return None


def _ended(deps: Deps, placement_id: str, why: str) -> Reaped:
    answer = deps.engine.end(placement_id, EndRequest(why=why))
    if isinstance(answer, Ending):
        answer = deps.engine.end(placement_id, EndRequest(why=why))
    killed = 0 if isinstance(answer, Ending) else answer.killed
    return Reaped(placement_id=placement_id, why=why, killed=killed)


def _stopped(deps: Deps, driver: Driver, state: JobState) -> Reaped:
    """A job whose owner will not come back is stopped as by a person, so that its log says it."""
    why = f"its owner has ended ({state.owner.get('key')})"
    wishes.stop(deps, state.job_id, mode="now", by="reaper", why=why, clears=state.clears)
    drive(deps, driver, Goal.RELEASE)
    return Reaped(placement_id=state.placement_id, why=why)
