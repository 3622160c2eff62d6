"""How the command line shows things: tables and live progress on a terminal, plain lines elsewhere.

For: people and pipes. Not for: deciding anything.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import yaml
from rich.console import Console
from rich.live import Live
from rich.table import Table

from ffdl_airflow.core.lifecycle import JobState
from ffdl_airflow.core.quantities import format_bytes, format_duration
from ffdl_airflow.ledger.base import JobRow
from ffdl_airflow.stages.advance import Waits

_EVERY_S = 5.0
"""Time between two plain progress lines of the same phase. Chosen."""
_WIDE = 250


def print_rows(rows: Sequence[Mapping[str, Any]], *, output: str, columns: Sequence[str]) -> None:
    """A table for people, or all of the rows as JSON or YAML."""
    if output == "json":
        sys.stdout.write(json.dumps(list(rows), indent=2, sort_keys=True, default=str) + "\n")
        return
    if output == "yaml":
        plain = json.loads(json.dumps(list(rows), default=str))
        sys.stdout.write(yaml.safe_dump(plain, sort_keys=True))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.upper(), no_wrap=True)
    for row in rows:
        table.add_row(*("-" if row.get(c) in (None, "") else str(row[c]) for c in columns))
    _console().print(table)


def print_document(document: Mapping[str, Any], *, output: str) -> None:
    """One document: YAML for people, JSON where asked for."""
    if output == "json":
        sys.stdout.write(json.dumps(document, indent=2, sort_keys=True, default=str) + "\n")
        return
    plain = json.loads(json.dumps(document, default=str))
    sys.stdout.write(yaml.safe_dump(plain, sort_keys=False))


def line(text: str) -> None:
    """One line at once, also into a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class ProgressDisplay:
    """Phases as they come, and the gang's step. A line that is redrawn on a terminal."""

    def __init__(self) -> None:
        self._shown = 0
        self._last: tuple[str, float] = ("", 0.0)
        self._live = Live(console=_console(), transient=True) if sys.stdout.isatty() else None

    def __enter__(self) -> "ProgressDisplay":
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
                line(text)
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
            line(f"          {text}")

    @staticmethod
    def _text(outcome: Waits) -> str:
        status = outcome.wait.status or {}
        if status.get("step") is None:
            return outcome.wait.what
        numbers = ", ".join(
            f"{name} {value:.4g}" for name, value in (status.get("metrics") or {}).items()
            if isinstance(value, (int, float))
        )  # fmt: skip
        return f"attempt {status.get('attempt')}, step {status['step']} {numbers}"


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
    return f"{store['objects']} files, {format_bytes(store['bytes'])}, {store['moved_bytes']} bytes moved"


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=_WIDE, no_color=True)
