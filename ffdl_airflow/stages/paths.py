"""Paths in a manifest are meant from where the manifest lies; here they become absolute."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def resolve_paths(manifest: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The manifest with ``code``, data and checkpoint paths absolute. Wrong forms stay as they are.

    They are not this function's business: the reader names them with their field. ``..`` is worked
    out, so that one file has one name and one source.
    """
    document = dict(manifest)
    spec = document.get("spec")
    if not isinstance(spec, Mapping):
        return document
    spec = dict(spec)
    for part, field in (("training", "code"), ("checkpoint", "path")):
        if isinstance(spec.get(part), Mapping):
            spec[part] = _with_absolute(spec[part], field, base)
    if isinstance(spec.get("dataStores"), (list, tuple)):
        spec["dataStores"] = [
            _with_absolute(store, "path", base) if isinstance(store, Mapping) else store
            for store in spec["dataStores"]
        ]
    document["spec"] = spec
    return document


def _with_absolute(part: Mapping[str, Any], field: str, base: Path) -> dict[str, Any]:
    found = dict(part)
    value = found.get(field)
    if isinstance(value, str) and value and "://" not in value:
        found[field] = os.path.normpath((base / Path(value).expanduser()).absolute())
    return found
