"""Figures of a measurement as a table: median and spread, beside the goal and what it compares to.

Ratios are of figures of the same run, on the same machine; nothing here fails because a machine is
slow.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

COLUMNS = "{:<46} {:>5} {:>10} {:>10} {:>10} {:>10}  {}"


def table(title: str, rows: Mapping[str, Sequence[float]], goals: Mapping[str, str]) -> None:
    """Print a row for each series: how many, median, quartiles, worst, goal."""
    print(f"\n{title}")
    print(COLUMNS.format("", "n", "median", "quarter", "3rd qu.", "worst", "goal"))
    for name, values in rows.items():
        low, middle, high = quartiles(values)
        shown = [f"{value:.3f}" for value in (middle, low, high, max(values))]
        print(COLUMNS.format(name, len(values), *shown, goals.get(name, "")))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile; of one value three times that."""
    if len(values) == 1:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
