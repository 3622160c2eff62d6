"""YAML text to one mapping, read so that nothing that was written changes its meaning.

For: YAML 1.2's core schema (only ``true`` and ``false`` are truth values, no dates, no octal
``010``, no ``12:30`` as a number), numbers that remember how they were written (``3.10`` as an
argument is not ``3.1``), and errors for keys that stand twice. Rejected: PyYAML's own YAML 1.1, by
which ``args: [--lang, no]`` becomes ``false``. Not for: what the fields mean.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

from ffdl_airflow.core.errors import FieldProblem, SpecError

_FOUND_LENGTH = 80
ALLOWED = "a mapping with apiVersion, kind, metadata, spec"
# https://yaml.org/spec/1.2.2/#103-core-schema; the third column is where a value may begin.
_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
_CORE = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|false", list("tf")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", rf"{_FLOAT}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
)  # fmt: skip
_BASES = {"0o": 8, "0x": 16}
_MOST_DIGITS = 300
"""Digits of a number, more than any float has. Chosen; Python itself refuses above 4300."""
_MOST_NODES = 100_000
"""Values of a document. Chosen; a few nested aliases can stand for billions."""


class WrittenInt(int):
    """A whole number and its text."""

    written: str


class WrittenFloat(float):
    """A number and its text."""

    written: str


class _Loader(yaml.SafeLoader):
    """PyYAML's constructor with the rules of the module's docstring."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        seen: set[str] = set()
        for key, _ in getattr(node, "value", ()):
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"key {key.value} stands twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found

    def written_int(self, node: yaml.ScalarNode) -> int:
        """The number, with its text."""
        text = str(self.construct_scalar(node))
        self._require_short(node, text)
        base = _BASES.get(text[:2])
        found = WrittenInt(text[2:], base) if base else WrittenInt(text)
        found.written = text
        return found

    def written_float(self, node: yaml.ScalarNode) -> float:
        """The number, with its text."""
        text = str(self.construct_scalar(node))
        self._require_short(node, text)
        found = WrittenFloat(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        found.written = text
        return found

    @staticmethod
    def _require_short(node: yaml.ScalarNode, text: str) -> None:
        if len(text) > _MOST_DIGITS:
            problem = f"a number of {len(text)} digits"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_Loader.yaml_implicit_resolvers = {}  # of this class: nothing of PyYAML's own
for _name, _pattern, _first in _CORE:
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$"), _first
    )
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.written_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.written_float)


def read_yaml(text: str, *, source: str = "the manifest") -> Mapping[str, Any]:
    """One YAML document that is a mapping; anything else is a SpecError that says what it is."""
    try:
        documents = [doc for doc in yaml.load_all(text, _Loader) if doc is not None]
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError([_unreadable(error)], source=source) from None
    if len(documents) != 1:
        problem = FieldProblem("(document)", f"{len(documents)} documents", "exactly one")
        raise SpecError([problem], source=source)
    if _size(documents[0], {}) > _MOST_NODES:
        found = f"aliases that stand for more than {_MOST_NODES} values"
        problem = FieldProblem("(document)", found, "fewer, and none inside itself")
        raise SpecError([problem], source=source)
    return as_mapping(documents[0], source)


def as_mapping(document: object, source: str) -> Mapping[str, Any]:
    """The document, or a SpecError that says what it is instead of a mapping."""
    if isinstance(document, Mapping):
        return document
    kind = "" if document is None else type(document).__name__.removeprefix("Written").lower()
    found = f"{kind} {shortened(document)}".lstrip()
    raise SpecError([FieldProblem("(document)", found, ALLOWED)], source=source)


def shortened(value: object) -> str:
    """What was found, for a message: as YAML says it."""
    said = {None: "nothing", True: "true", False: "false"}
    text = said[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= _FOUND_LENGTH else text[: _FOUND_LENGTH - 1] + "…"


def _unreadable(error: Exception) -> FieldProblem:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "(document)"
    problem = getattr(error, "problem", None) or getattr(error, "reason", None)
    why = problem or "it is nested too deeply"
    return FieldProblem(where, f"no YAML that can be read ({why})", "one YAML document")


def _size(value: Any, known: dict[int, float]) -> float:
    """Values in the document with every alias written out; endless where one holds itself."""
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf  # what is asked for while it is counted is inside itself
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(value)]
