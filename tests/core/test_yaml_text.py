"""YAML: nothing that was written changes its meaning, and bad text is one clear problem."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow.core.errors import SpecError
from ffdl_airflow.core.manifests.ffdl import read_job
from ffdl_airflow.core.manifests.yaml_text import read_yaml

VALUES: list[tuple[str, Any]] = [
    ("true", True), ("false", False), ("True", "True"), ("yes", "yes"), ("no", "no"), ("on", "on"),
    ("~", None), ("null", None), ("", None), ("5", 5), ("-5", -5), ("+5", 5), ("010", 10),
    ("0x1F", 31), ("0o17", 15), ("1_000", "1_000"), ("12:30", "12:30"), ("1.5", 1.5), (".5", 0.5),
    ("1e3", 1000.0), ("1.e-2", 0.01), (".inf", float("inf")), ("-.INF", float("-inf")),
    ("2026-13-45", "2026-13-45"), ("2026-03-01", "2026-03-01"), ("v1", "v1"), ("'5'", "5"),
    ("[1, a]", [1, "a"]), ("{a: 1}", {"a": 1}), ("|\n  x\n", "x\n"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "value"), VALUES)
def test_values_are_read_by_the_core_schema(written: str, value: Any) -> None:
    found = read_yaml(f"a: {written}")["a"]
    assert found == value
    assert isinstance(found, bool) is isinstance(value, bool)


def test_nan_is_read_too() -> None:
    found = read_yaml("a: .nan")["a"]
    assert math.isnan(found)


def test_arguments_keep_how_they_were_written() -> None:
    job = read_job("""
metadata: {name: x}
spec:
  training:
    framework: jax
    command: [train, 3.10]
    args: [--lang, no, --lr, 1e-3, --at, 12:30, --pad, 007, --mask, 0x1F, --amp, true]
    env: {PYTHON: 3.10, N: 5}
""")
    training = job.spec.training
    assert training.command == ("train", "3.10")
    assert training.args[1::2] == ("no", "1e-3", "12:30", "007", "0x1F", "true")
    assert training.env == {"PYTHON": "3.10", "N": "5"}


def test_merges_and_aliases_work() -> None:
    found = read_yaml("base: &b {a: 1, b: 2}\nspec: {<<: *b, b: 3}\nagain: *b")
    assert found == {"base": {"a": 1, "b": 2}, "spec": {"a": 1, "b": 3}, "again": {"a": 1, "b": 2}}


BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n"
                                 for n in range(1, 9))  # fmt: skip
BAD: list[tuple[str, str, str]] = [
    ("a: [", "line 1, column 5", "expected the node content"),
    ("a: 1\n b: 2", "line 2, column 3", "mapping values are not allowed here"),
    ("a: 1\na: 2", "line 2, column 1", "key a stands twice"),
    ("a:\n  b: 1\n  c: 2\n  b: 3", "line 4, column 3", "key b stands twice"),
    ("? [1]\n: 2", "line 1, column 3", "unhashable key"),
    ("a: \x00", "(document)", "special characters are not allowed"),
    ("a: !!python/object/apply:os.getpid []", "line 1, column 4", "could not determine"),
    ("a: " + "1" * 5000, "line 1, column 4", "a number of 5000 digits"),
    ("a: 1." + "1" * 5000, "line 1, column 4", "digits"),
    ("[" * 5000, "(document)", "nested too deeply"),
    ("", "(document)", "0 documents"),
    ("# nothing", "(document)", "0 documents"),
    ("a: 1\n---\nb: 2", "(document)", "2 documents"),
    ("a: &a [*a]", "(document)", "aliases that stand for more than"),
    ("a: &a {b: *a}", "(document)", "aliases that stand for more than"),
    (BOMB, "(document)", "aliases that stand for more than"),
    ("- 1", "(document)", "list [1]"),
]


@pytest.mark.parametrize(("text", "path", "found"), BAD, ids=[bad[2] for bad in BAD])
def test_text_that_is_no_manifest(text: str, path: str, found: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_yaml(text, source="job.yaml")
    (problem,) = caught.value.problems
    assert problem.path == path
    assert found in problem.found
    assert len(caught.value.message) < 400
    assert caught.value.message.startswith("job.yaml is not valid: ")


def test_one_document_may_stand_between_marks() -> None:
    assert read_yaml("---\na: 1\n---\n") == {"a": 1}


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=8)
            | st.floats(allow_nan=False, allow_infinity=False),
            lambda inner: st.lists(inner, max_size=3)
            | st.dictionaries(st.text(), inner, max_size=3),
            max_leaves=8,
        ),
        min_size=1,
    )
)  # fmt: skip
def test_what_was_quoted_is_read_as_it_is(document: dict[str, Any]) -> None:
    assert read_yaml(yaml.safe_dump(document, default_style='"', allow_unicode=True)) == document
