"""The life of a job: one table (phase and event → phase) and the fold over the log.

For: what state a log of events means. A pair that is not in the table raises with the job's story
and changes nothing. Not for: what to do next; that is ``next_step.py``. Pure: no clock, no I/O.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from ffdl_airflow.core.events import Event, Kind, iso
from ffdl_airflow.core.retry import early_delay_s
from ffdl_airflow.core.text_enum import TextEnum
from ffdl_airflow.core.utilization import DAY, WARN


class Phase(TextEnum):
    """Where a job is. Every phase has its own times and reason in the log."""

    SUBMITTED = "Submitted"
    VALIDATED = "Validated"
    PREFETCHING = "Prefetching"
    DATA_READY = "DataReady"
    RESERVING = "Reserving"
    RESERVED = "Reserved"
    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    TRAINED = "Trained"
    REGISTERING = "Registering"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


P = Phase
TERMINAL = frozenset({P.SUCCEEDED, P.FAILED, P.STOPPED})
LIVE = tuple(phase for phase in P if phase not in TERMINAL)
ALL = tuple(P)
HOLDING = (P.RESERVING, P.RESERVED)
RUNS = (P.STARTING, P.RUNNING)


@dataclass(frozen=True)
class Row:
    """One line of the table: from which phases, to which. ``to`` empty: the phase stays.

    With several ``to`` the event decides which (its body, or whether a gang is still there).
    """

    sources: tuple[Phase, ...]
    to: tuple[Phase, ...] = ()


TABLE: Mapping[Kind, tuple[Row, ...]] = {  # a log begins with Submitted, in the phase of that name
    Kind.VALIDATED: (Row((P.SUBMITTED,), (P.VALIDATED,)),),
    Kind.REFUSED: (Row((P.SUBMITTED, P.VALIDATED), (P.FAILED,)),),
    Kind.MOVER_INTENDED: (Row((P.VALIDATED,), (P.PREFETCHING,)),),
    Kind.PREFETCH_STARTED: (Row((P.PREFETCHING,)),),
    Kind.DATA_READY: (Row((P.PREFETCHING,), (P.DATA_READY,)),),
    Kind.PREFETCH_FAILED: (Row((P.PREFETCHING,)),),
    Kind.RESERVE_INTENDED: (Row((P.DATA_READY, P.RESERVING), (P.RESERVING,)),),
    Kind.WAITING: (Row((P.RESERVING,)),),
    Kind.PLACED: (Row(ALL),),
    Kind.RESERVED: (Row((P.RESERVING,), (P.RESERVED,)), Row(ALL)),
    Kind.HOLD_EXPIRED: (Row((*HOLDING, P.STARTING), (P.RESERVING,)), Row(ALL)),
    Kind.GO_INTENDED: (Row((P.RESERVED,), (P.STARTING,)),),
    Kind.RUNNING: (Row((P.STARTING,), (P.RUNNING,)), Row(ALL)),
    Kind.PROGRESS_SUMMARY: (Row(ALL),),
    Kind.CHECKPOINT_SEALED: (Row(ALL),),
    Kind.CHECKPOINT_REFUSED: (Row(ALL),),
    Kind.RANK_EXITED: (Row(ALL),),
    Kind.REPLICA_LOST: (Row(ALL),),
    Kind.ATTEMPT_ENDED: (Row((*RUNS, P.STOPPING), (P.STOPPING,)), Row(ALL)),
    Kind.VERDICT: (Row((P.PREFETCHING, *HOLDING, P.STOPPING, P.REGISTERING)),),
    Kind.RESTART_DECIDED: (
        Row((P.STOPPING,), (P.RESERVED, P.RESERVING)),
        Row((P.PREFETCHING, P.REGISTERING)),
    ),
    Kind.WATCHDOG_WARNED: (Row(ALL),),
    Kind.WATCHDOG_RECOVERED: (Row(ALL),),
    Kind.DEADLINE_MISSED: (Row(ALL),),
    Kind.SAVE_REQUESTED: (Row(ALL),),
    Kind.END_INTENDED: (Row((*HOLDING, *RUNS, P.STOPPING), (P.STOPPING,)),),
    Kind.TRAINED: (Row((P.STOPPING,), (P.TRAINED,)),),
    Kind.REGISTER_INTENDED: (Row((P.TRAINED,), (P.REGISTERING,)),),
    Kind.MODEL_REGISTERED: (Row((P.REGISTERING,)),),
    Kind.RELEASED: (
        Row(HOLDING, (P.RESERVING,)),
        Row((P.STOPPING,), (P.STOPPING, P.SUBMITTED, P.VALIDATED, P.DATA_READY)),
        Row(ALL),
    ),
    Kind.SUCCEEDED: (Row((P.TRAINED, P.REGISTERING), (P.SUCCEEDED,)),),
    Kind.FAILED: (Row(LIVE, (P.FAILED,)),),
    Kind.STOPPED: (Row(LIVE, (P.STOPPED,)),),
    Kind.ADOPTED: (Row(ALL),),
    Kind.SPEC_CHANGED: (Row(ALL),),
    Kind.STOP_WANTED: (Row(ALL),),
    Kind.SAVE_WANTED: (Row(ALL),),
    Kind.RESIZE_WANTED: (Row(ALL),),
    Kind.CLEARED: (Row(ALL, (P.SUBMITTED, P.VALIDATED, P.DATA_READY, P.STOPPING)),),
}

_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class JobState:
    """What the log says about a job at ``seq``. ``phase`` None: there are no events yet.

    ``placement`` is the number of the newest placement; ``placed`` says that it may still exist.
    ``lost`` has what became of the replicas that this placement has lost. ``ended_at``: when the
    end of the newest attempt was written down here, by no other host's clock.
    ``must_end`` is the reason why that placement has to go, None where it may stay. ``ending`` is
    the verdict for which a driver ends the job. ``warned`` is the watchdog's warning that stands,
    ``warnings`` are the times of those of a day. ``clears`` counts the clears: what a task wished
    before the newest one does not count any more.
    """

    job_id: str
    seq: int = 0
    phase: Phase | None = None
    story: tuple[tuple[Phase, datetime], ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    owner: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "local"
    host: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    mover_error: Mapping[str, Any] | None = None
    placement: int = 0
    placed: bool = False
    must_end: str | None = None
    end_mode: str = "now"
    journal_seq: int = 0
    waiting: str | None = None
    slots: tuple[int, ...] = ()
    lost: tuple[Mapping[str, Any], ...] = ()
    attempt: int = 0
    attempt_open: bool = False
    attempt_result: Mapping[str, Any] | None = None
    ended_at: datetime | None = None
    running_at: datetime | None = None
    running_s: float = 0.0
    cpu_s: float = 0.0
    resume: Mapping[str, Any] | None = None
    checkpoint: Mapping[str, Any] | None = None
    checkpoint_floor: int = 0
    step: int | None = None
    verdict: Mapping[str, Any] | None = None
    ending: Mapping[str, Any] | None = None
    warned: Mapping[str, Any] | None = None
    warnings: tuple[datetime, ...] = ()
    not_before: datetime | None = None
    restart_class: str | None = None
    costly: int = 0
    early_losses: int = 0
    no_advance: int = 0
    unknown: int = 0
    since_checkpoint: int = 0
    stop_wanted: Mapping[str, Any] | None = None
    save_wanted: int | None = None
    clear_pending: Phase | None = None
    clears: int = 0
    model: Mapping[str, Any] | None = None
    reason: str = ""

    @property
    def terminal(self) -> bool:
        """Nothing more happens to the job by itself."""
        return self.phase in TERMINAL

    @property
    def placement_id(self) -> str:
        """Name of the newest placement."""
        return f"{self.job_id}/{self.placement}"

    @property
    def last_attempt_ok(self) -> bool:
        """The newest attempt has ended well."""
        return bool(self.attempt_result and self.attempt_result.get("ok"))


class IllegalTransition(Exception):
    """An event that the table does not allow in this phase. The state is as it was."""

    def __init__(self, state: JobState, event: Event) -> None:
        story = " → ".join(f"{phase} {at:%H:%M:%S}" for phase, at in state.story) or "(empty)"
        super().__init__(
            f"{event.kind} (seq {event.seq}) is not allowed in {state.phase or 'an empty log'} "
            f"of {state.job_id}. Story: {story}"
        )
        self.state = state
        self.event = event


def fold(job_id: str, events: Iterable[Event], start: JobState | None = None) -> JobState:
    """The state after ``events``, from ``start`` or from nothing."""
    state = start or JobState(job_id=job_id)
    for event in events:
        state = apply(state, event)
    return state


def apply(state: JobState, event: Event) -> JobState:
    """The state after one more event; raises :class:`IllegalTransition` and changes nothing."""
    row = _row(state, event)
    if row is None:
        raise IllegalTransition(state, event)
    foreign = event.placement is not None and event.placement != state.placement
    if foreign and event.kind is not Kind.RESERVE_INTENDED:
        return replace(state, seq=event.seq)
    changed = _EFFECTS.get(event.kind, _no_effect)(state, event)
    phase = _target(state, row, event)
    story = state.story if phase == state.phase else (*state.story, (phase, event.at))
    journal = max(changed.journal_seq, int(event.source.get("journal_seq", 0)))
    return replace(changed, seq=event.seq, phase=phase, story=story, journal_seq=journal)


def _row(state: JobState, event: Event) -> Row | None:
    if state.phase is None:
        return Row((), (P.SUBMITTED,)) if event.kind is Kind.SUBMITTED else None
    return next((row for row in TABLE.get(event.kind, ()) if state.phase in row.sources), None)


def _target(state: JobState, row: Row, event: Event) -> Phase:
    if event.kind is Kind.CLEARED:
        return P.STOPPING if state.placed else _cleared_to(state, event)
    if event.kind is Kind.RELEASED and state.phase is P.STOPPING:
        return state.clear_pending or P.STOPPING
    if event.kind is Kind.RESTART_DECIDED and row.to:
        return P(event.body["to"])
    if len(row.to) == 1:
        return row.to[0]
    assert state.phase is not None  # noqa: S101 - only Submitted starts a log
    return state.phase


def _cleared_to(state: JobState, event: Event) -> Phase:
    """Back to the phase that the clear names, but never past one that the job has not been in."""
    been = {phase for phase, _ in state.story}
    wanted = P(event.body.get("to", P.VALIDATED))
    ways = (wanted, P.VALIDATED) if wanted is P.DATA_READY else (wanted,)
    return next((phase for phase in ways if phase in been), P.SUBMITTED)


def _no_effect(state: JobState, event: Event) -> JobState:
    return state


def _submitted(state: JobState, event: Event) -> JobState:
    body = event.body
    return replace(
        state, spec=body["spec"], owner=body.get("owner", _NOTHING),
        engine=body.get("engine", "local"), host=event.source.get("host"),
    )  # fmt: skip


def _spec_changed(state: JobState, event: Event) -> JobState:
    return replace(state, spec=event.body["spec"])


def _data_ready(state: JobState, event: Event) -> JobState:
    return replace(state, data=event.body, mover_error=None, not_before=None)


def _prefetch_failed(state: JobState, event: Event) -> JobState:
    return replace(state, mover_error=event.body)


def _reserve_intended(state: JobState, event: Event) -> JobState:
    return replace(
        state, placement=event.body["placement"], placed=True, must_end=None, journal_seq=0,
        slots=(), waiting=None, attempt_open=False, lost=(),
    )  # fmt: skip


def _waiting(state: JobState, event: Event) -> JobState:
    return replace(state, waiting=event.body.get("reason"))


def _placed(state: JobState, event: Event) -> JobState:
    return replace(state, slots=tuple(event.body.get("slots", ())), waiting=None)


def _replica_lost(state: JobState, event: Event) -> JobState:
    return replace(state, lost=(*state.lost, event.body))


def _hold_expired(state: JobState, event: Event) -> JobState:
    lost = state.attempt - 1 if state.phase is P.STARTING else state.attempt
    reason = "the hold has expired"
    return replace(state, must_end=reason, reason=reason, attempt=lost, attempt_open=False)


def _go_intended(state: JobState, event: Event) -> JobState:
    """What the attempt starts from is, until it seals a newer one, the job's checkpoint."""
    resume = event.body.get("resume")
    return replace(
        state, attempt=event.body["attempt"], attempt_open=True, attempt_result=None, ended_at=None,
        running_at=None, resume=resume, checkpoint=resume, not_before=None, verdict=None,
    )  # fmt: skip


