"""How the command line shows things: tables and live progress on a terminal, plain lines elsewhere.

For: people and pipes. Not for: deciding anything.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, TextIO

import yaml
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ffdl_airflow.core.errors import InfrastructureError
from ffdl_airflow.core.lifecycle import JobState, Phase
from ffdl_airflow.core.quantities import format_bytes
from ffdl_airflow.stages.advance import Waits

_EVERY_S = 5.0
"""Time between two plain progress lines of the same phase. Chosen."""
_FOR_PROGRAMS = ("json", "yaml")
_MAY_SHRINK = ("text", "reason", "why", "generation", "model", "name")
"""Columns that are shortened where a terminal is too narrow, in this order. All others stay whole:
people copy from them."""
_SHORTEST = 10
"""Cells that are left of a shortened column. Chosen."""
_HASH_SHOWN = 12
_SECOND = len("2026-03-01T22:00:00")


def print_rows(rows: Sequence[Mapping[str, Any]], *, output: str, columns: Sequence[str],
               screen: Console | None = None) -> None:  # fmt: skip
    """A table for people, or all of the rows as JSON or YAML.

    On a terminal (``screen``, else standard output where it is one) long texts are shortened to its
    width; in a pipe nothing is.
    """
    if output == "json":
        _write(json.dumps(list(rows), indent=2, sort_keys=True, default=str) + "\n")
        return
    if output == "yaml":
        plain = json.loads(json.dumps(list(rows), default=str))
        _write(yaml.safe_dump(plain, sort_keys=True))
        return
    cells = [["-" if row.get(c) in (None, "") else str(row[c]) for c in columns] for row in rows]
    cells = [[" ".join(cell.split()) for cell in texts] for texts in cells]
    head = [column.upper() for column in columns]
    if screen is None and sys.stdout.isatty():
        screen = Console()
    if screen is None:
        for text in _lines([head, *cells], _widths([head, *cells])):
            _write(text + "\n")
        return
    cells = [
        [_brief(name, cell) for name, cell in zip(columns, texts, strict=True)] for texts in cells
    ]
    widths = _fitted(columns, _widths([head, *cells]), screen.width)
    for number, text in enumerate(_lines([head, *cells], widths)):
        screen.print(Text(text, style="" if number else "bold"), soft_wrap=True)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, column)) for column in zip(*rows, strict=True)]


def _lines(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    """Columns of text, with no spaces at the end; what is longer than its column is shortened."""
    for row in rows:
        pairs = zip(row, widths, strict=True)
        yield "  ".join(_fit(cell, width) for cell, width in pairs).rstrip()


def _fit(cell: str, width: int) -> str:
    shortened = cell if cell_len(cell) <= width else set_cell_size(cell, width - 1).rstrip() + "…"
    return set_cell_size(shortened, width)


def _brief(column: str, cell: str) -> str:
    """Identities and times as they are read: 12 digits of a hash, a time to the second in UTC."""
    if column == "sha256":
        return cell[:_HASH_SHOWN]
    return f"{cell[:_SECOND]}Z" if column in ("at", "createdAt") and cell != "-" else cell


def _fitted(columns: Sequence[str], widths: Sequence[int], room: int) -> list[int]:
    """Widths for a terminal. What still does not fit goes on in its next line: nothing is lost."""
    fitted = list(widths)
    for name in _MAY_SHRINK:
        over = sum(fitted) + 2 * (len(fitted) - 1) - room
        if over > 0 and name in columns:
            at = columns.index(name)
            fitted[at] = max(min(fitted[at], _SHORTEST), fitted[at] - over)
    return fitted


def print_document(document: Mapping[str, Any], *, output: str) -> None:
    """One document: YAML for people, JSON where asked for."""
    if output == "json":
        _write(json.dumps(document, indent=2, sort_keys=True, default=str) + "\n")
        return
    plain = json.loads(json.dumps(document, default=str))
    _write(yaml.safe_dump(plain, sort_keys=False))


def print_documents(documents: Sequence[Mapping[str, Any]], *, output: str) -> None:
    """Several documents: a stream of YAML for people and ``kubectl``, one list in JSON."""
    plain = json.loads(json.dumps(list(documents), default=str))
    if output == "json":
        _write(json.dumps(plain, indent=2) + "\n")
        return
    _write("".join(f"---\n{yaml_text(document)}" for document in plain))


def yaml_text(document: Mapping[str, Any]) -> str:
    """YAML with the fields in their own order."""
    return yaml.safe_dump(document, sort_keys=False, width=100, allow_unicode=True)


def answer(text: str, document: Mapping[str, Any], *, output: str) -> None:
    """A sentence for people, or the same as one document where that was asked for."""
    if output in _FOR_PROGRAMS:
        print_document(document, output=output)
    else:
        line(text)


def beside(output: str) -> TextIO:
    """Where progress goes: not into a document that a program reads."""
    return sys.stderr if output in _FOR_PROGRAMS else sys.stdout


def line(text: str, *, to: TextIO | None = None) -> None:
    """One line at once, also into a pipe."""
    to = to or sys.stdout
    with writing():
        to.write(text + "\n")
        to.flush()


def _write(text: str) -> None:
    with writing():
        sys.stdout.write(text)


@contextmanager
def writing() -> Iterator[None]:
    """Raise InfrastructureError where output cannot be written; a reader that has gone is none."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InfrastructureError(
            f"the output cannot be written: {error.strerror}",
            next_step="make room where it goes, or send it elsewhere; jobs are not touched by this",
        ) from error


