"""``ReapOperator``: ends what runs for an owner that will not come back."""

from typing import Any

from airflow.sdk import BaseOperator, Context

from ffdl_airflow.hooks.ffdl import DEFAULT_CONN_ID
from ffdl_airflow.operators.retry_policy import FfdlRetryPolicy


class ReapOperator(BaseOperator):
    """Stop ownerless jobs and end their placements; the result lists them with the reason.

    Ownerless is a job whose DAG run is over or deleted, or whose task has ended. What cannot be
    told counts as wanted, and so do jobs of the command line. A placement that cannot be looked at
    or ended is in the result with its error and keeps no other from being ended; the task fails
    where that was so of all. Two Airflows on one ledger and engine must not run this: each would
    take the other's runs for deleted.

    :param engine: engine by name; default: the connection's or the settings'
    :param ffdl_conn_id: connection of type ``ffdl``
    """

    def __init__(self, *, engine: str | None = None, ffdl_conn_id: str = DEFAULT_CONN_ID,
                 **kwargs: Any) -> None:  # fmt: skip
        kwargs.setdefault("retry_policy", FfdlRetryPolicy())
        super().__init__(**kwargs)
        self.engine = engine
        self.ffdl_conn_id = ffdl_conn_id

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """One round."""
        from ffdl_airflow.core.errors import InfrastructureError
        from ffdl_airflow.hooks.ffdl import FfdlHook
        from ffdl_airflow.hooks.standing import standing_of_owner
        from ffdl_airflow.stages.reap import reap

        deps = FfdlHook(self.ffdl_conn_id, engine=self.engine).deps({"task": self.task_id})
        found = reap(deps, standing=standing_of_owner)
        for one in found:
            self.log.warning("%s", one.text)
        ended = [one for one in found if one.error is None]
        self.log.info("%d placements ended", len(ended))
        if found and not ended:
            raise InfrastructureError("; ".join(one.text for one in found))
        return [{"placement": one.placement_id, "why": one.why, "killed": one.killed,
                 "error": one.error} for one in found]  # fmt: skip