def _running(state: JobState, event: Event) -> JobState:
    return replace(state, running_at=event.at) if state.attempt_open else state


def _progress(state: JobState, event: Event) -> JobState:
    return replace(state, step=event.body.get("step", state.step))


def _sealed(state: JobState, event: Event) -> JobState:
    """What an attempt seals while it is ended by a clear that begins anew is not gone on from."""
    newest = state.checkpoint is None or event.body["step"] > state.checkpoint["step"]
    passed_over = event.attempt is not None and event.attempt <= state.checkpoint_floor
    if passed_over or not newest:
        return state
    return replace(
        state, checkpoint=event.body, step=max(event.body["step"], state.step or 0),
        no_advance=0, since_checkpoint=0, early_losses=0,
    )  # fmt: skip


def _refused(state: JobState, event: Event) -> JobState:
    """A checkpoint that the log knew of is not good any more: the choice falls to an older one."""
    return replace(state, checkpoint=event.body["chosen"]) if "chosen" in event.body else state


def _attempt_ended(state: JobState, event: Event) -> JobState:
    if not state.attempt_open:
        return state
    ran = max(0.0, (event.at - state.running_at).total_seconds()) if state.running_at else 0.0
    ok = bool(event.body.get("ok"))
    return replace(
        state, attempt_open=False, attempt_result=event.body, ended_at=event.recorded_at,
        running_s=state.running_s + ran,
        cpu_s=state.cpu_s + float(event.body.get("cpu_s") or 0.0),
        step=event.body.get("last_step") or state.step, save_wanted=None, warned=None,
        must_end="the gang has ended well" if ok else state.must_end,
    )  # fmt: skip


