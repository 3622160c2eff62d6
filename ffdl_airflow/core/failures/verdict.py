"""What was decided from an attempt's evidence, as it is stored once. Not for: deciding it."""

from dataclasses import dataclass
from typing import Any

from ffdl_airflow.core.failures.classes import POLICIES, FailureClass


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was decided from an attempt's evidence. ``certain``: one look is enough."""

    failure: FailureClass
    cause: str
    certain: bool
    replica: str | None = None
    rank: int | None = None
    ran: bool = True
    advice: str | None = None

    @property
    def next_step(self) -> str:
        """What a person should do: this verdict's own advice, else that of its class."""
        return self.advice or POLICIES[self.failure].next_step

    def document(self) -> dict[str, Any]:
        """Plain data, as it is stored in the Verdict event."""
        policy = POLICIES[self.failure]
        return {
            "class": self.failure.value, "cause": self.cause, "certain": self.certain,
            "costs": policy.costs, "replica": self.replica, "rank": self.rank, "ran": self.ran,
            "next_step": self.next_step,
        }  # fmt: skip
