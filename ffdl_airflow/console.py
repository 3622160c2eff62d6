"""How the command line shows things: tables and live progress on a terminal, plain lines elsewhere.

For: people and pipes. Not for: deciding anything.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, TextIO

import yaml
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ffdl_airflow.core.lifecycle import JobState
from ffdl_airflow.core.quantities import format_bytes, format_duration
from ffdl_airflow.ledger.base import JobRow
from ffdl_airflow.stages.advance import Waits

_EVERY_S = 5.0
"""Time between two plain progress lines of the same phase. Chosen."""
_FOR_PROGRAMS = ("json", "yaml")


def print_rows(rows: Sequence[Mapping[str, Any]], *, output: str, columns: Sequence[str]) -> None:
    """A table for people, or all of the rows as JSON or YAML."""
    if output == "json":
        sys.stdout.write(json.dumps(list(rows), indent=2, sort_keys=True, default=str) + "\n")
        return
    if output == "yaml":
        plain = json.loads(json.dumps(list(rows), default=str))
        sys.stdout.write(yaml.safe_dump(plain, sort_keys=True))
        return
    cells = [["-" if row.get(c) in (None, "") else str(row[c]) for c in columns] for row in rows]
    head = [column.upper() for column in columns]
    if not sys.stdout.isatty():
        _print_plain([head, *cells])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        table.add_column(name, no_wrap=name != head[-1])
    for texts in cells:
        table.add_row(*map(Text, texts))
    Console().print(table)


def _print_plain(rows: Sequence[Sequence[str]]) -> None:
    """Columns of text: no colour, nothing cut off, no spaces at the end."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        pairs = zip(row, widths, strict=True)
        text = "  ".join(" ".join(cell.split()).ljust(width) for cell, width in pairs)
        sys.stdout.write(text.rstrip() + "\n")


def print_document(document: Mapping[str, Any], *, output: str) -> None:
    """One document: YAML for people, JSON where asked for."""
    if output == "json":
        sys.stdout.write(json.dumps(document, indent=2, sort_keys=True, default=str) + "\n")
        return
    plain = json.loads(json.dumps(document, default=str))
    sys.stdout.write(yaml.safe_dump(plain, sort_keys=False))


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
    to.write(text + "\n")
    to.flush()


class ProgressDisplay:
    """Phases as they come, and the gang's step. A line that is redrawn on a terminal."""

    def __init__(self, to: TextIO | None = None) -> None:
        self._to = to or sys.stdout
        self._shown = 0
        self._last: tuple[str, float] = ("", 0.0)
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
        """Print the phases that are new."""
        for number in range(self._shown, len(state.story)):
            phase, at = state.story[number]
            since = at - state.story[0][1]
            text = f"{at:%H:%M:%S}  +{since.total_seconds():7.2f}s  {phase}"
            if self._live is not None:
                self._live.console.print(text)
            else:
                line(text, to=self._to)
        self._shown = len(state.story)

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
        if status.get("step") is None:
            return outcome.wait.what
        numbers = ", ".join(
            f"{name} {value:.4g}" for name, value in (status.get("metrics") or {}).items()
            if isinstance(value, (int, float))
        )  # fmt: skip
        return f"attempt {outcome.state.attempt}, step {status['step']} {numbers}".rstrip()


def job_row(row: JobRow, now: datetime) -> dict[str, Any]:
    """The columns of ``ffdl get``."""
    summary = row.summary
    started = datetime.fromisoformat(summary["submitted_at"])
    ended = summary.get("ended_at")
    until = datetime.fromisoformat(ended) if ended else now
    model = summary.get("model") or {}
    generations = summary.get("generations") or {}
    return {
        "job": row.job_id,
        "name": summary["name"],
        "phase": summary["phase"],
        "replicas/gpus": f"{summary['replicas']}/{summary['gpus']}",
        "utilization": utilization(row.status),
        "duration": format_duration((until - started).total_seconds()),
        "generation": ",".join(f"{k}={v}" for k, v in sorted(generations.items())),
        "model": f"{model['name']}:{model['version']}" if model else None,
        "sha256": model.get("sha256"),
        "attempt": summary.get("attempt"),
        "step": summary.get("step"),
        "team": summary.get("team"),
        "reason": summary.get("reason") or summary.get("waiting"),
    }


def utilization(status: Mapping[str, Any] | None) -> str | None:
    """Mean GPU use of the ranks, else their CPU use; None where nobody has measured."""
    ranks = (status or {}).get("ranks") or []
    for key, name in (("gpu_percent", "GPU"), ("cpu_percent", "CPU")):
        values = [rank[key] for rank in ranks if rank.get(key) is not None]
        if values:
            return f"{name} {sum(values) / len(values):.0f}%"
    return None


def moved_text(store: Mapping[str, Any]) -> str:
    """What a prefetch has moved, for people."""
    size = format_bytes(store["bytes"])
    return f"{store['objects']} files, {size}, {store['moved_bytes']} bytes moved"
