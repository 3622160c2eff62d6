"""Which checkpoint an attempt starts from: newest complete and valid, else the next older.

For: the choice, from checks that the caller makes lazily (each reads every byte), and what was lost
by it. Not for: reading files.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A directory that looks like a checkpoint. ``problem`` None: it is complete and valid."""

    step: int
    path: str
    manifest: Mapping[str, Any] | None
    problem: str | None


@dataclass(frozen=True)
class Choice:
    """``chosen`` None: start from nothing. ``refused`` newest first."""

    chosen: Candidate | None
    refused: tuple[Candidate, ...]


def choose(candidates: Iterable[Candidate], *, floor: int = 0) -> Choice:
    """The first valid candidate; ``candidates`` come newest first and are checked as consumed.

    Those of attempts up to ``floor`` are passed over in silence: the job was cleared with
    ``onClear: fresh`` after them.
    """
    refused: list[Candidate] = []
    for candidate in candidates:
        if candidate.problem is not None:
            refused.append(candidate)
        elif candidate.manifest is None or int(candidate.manifest.get("attempt", 0)) > floor:
            return Choice(candidate, tuple(refused))
    return Choice(None, tuple(refused))


def lost_steps(known: Mapping[str, Any] | None, chosen: Candidate | None) -> int:
    """Steps between the newest checkpoint that the log knows and the one that is used."""
    newest = int(known["step"]) if known else 0
    return max(0, newest - (chosen.step if chosen else 0))
