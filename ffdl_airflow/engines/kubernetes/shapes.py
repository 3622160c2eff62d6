"""What plain data has to look like, as a table, and where it does not.

For: documents that users write in the words of the Kubernetes API, as far as the engine relies on
them. Not for: a whole schema of that API; what is not described may be any plain data.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ffdl_airflow.core.errors import FieldProblem


@dataclass(frozen=True, kw_only=True)
class Shape:
    """``fits`` is asked of the value itself, ``allowed`` says in words what fits.

    ``each``: of the items of a list, and of those fields of a mapping that ``fields`` does not
    name; None: any plain data. ``closed``: there are no other fields; the text says, by the name of
    one, what stands instead, else the known ones are named. ``told``: a text that does not fit is
    shown; where a whole list or mapping is missing it could be a secret.
    """

    fits: Callable[[Any], bool]
    allowed: str
    fields: "Mapping[str, Shape]" = field(default_factory=dict)
    each: "Shape | None" = None
    required: tuple[str, ...] = ()
    closed: Mapping[str, str] | None = None
    told: bool = True


def kind(of: type, allowed: str) -> Shape:
    """Any value of a type."""
    return Shape(fits=lambda value: isinstance(value, of), allowed=allowed)


ANYTHING = Shape(
    fits=lambda value: value is None or isinstance(value, (Mapping, list, tuple, str, int, float)),
    allowed="plain data",
)
TEXT = kind(str, "text")


def mapping(fields: Mapping[str, Shape] | None = None, *, each: Shape | None = None,
            required: tuple[str, ...] = (),
            closed: Mapping[str, str] | None = None) -> Shape:  # fmt: skip
    """A mapping, of any more fields than these unless it is ``closed``."""
    return Shape(
        fits=lambda value: isinstance(value, Mapping), allowed="a mapping", fields=fields or {},
        each=each, required=required, closed=closed, told=False,
    )  # fmt: skip


def listed(each: Shape) -> Shape:
    """A list of such."""
    return Shape(fits=lambda value: isinstance(value, (list, tuple)), allowed="a list", each=each,
                 told=False)  # fmt: skip


def problems(path: str, value: Any, shape: Shape) -> Iterator[FieldProblem]:
    """Where a value is not of a shape."""
    if not shape.fits(value):
        yield FieldProblem(path, _shown(value, told=shape.told), shape.allowed)
    elif isinstance(value, Mapping):
        yield from _of_fields(path, value, shape)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from problems(f"{path}[{number}]", item, shape.each or ANYTHING)


def _of_fields(path: str, value: Mapping[Any, Any], shape: Shape) -> Iterator[FieldProblem]:
    for key in shape.required:
        if key not in value:
            yield FieldProblem(f"{path}.{key}", "nothing", shape.fields[key].allowed)
    for key, inner in value.items():
        if not isinstance(key, str):
            yield FieldProblem(path, f"the key {key!r}", "texts as keys")
        elif shape.closed is not None and key not in shape.fields:
            instead = shape.closed.get(key, ", ".join(shape.fields))
            yield FieldProblem(f"{path}.{key}", "a field that is not the template's", instead)
        else:
            known = shape.fields.get(key, shape.each) or ANYTHING
            yield from problems(f"{path}.{key}", inner, known)


def _shown(value: object, *, told: bool) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return repr(value)[:100] if told or not isinstance(value, str) else "text"
