"""A task that watches the triggerer's event loop: how late are its timers?"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.triggers.base import BaseTrigger, TriggerEvent

STEP_S = 0.02


class LagTrigger(BaseTrigger):
    """Until the file ``until`` is there; the event has the lateness of each timer in seconds."""

    def __init__(self, *, until: str) -> None:
        super().__init__()
        self.until = until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.LagTrigger", {"until": self.until}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        late = []
        while not os.path.exists(self.until):  # noqa: ASYNC240, PTH110 - one look at a local file
            began = time.perf_counter()
            await asyncio.sleep(STEP_S)
            late.append(round(time.perf_counter() - began - STEP_S, 5))
        yield TriggerEvent(late[-1000:])


class LagOperator(BaseOperator):
    """Defers at once; the result is what the trigger has seen of the last 20 s."""

    template_fields = ("until",)

    def __init__(self, *, until: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.until = until

    def execute(self, context: Context) -> None:
        self.defer(trigger=LagTrigger(until=self.until), method_name="resume")

    def resume(self, context: Context, event: list[float]) -> list[float]:
        return event
