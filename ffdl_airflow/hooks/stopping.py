"""Stops jobs from outside of their tasks: all wishes first, then each job is seen to by itself.

For: the listener and the deadline of a run, which know owners and no jobs. A wish needs the ledger
only; one job that cannot be driven from here keeps no other from being stopped.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ffdl_airflow.hooks.ffdl import FfdlHook

if TYPE_CHECKING:
    from ffdl_airflow.ledger.base import JobRow

log = logging.getLogger(__name__)
_POOL = ThreadPoolExecutor(max_workers=4, thread_name_prefix="ffdl-stopping")
"""For seeing to stops, which may take as long as a save. Chosen."""


def stop_all(rows: Sequence["JobRow"], *, mode: str, why: str, conn_id: str) -> None:
    """Wish that the jobs stop, and see to it; returns as soon as all wishes are in the ledger."""
    from ffdl_airflow.stages import owned

    deps = FfdlHook(conn_id).deps({"stopping": True})
    for row in rows:
        owned.wish_stop(deps, row, mode=mode, why=why)
    for row in rows:
        _POOL.submit(_see_to, row, conn_id)


def _see_to(row: "JobRow", conn_id: str) -> None:
    from ffdl_airflow.stages import owned

    try:
        deps = FfdlHook(conn_id, engine=row.summary["engine"]).deps({"stopping": True})
        owned.see_to_it(deps, row)
    except Exception:
        log.exception("job %s is to stop; this process cannot see to it", row.job_id)
