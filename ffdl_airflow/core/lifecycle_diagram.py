"""``docs/lifecycle.md``, drawn from the table of ``lifecycle.py``, so that it cannot say otherwise.

For: whoever changes the table and writes the page anew:
``python -c "from ffdl_airflow.core.lifecycle_diagram import page; print(page(), end='')"``.
"""

from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.lifecycle import ALL, LIVE, TABLE, TERMINAL, Phase, Row

_HEAD = """# The life of a job

Drawn from the table in `ffdl_airflow/core/lifecycle.py`; a test compares this page with it. How to
write it anew stands in `ffdl_airflow/core/lifecycle_diagram.py`.

A job is its event log, and its phase follows from the log. An event that is not in the table for
the job's phase is refused with the job's story, and changes nothing. An event about a placement
that is not the newest one is kept in the log and changes nothing.
"""
_TABLE_HEAD = """
## Every event

*any* are all phases, *live* all but the ends. With several phases behind the arrow the event
decides: a restart stays on its placement (Reserved) or takes a new one (Reserving); a clear goes
back to where it was asked to, once the placement is gone, and never past a phase that the job has
not been in.

| event | in phase | leads to |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    return f"{_HEAD}\n## Between phases\n\n{diagram()}\n{_TABLE_HEAD}{_rows()}\n"


def diagram() -> str:
    """A Mermaid state diagram of the events that change the phase.

    What ends a job from anywhere (Failed, Stopped, Cleared) would hide the rest: see the table.
    """
    edges: dict[tuple[Phase, Phase], list[str]] = {}
    for kind, rows in TABLE.items():
        for row in rows:
            if len(row.sources) < len(LIVE):
                for edge in _edges(row):
                    edges.setdefault(edge, []).append(kind.value)
    lines = [f"  {a} --> {b}: {', '.join(kinds)}" for (a, b), kinds in edges.items()]
    ends = [f"  {phase} --> [*]" for phase in Phase if phase in TERMINAL]
    first = f"  [*] --> {Phase.SUBMITTED}: {Kind.SUBMITTED.value}"
    return "\n".join(["```mermaid", "stateDiagram-v2", first, *lines, *ends, "```"])


def _edges(row: Row) -> list[tuple[Phase, Phase]]:
    return [(a, b) for a in row.sources for b in row.to if a is not b]


def _rows() -> str:
    first = f"| {Kind.SUBMITTED.value} | (an empty log) | → {Phase.SUBMITTED} |"
    found = [
        f"| {kind.value} | {_sources(row, first=row is rows[0])} | {_target(row)} |"
        for kind, rows in TABLE.items()
        for row in rows
    ]
    return "\n".join([first, *found])


def _sources(row: Row, *, first: bool) -> str:
    return _names(row.sources) if first or row.sources != ALL else "any other"


def _names(phases: tuple[Phase, ...]) -> str:
    named = {ALL: "any", LIVE: "live"}
    return named.get(phases) or ", ".join(map(str, phases))


def _target(row: Row) -> str:
    return f"→ {_names(row.to)}" if row.to else "the same"
