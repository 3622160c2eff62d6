"""Reader of our own dialect: YAML text or a mapping to a TrainingJob, with errors by field.

For: one list of problems, each with the path as the user wrote it, what was found and what is
allowed, and the nearest known name for an unknown field. Not for: other dialects.
"""

import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from ffdl_airflow.core.errors import FieldProblem, SpecError
from ffdl_airflow.core.job import TrainingJob

_FOUND_LENGTH = 80


def read_yaml(text: str, *, source: str = "the manifest") -> Mapping[str, Any]:
    """One YAML document that is a mapping; anything else is a SpecError that says what it is."""
    try:
        documents = [doc for doc in yaml.safe_load_all(text) if doc is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the text"
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise SpecError(
            [FieldProblem(where, f"no YAML ({problem})", "one YAML document")], source=source
        ) from None
    if len(documents) != 1:
        raise SpecError(
            [FieldProblem("(document)", f"{len(documents)} documents", "exactly one")],
            source=source,
        )
    return _mapping(documents[0], source)


def read_job(manifest: object, *, source: str = "the job spec") -> TrainingJob:
    """A TrainingJob from YAML text, a mapping or a TrainingJob."""
    if isinstance(manifest, TrainingJob):
        return manifest
    document = read_yaml(manifest, source=source) if isinstance(manifest, str) else manifest
    try:
        return TrainingJob.model_validate(_mapping(document, source))
    except ValidationError as error:
        raise SpecError(_problems(error), source=source) from None


def _mapping(document: object, source: str) -> Mapping[str, Any]:
    if isinstance(document, Mapping):
        return document
    found = f"{type(document).__name__} {_short(document)}"
    raise SpecError(
        [FieldProblem("(document)", found, "a mapping with apiVersion, kind, metadata, spec")],
        source=source,
    )


def _problems(error: ValidationError) -> list[FieldProblem]:
    problems = []
    for item in error.errors(include_url=False):
        location = tuple(part for part in item["loc"] if not _is_union_branch(part))
        path = _path(location)
        if item["type"] == "extra_forbidden":
            problems.append(_unknown(location, path))
        elif item["type"] == "missing":
            problems.append(FieldProblem(path, "nothing", "a value, it is required"))
        else:
            problems.append(FieldProblem(path, _short(item["input"]), _allowed(item)))
    return problems


def _is_union_branch(part: object) -> bool:
    """pydantic names the branch of a union inside the path; users have never seen that name."""
    if not isinstance(part, str):
        return False
    branches = ("function-", "literal[", "constrained-")
    return part.startswith(branches) or part in ("int", "str", "SecretRef")


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "(document)"


def _allowed(item: Any) -> str:
    message = str(item["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    if "allowed: " in message:
        return message.split("allowed: ", 1)[1]
    if item["type"] == "string_pattern_mismatch":
        return "a DNS label: lower-case letters, digits and -, at most 63"
    return message


def _unknown(location: tuple[int | str, ...], path: str) -> FieldProblem:
    known = _fields_at(location[:-1])
    near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.6)
    allowed = f"{near[0]} is the nearest known field" if near else "one of " + ", ".join(known)
    return FieldProblem(path, "an unknown field", allowed)


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = TrainingJob
    for part in location:
        if isinstance(part, str):
            fields = {(f.alias or name): f for name, f in model.model_fields.items()}
            nested = _model_in(fields[part].annotation) if part in fields else None
            if nested is None:
                return []
            model = nested
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, tuple, typing.Annotated):
        for argument in typing.get_args(annotation):
            if (found := _model_in(argument)) is not None:
                return found
    return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _FOUND_LENGTH else text[: _FOUND_LENGTH - 1] + "…"
