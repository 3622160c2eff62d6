"""What is said instead of log lines to readers without the right to task logs.

A verdict's cause may be a line of a rank's log, and it comes again in the job's reason and in later
events. Such readers get what the agent said of the same attempt: who ended, and how. The class
stays. Not for: the logs themselves; those are refused as a whole (``reading.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ffdl_airflow.core.events import Event, Kind

HIDDEN = "log lines need the right to task logs"


def instead_of_logs(events: Sequence[Event]) -> dict[str, str]:
    """Each cause that is not the agent's or a driver's own word → what may be said instead."""
    found: dict[str, str] = {}
    own: Mapping[str, Any] | None = None
    for event in events:
        if event.kind is Kind.ATTEMPT_ENDED:
            own = None if event.body.get("ok") else event.body.get("cause") or {}
        elif event.kind is Kind.VERDICT and own is not None:
            cause, text = str(event.body.get("cause")), str(own.get("text") or "it has failed")
            if cause != text:
                found[cause] = f"{text} ({HIDDEN})"
            own = None
    return found


def without_logs(events: Sequence[Event]) -> list[Event]:
    """The same events, of which no text is a log line."""
    instead = instead_of_logs(events)
    return [replace(event, body=_cleaned(event.body, instead)) for event in events]


def cleaned(text: str, instead: Mapping[str, str]) -> str:
    """A text in which each cause has been replaced."""
    for cause in sorted(instead, key=len, reverse=True):
        if cause in text:
            return text.replace(cause, instead[cause])
    return text


def _cleaned(body: Mapping[str, Any], instead: Mapping[str, str]) -> dict[str, Any]:
    return {
        key: cleaned(value, instead) if isinstance(value, str) else value
        for key, value in body.items()
        if key != "tail"
    }
