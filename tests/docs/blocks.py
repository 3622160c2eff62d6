"""Code blocks of Markdown files, and whether their writer wants them run.

A block is run when the line above its fence is ``<!-- test -->``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(
    r"(?P<mark><!-- test -->[ \t]*\n)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\[[^\]]*\]\((?!\w+:)(?P<target>[^)#\s]+)[^)]*\)")


class Block(NamedTuple):
    """One fenced block; ``line`` (from 1) is where its code starts."""

    language: str
    code: str
    line: int
    tested: bool


def blocks_of(path: Path) -> Iterator[Block]:
    text = path.read_text()
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        yield Block(match["language"], match["code"], line, bool(match["mark"]))


def links_of(path: Path) -> list[str]:
    """Return the targets of links to other files of this repository."""
    return [match["target"] for match in LINK.finditer(FENCE.sub("", path.read_text()))]
