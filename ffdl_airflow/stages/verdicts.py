"""From a verdict to events: the one place where a failure's consequence is written down."""

from datetime import timedelta

from ffdl_airflow.core.events import Kind, NewEvent
from ffdl_airflow.core.failures.rules import Verdict
from ffdl_airflow.core.retry import GiveUp, History, decide
from ffdl_airflow.stages.deps import Deps, Job


def decided(deps: Deps, job: Job, verdict: Verdict, *, to: str | None) -> list[NewEvent]:
    """Verdict and RestartDecided or Failed. ``to``: phase of the restart, where it changes."""
    state, now = job.state, deps.clock()
    history = History(
        job_id=state.job_id, attempt=state.attempt, backoff_limit=job.spec.spec.backoffLimit,
        no_advance_limit=job.spec.spec.noAdvanceLimit, costly=state.costly, unknown=state.unknown,
        no_advance=state.no_advance, early_losses=state.early_losses,
        since_checkpoint=state.since_checkpoint,
        same_class_before=state.restart_class == verdict.failure.value,
    )  # fmt: skip
    outcome = decide(verdict, history)
    body = {**verdict.document(), "placement": state.placement or None}
    if isinstance(outcome, GiveUp):
        body["next_step"] = outcome.next_step
    attempt = state.attempt or None
    events = [NewEvent(kind=Kind.VERDICT, at=now, attempt=attempt, body=body)]
    if isinstance(outcome, GiveUp):
        reason = f"{verdict.cause} ({outcome.reason})"
        failed = {"reason": reason, "class": verdict.failure.value,
                  "next_step": outcome.next_step}  # fmt: skip
        return [*events, NewEvent(kind=Kind.FAILED, at=now, attempt=attempt, body=failed)]
    restart = {
        "costs": outcome.costs, "delay_s": outcome.delay_s, "reason": outcome.reason,
        "class": verdict.failure.value, "ran": verdict.ran, "to": to,
        "not_before": (now + timedelta(seconds=outcome.delay_s)).isoformat(),
    }  # fmt: skip
    return [*events, NewEvent(kind=Kind.RESTART_DECIDED, at=now, attempt=attempt, body=restart)]
