"""The page about a job's life is what the table says."""

from __future__ import annotations

from pathlib import Path

from ffdl_airflow.core.events import Kind
from ffdl_airflow.core.lifecycle import Phase
from ffdl_airflow.core.lifecycle_diagram import page

PAGE = Path(__file__).parents[2] / "docs" / "lifecycle.md"


def test_the_page_is_drawn_from_the_table() -> None:
    assert PAGE.read_text() == page(), "write docs/lifecycle.md anew; see lifecycle_diagram.py"


def test_every_phase_and_every_event_is_on_it() -> None:
    text = page()
    assert [phase for phase in Phase if phase.value not in text] == []
    assert [kind for kind in Kind if f"| {kind.value} |" not in text] == []
