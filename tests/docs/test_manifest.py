"""The page of the manifest names every field, with the default that the code has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ffdl_airflow.core import job
from ffdl_airflow.core.manifests.ffdl import read_job
from ffdl_airflow.testing import builders

PAGE = (Path(__file__).parents[2] / "docs" / "manifest.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([\w.]+)` \| ([^|]*) \|", PAGE, re.MULTILINE))


def leaves(model: type[BaseModel], path: str) -> Iterator[tuple[str, FieldInfo]]:
    """Every field below ``path`` that is no part with fields of its own."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        here = f"{path}{field.alias or name}"
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from leaves(inner, f"{here}.")
        else:
            yield here, field


FIELDS = dict(leaves(job.TrainingJob, ""))


@pytest.mark.parametrize("path", [path for path in FIELDS if path not in ("apiVersion", "kind")])
def test_every_field_is_on_the_page(path: str) -> None:
    part, _, name = path.rpartition(".")
    if path in ROWS or path == "spec.model":
        return
    assert part in ROWS, f"{path} is not on the page"
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| `{part}`"))
    assert f"`{name}`" in line


@pytest.mark.parametrize("path", sorted(ROWS.keys() & FIELDS.keys()))
def test_a_default_on_the_page_is_the_default(path: str) -> None:
    shown = ROWS[path]
    if path in ("spec.replicas", "spec.minReplicas", "spec.maxReplicas"):
        document = builders.job_document()
        del document["spec"]["replicas"]
        assert read_job(document).spec.model_dump()[path.removeprefix("spec.")] == 1
        return
    default = FIELDS[path].get_default(call_default_factory=True)
    if default is PydanticUndefined:
        assert shown == "required"
    elif default not in (None, (), {}):
        text = str(default).lower() if isinstance(default, bool) else f"{default}"
        assert shown == f"`{text.removesuffix('.0')}`"
