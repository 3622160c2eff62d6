"""A folded state as a document, so that a driver that starts cold need not fold a long log.

A cache, never truth: it is written with the events that it follows from, and one of another shape
or version is passed over; then the log is folded from its start.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ffdl_airflow.core.lifecycle import JobState

FOLD_VERSION = 3
"""To be raised when the fold of an old log gives another state than before."""

_NAMES = " ".join(f"{field.name}:{field.type}" for field in fields(JobState))
SHAPE = f"{FOLD_VERSION}-{hashlib.sha256(_NAMES.encode()).hexdigest()[:12]}"


@cache
def _adapter() -> TypeAdapter[JobState]:
    """Made on first use: it costs 60 ms, which a command that only reads lists does not need."""
    return TypeAdapter(JobState)


def take(state: JobState) -> dict[str, Any]:
    """The state as plain JSON data."""
    return {"shape": SHAPE, "state": _adapter().dump_python(state, mode="json")}


def restore(document: Mapping[str, Any] | None) -> JobState | None:
    """The state that :func:`take` was given; None where there is none that this version can use."""
    if document is None or document.get("shape") != SHAPE:
        return None
    try:
        return _adapter().validate_python(document["state"])
    except ValidationError:
        return None
