"""Threads of our own for whoever works in a triggerer's event loop.

The default pool of asyncio has 6 threads on 2 cores and starves what is urgent (measured: a kill
waited 16 s behind 100 calls of 1 s). What blocks for long has one pool, kills have another.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")

DRIVERS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="ffdl-drive")
"""For ``advance`` and readers. Chosen: each waits on disk or socket most of its time."""
KILLS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="ffdl-kill")
"""For the first step of a kill: nothing else is ever put here."""


def dwell_s() -> float:
    """Shortest life of a trigger, in seconds.

    The executor may tell of a task's deferral as late as a supervisor's ``min_heartbeat_interval``
    after it (seen: 5.1 s); where the task runs again by then, Airflow 3.3.2 takes the word for its
    end and fails it (apache/airflow 72716). So no trigger fires before that.
    """
    from airflow.sdk import conf

    return float(conf.getint("workers", "min_heartbeat_interval", fallback=5)) + 1.0


async def in_thread(call: Callable[[], T], *, pool: ThreadPoolExecutor = DRIVERS) -> T:
    """What the call returns or raises. A cancelled caller does not end the call.

    The caller's context goes along: by it a triggerer finds the log that a line belongs to.
    """
    context = copy_context()
    return await asyncio.get_running_loop().run_in_executor(pool, context.run, call)
