"""Reader of our own dialect: YAML text or a mapping to a TrainingJob, with errors by field.

For: one list of problems, each with the path as the user wrote it, what was found and what is
allowed, and the nearest known name for an unknown field. Not for: other dialects.
"""

import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from ffdl_airflow.core.errors import FieldProblem, SpecError
from ffdl_airflow.core.job import WRONG_FIELD, TrainingJob
from ffdl_airflow.core.manifests.yaml_text import as_mapping, read_yaml, shortened
from ffdl_airflow.core.secret_text import looks_secret, secret_option

__all__ = ["read_job", "read_yaml"]

_Location = tuple[int | str, ...]
# pydantic's types of errors, in words for people who write YAML. Numbers come from the context.
_ALLOWED: Mapping[str, str] = {
    "missing": "a value, it is required",
    "string_type": "a text; a number that is meant as text stands in quotes",
    "string_pattern_mismatch": "a DNS label: lower-case letters, digits and -, at most 63",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "invalid_key": "texts as keys",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:.12g}",
}


def read_job(manifest: object, *, source: str = "the job spec") -> TrainingJob:
    """A TrainingJob from YAML text, a mapping or a TrainingJob."""
    if isinstance(manifest, TrainingJob):
        return manifest
    document = read_yaml(manifest, source=source) if isinstance(manifest, str) else manifest
    try:
        return TrainingJob.model_validate(as_mapping(document, source))
    except ValidationError as error:
        raise SpecError(_problems(error), source=source) from None


def _problems(error: ValidationError) -> list[FieldProblem]:
    """One problem a field, in the order of the fields."""
    found: dict[str, FieldProblem] = {}
    for item in error.errors(include_url=False):
        if item["type"] == "default_factory_not_called":
            continue  # a default that follows from another field, which has its own problem
        problem = _problem(item)
        found.setdefault(problem.path, problem)
    return list(found.values())


def _problem(item: Any) -> FieldProblem:
    location = tuple(part for part in item["loc"] if not _is_tag(part))
    path = _path(location)
    if item["type"] == WRONG_FIELD:
        context = item["ctx"]
        inner = f"{path}.{context['field']}" if location else context["field"]
        return FieldProblem(inner, context["found"], context["allowed"])
    if item["type"] == "extra_forbidden":
        return _unknown(location, path)
    found = "nothing" if item["type"] == "missing" else shortened(item["input"])
    if (location and looks_secret(str(location[-1]))) or _gives_secret(item["input"]):
        found = "a value that is not shown"
    return FieldProblem(path, found, _allowed(item))


def _gives_secret(value: object) -> bool:
    return isinstance(value, str) and secret_option([value]) is not None


def _is_tag(part: object) -> bool:
    """Pydantic names branches of unions (ours stand in brackets) and keys inside the path."""
    return isinstance(part, str) and (part.startswith("(") or part == "[key]")


def _path(location: _Location) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path or "(document)"


def _allowed(item: Any) -> str:
    words = _ALLOWED.get(item["type"])
    if words is not None:
        return words.format(**item.get("ctx", {}))
    message = str(item["msg"])
    return message.split("allowed: ", 1)[-1].removeprefix("Input should be ")


def _unknown(location: _Location, path: str) -> FieldProblem:
    known = _fields_at(location[:-1])
    near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.6)
    allowed = f"{near[0]} is the nearest known field" if near else "one of " + ", ".join(known)
    return FieldProblem(path, "an unknown field", allowed)


def _fields_at(location: _Location) -> list[str]:
    model: type[BaseModel] = TrainingJob
    for part in location:
        if isinstance(part, str) and part in (fields := _fields(model)):
            model = _model_in(fields[part]) or model
    return list(_fields(model))


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {(f.alias or name): f.annotation for name, f in model.model_fields.items()}


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (
        typing.Union,
        types.UnionType,
        tuple,
        dict,
        typing.Annotated,
    ):
        for argument in typing.get_args(annotation):
            if (found := _model_in(argument)) is not None:
                return found
    return None