class ProgressDisplay:
    """Phases as they come, why an attempt has ended, and the gang's step.

    On a terminal the last line is redrawn.
    """

    def __init__(self, to: TextIO | None = None) -> None:
        self._to = to or sys.stdout
        self._shown = 0
        self._last: tuple[str, float] = ("", 0.0)
        self._reason: str | None = None
        screen = Console(file=self._to)
        self._live = Live(console=screen, transient=True) if self._to.isatty() else None

    def __enter__(self) -> "ProgressDisplay":  # noqa: PYI034 - `Self` came with Python 3.11
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def phases(self, state: JobState) -> None:
        """Print the phases that are new; what the last one waited for is over then."""
        if self._live is not None and self._shown < len(state.story):
            self._live.update("")
        if self._reason not in (None, state.reason) and state.reason and not state.terminal:
            self._print(f"          {state.reason}")
        for number in range(self._shown, len(state.story)):
            phase, at = state.story[number]
            since = at - state.story[0][1]
            self._print(f"{at:%H:%M:%S}  +{since.total_seconds():7.2f}s  {phase}")
        self._reason, self._shown = state.reason, len(state.story)

    def _print(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, markup=False)
        else:
            line(text, to=self._to)

    def waits(self, outcome: Waits) -> None:
        """Show what is being waited for."""
        self.phases(outcome.state)
        text = self._text(outcome)
        if self._live is not None:
            self._live.update(f"  {text}")
            return
        now = datetime.now(timezone.utc).timestamp()
        head = str(outcome.state.phase)
        if self._last[0] != head or now - self._last[1] >= _EVERY_S:
            self._last = (head, now)
            line(f"          {text}", to=self._to)

    @staticmethod
    def _text(outcome: Waits) -> str:
        status = outcome.wait.status or {}
        if status.get("step") is None or outcome.state.phase is not Phase.RUNNING:
            return outcome.wait.what
        numbers = [
            f"{name} {value:.4g}" for name, value in (status.get("metrics") or {}).items()
            if isinstance(value, (int, float))
        ] + [
            f"{name} {last['value']:.4g} (step {last['step']})"
            for name, last in (status.get("last_metrics") or {}).items()
            if isinstance(last.get("value"), (int, float))
        ]  # fmt: skip
        text = f"attempt {outcome.state.attempt}, step {status['step']} {', '.join(numbers)}"
        return text.rstrip()


def moved_text(store: Mapping[str, Any]) -> str:
    """What a prefetch has moved, for people."""
    size = format_bytes(store["bytes"])
    return f"{store['objects']} files, {size}, {store['moved_bytes']} bytes moved"
