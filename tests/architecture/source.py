"""The source as the architecture tests see it: files, syntax trees, functions and classes."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ffdl_airflow"
TRAINER_MODULE = ROOT / "ffdl.py"
GENERATED = PACKAGE / "ledger" / "migrations" / "versions"

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Definition(NamedTuple):
    """A function or class; ``name`` is ``path.py:Outer.inner``, as in the lists of exceptions."""

    name: str
    node: FunctionNode | ast.ClassDef
    owner: ast.ClassDef | None

    @property
    def lines(self) -> int:
        """Lines without decorators and docstring."""
        doc = _docstring(self.node)
        skipped = doc.end_lineno - doc.lineno + 1 if doc else 0
        return self.node.end_lineno - self.node.lineno + 1 - skipped


def product_files() -> list[Path]:
    """Return the product's own Python files, without what Alembic writes."""
    files = [path for path in PACKAGE.rglob("*.py") if GENERATED not in path.parents]
    return sorted([*files, *([TRAINER_MODULE] if TRAINER_MODULE.exists() else [])])


def test_files() -> list[Path]:
    return sorted((ROOT / "tests").rglob("*.py"))


def modules_of(*parts: str) -> list[str]:
    """Return the dotted names of all modules below ``ffdl_airflow/part`` (or of ``part.py``)."""
    names = []
    for part in parts:
        top = PACKAGE / part
        files = sorted(top.rglob("*.py")) if top.is_dir() else [top.with_suffix(".py")]
        for path in (path for path in files if path.exists() and GENERATED not in path.parents):
            dotted = path.relative_to(ROOT).with_suffix("").parts
            names.append(".".join(dotted[:-1] if dotted[-1] == "__init__" else dotted))
    return names


def kept_files() -> list[Path]:
    """Return all files that git keeps or would keep."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    return sorted(path for path in paths if path.is_file())


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def definitions(path: Path) -> Iterator[Definition]:
    """Yield all functions and classes of a file, nested ones too."""
    yield from _walk(tree(path), str(path.relative_to(ROOT)) + ":", owner=None)


def _walk(node: ast.AST, prefix: str, *, owner: ast.ClassDef | None) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield Definition(prefix + child.name, child, owner)
            inner = child if isinstance(child, ast.ClassDef) else None
            yield from _walk(child, f"{prefix}{child.name}.", owner=inner)
        else:
            yield from _walk(child, prefix, owner=owner)


def _docstring(node: ast.AST) -> ast.stmt | None:
    return node.body[0] if ast.get_docstring(node, clean=False) is not None else None