def _verdict(state: JobState, event: Event) -> JobState:
    return replace(state, verdict=event.body, reason=str(event.body.get("cause", "")))


def _restart_decided(state: JobState, event: Event) -> JobState:
    body = event.body
    leaves = body.get("to") == P.RESERVING.value
    not_before = body.get("not_before")
    ran = bool(body.get("ran", True))
    return replace(
        state,
        must_end="restart on a new placement" if leaves and state.placed else state.must_end,
        not_before=datetime.fromisoformat(not_before) if not_before else None,
        restart_class=body.get("class"),
        costly=state.costly + bool(body.get("costs")),
        unknown=state.unknown + (body.get("class") == "UNKNOWN"),
        no_advance=state.no_advance + ran,
        early_losses=state.early_losses + (not ran),
        since_checkpoint=state.since_checkpoint + 1,
        mover_error=None,
        ending=None,
    )


def _end_intended(state: JobState, event: Event) -> JobState:
    return replace(
        state, must_end=event.body.get("why", "end"), end_mode=event.body.get("mode", "now"),
        ending=event.body.get("verdict"),
    )  # fmt: skip


def _warned(state: JobState, event: Event) -> JobState:
    """A warning of the utilization ladder stands until it is withdrawn or the attempt ends."""
    if event.body.get("level") != WARN or not state.attempt_open:
        return state
    recent = tuple(at for at in state.warnings if event.at - at < DAY)
    return replace(state, warned={**event.body, "at": iso(event.at)},
                   warnings=(*recent, event.at))  # fmt: skip


