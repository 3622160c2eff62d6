"""The one trigger: advances a job in threads of its own and waits in the event loop.

For: everything between ``defer`` and the task's return. It never raises: what goes wrong becomes
the event, because Airflow answers a raising trigger with a failure that skips our code (tried).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from ffdl_airflow.core.errors import FfdlError
from ffdl_airflow.core.goal import Goal
from ffdl_airflow.hooks.ffdl import FfdlHook
from ffdl_airflow.stages.advance import Done, Driver, Ended, Outcome, Restarting, Waits
from ffdl_airflow.stages.submit import require_ledger

T = TypeVar("T")

_THREADS = 8
"""Threads for ``advance``. The default pool has 6 on 2 cores and starves kills (measured), so the
driver has a pool of its own. Chosen."""
_LOOK_S = 1.0
"""Longest wait between two looks. Chosen: an end is seen within it."""
_FAULTS = 10
"""Looks in a row that may fail by infrastructure before the task is told."""
_POOL = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="ffdl-advance")


@dataclass(frozen=True, kw_only=True)
class Payload:
    """What the trigger tells the task, parsed before anything is decided on it."""

    kind: str  # done, ended, restarting, error
    verdict: dict[str, Any]
    delay_s: float = 0.0
    text: str = ""

    def document(self) -> dict[str, Any]:
        """Plain data for the event."""
        return {"v": 1, "kind": self.kind, "verdict": self.verdict, "delay_s": self.delay_s,
                "text": self.text}  # fmt: skip

    @classmethod
    def parse(cls, event: Any) -> "Payload":
        """From the event; raises ValueError for one that is not ours."""
        if not isinstance(event, dict) or event.get("v") != 1 or "kind" not in event:
            raise ValueError(f"the trigger's event is not ours: {event!r}")
        return cls(
            kind=event["kind"],
            verdict=dict(event.get("verdict") or {}),
            delay_s=float(event.get("delay_s", 0)),
            text=str(event.get("text", "")),
        )


class TrainingJobTrigger(BaseTrigger):
    """Wait until a job has reached a goal or cannot reach it any more.

    :param job_id: the job
    :param goal: name of a :class:`~ffdl_airflow.core.next_step.Goal`
    :param ffdl_conn_id: connection; nothing secret travels in the trigger's arguments
    :param engine: engine by name, or None
    :param give_back: whether a restart that costs ends the try
    :param ledger: id and host of the ledger that the job is in; another one is refused
    """

    def __init__(self, *, job_id: str, goal: str, ffdl_conn_id: str, engine: str | None,
                 give_back: bool, ledger: Mapping[str, str]) -> None:  # fmt: skip
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's own
        self.job_id = job_id
        self.goal = goal
        self.ffdl_conn_id = ffdl_conn_id
        self.engine = engine
        self.give_back = give_back
        self.ledger = dict(ledger)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class and arguments, from which the triggerer makes it anew."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"job_id": self.job_id, "goal": self.goal, "ffdl_conn_id": self.ffdl_conn_id,
             "engine": self.engine, "give_back": self.give_back, "ledger": self.ledger},
        )  # fmt: skip

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Advance and wait, until there is something to tell."""
        try:
            payload = await self._wait()
        except FfdlError as error:
            payload = Payload(kind="error", verdict={}, text=error.message)
        except Exception as error:
            self.log.exception("job %s", self.job_id)
            payload = Payload(kind="error", verdict={}, text=f"{type(error).__name__}: {error}")
        yield TriggerEvent(payload.document())

    async def _wait(self) -> Payload:
        hook = FfdlHook(self.ffdl_conn_id, engine=self.engine)
        deps = await sync_to_async(hook.deps)({"trigger": True})
        require_ledger(deps, self.ledger)
        driver = Driver(deps, self.job_id)
        faults = 0
        while True:
            try:
                outcome = await _in_thread(
                    lambda: driver.advance(Goal(self.goal), give_back=self.give_back)
                )
                faults = 0
            except FfdlError as error:
                faults += 1
                if not error.retryable or faults >= _FAULTS:
                    raise
                self.log.warning("job %s: %s", self.job_id, error.message)
                await asyncio.sleep(_LOOK_S * faults)
                continue
            if not isinstance(outcome, Waits):
                return payload_of(outcome)
            await asyncio.sleep(min(outcome.wait.at_most_s, _LOOK_S))


def payload_of(outcome: Outcome) -> Payload:
    """What an outcome is told as."""
    if isinstance(outcome, Restarting):
        return Payload(kind="restarting", verdict=dict(outcome.verdict), delay_s=outcome.delay_s)
    if isinstance(outcome, Done):
        return Payload(kind="done", verdict={})
    if isinstance(outcome, Ended):
        return Payload(kind="ended", verdict=dict(outcome.state.verdict or {}))
    raise AssertionError(outcome)  # pragma: no cover - a wait is never told


async def _in_thread(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_POOL, call)
