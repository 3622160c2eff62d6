"""How Airflow spaces the tries of our tasks: the verdict says when, and whether at all."""

from datetime import timedelta
from typing import Any

from airflow.sdk import RetryDecision, RetryPolicy

from ffdl_airflow.core.errors import AttemptFailed, FfdlError
from ffdl_airflow.operators.templates import mistake


class FfdlRetryPolicy(RetryPolicy):
    """Retry what the verdict restarts, after its back-off; fail at once what cannot be mended."""

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int,
                 context: Any = None) -> RetryDecision:  # fmt: skip
        """The decision for one failed try."""
        if isinstance(exception, AttemptFailed):
            delay = timedelta(seconds=float(exception.verdict.get("delay_s") or 0))
            return RetryDecision.retry(delay=delay, reason=exception.cause[:500])
        if isinstance(exception, FfdlError) and not exception.retryable:
            return RetryDecision.fail(reason=exception.cause[:500])
        if (why := mistake(exception)) is not None:
            return RetryDecision.fail(reason=why[:500])
        return RetryDecision.default()

    def serialize(self) -> dict[str, Any]:
        """There is nothing to set."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> "FfdlRetryPolicy":
        """The same policy."""
        return cls()