def _recovered(state: JobState, event: Event) -> JobState:
    return replace(state, warned=None)


def _released(state: JobState, event: Event) -> JobState:
    lost = bool(event.body.get("lost")) and state.phase in HOLDING and state.must_end is None
    pause_s = early_delay_s(state.early_losses) if lost else 0.0
    return replace(
        state, placed=False, must_end=None, slots=(), attempt_open=False, end_mode="now",
        early_losses=state.early_losses + lost, waiting=None, clear_pending=None,
        not_before=event.at + timedelta(seconds=pause_s) if pause_s else state.not_before,
    )  # fmt: skip


def _finished(state: JobState, event: Event) -> JobState:
    reason = str(event.body.get("reason", "")) or event.kind.value
    must_end = reason if state.placed else None
    return replace(state, must_end=must_end, stop_wanted=None, reason=reason, save_wanted=None)


def _succeeded(state: JobState, event: Event) -> JobState:
    """What went wrong on the way is told by the log; the job as a whole has no reason to give."""
    return replace(state, reason="", waiting=None)


def _stop_wanted(state: JobState, event: Event) -> JobState:
    """Recorded always; of effect only while the job lives. A later, harder wish wins.

    A wish with a number of ``clears`` was made by a task for what it knew: after a newer clear the
    job is another try's, and the wish comes too late.
    """
    if state.terminal or int(event.body.get("clears", state.clears)) < state.clears:
        return state
    if state.stop_wanted and state.stop_wanted.get("mode") == "now":
        return state
    return replace(state, stop_wanted=event.body)


def _save_wanted(state: JobState, event: Event) -> JobState:
    return replace(state, save_wanted=event.seq) if state.phase is P.RUNNING else state


def _save_requested(state: JobState, event: Event) -> JobState:
    return replace(state, save_wanted=None)


def _cleared(state: JobState, event: Event) -> JobState:
    to = _cleared_to(state, event)
    fresh = event.body.get("mode") == "fresh"
    return replace(
        state, clear_pending=to if state.placed else None, stop_wanted=None, verdict=None,
        not_before=None, must_end="cleared" if state.placed else None, costly=0, unknown=0,
        no_advance=0, early_losses=0, since_checkpoint=0, attempt_result=None, reason="cleared",
        model=None, ending=None, warned=None, warnings=(),
        mover_error=None, save_wanted=None, restart_class=None, clears=state.clears + 1,
        checkpoint=None if fresh else state.checkpoint,
        checkpoint_floor=state.attempt if fresh else state.checkpoint_floor,
    )  # fmt: skip


def _registered(state: JobState, event: Event) -> JobState:
    return replace(state, model=event.body)


_EFFECTS: Mapping[Kind, Callable[[JobState, Event], JobState]] = {
    Kind.SUBMITTED: _submitted,
    Kind.SPEC_CHANGED: _spec_changed,
    Kind.DATA_READY: _data_ready,
    Kind.PREFETCH_FAILED: _prefetch_failed,
    Kind.RESERVE_INTENDED: _reserve_intended,
    Kind.WAITING: _waiting,
    Kind.PLACED: _placed,
    Kind.REPLICA_LOST: _replica_lost,
    Kind.HOLD_EXPIRED: _hold_expired,
    Kind.GO_INTENDED: _go_intended,
    Kind.RUNNING: _running,
    Kind.PROGRESS_SUMMARY: _progress,
    Kind.CHECKPOINT_SEALED: _sealed,
    Kind.CHECKPOINT_REFUSED: _refused,
    Kind.ATTEMPT_ENDED: _attempt_ended,
    Kind.VERDICT: _verdict,
    Kind.RESTART_DECIDED: _restart_decided,
    Kind.END_INTENDED: _end_intended,
    Kind.WATCHDOG_WARNED: _warned,
    Kind.WATCHDOG_RECOVERED: _recovered,
    Kind.RELEASED: _released,
    Kind.REFUSED: _finished,
    Kind.SUCCEEDED: _succeeded,
    Kind.FAILED: _finished,
    Kind.STOPPED: _finished,
    Kind.STOP_WANTED: _stop_wanted,
    Kind.SAVE_WANTED: _save_wanted,
    Kind.SAVE_REQUESTED: _save_requested,
    Kind.CLEARED: _cleared,
    Kind.MODEL_REGISTERED: _registered,
}
