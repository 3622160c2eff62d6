"""Mistakes in what a user has written for a task, told as those in a spec: field, found, allowed.

For: templates, and connections that there are not. Without this Airflow would try such a task
again until no try is left. Not for: what may be different at the next try, an API server that is
away above all.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

_ALLOWED = "a template that Jinja can render in this run"
_SHOWN = 80
"""Characters of a template that are repeated in a message. Chosen."""
_OF_EXPRESSIONS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Templated(BaseOperator):
    """An operator that refuses wrong templates with the field's name."""

    def render_template_fields(self, context: "Context",
                               jinja_env: "jinja2.Environment | None" = None) -> None:  # fmt: skip
        """As Airflow does it; a mistake of the user fails the task at once."""
        try:
            super().render_template_fields(context, jinja_env)
        except Exception as error:
            why = mistake(error, rendering=True)
            if why is None:
                raise
            field, text = self._wrong_field(context, jinja_env)
            raise AirflowFailException(refusal(field, text, why)) from error

    def _wrong_field(self, context: "Context",
                     jinja_env: "jinja2.Environment | None") -> tuple[str, str]:  # fmt: skip
        for field in self.template_fields:
            for path, text in _texts(getattr(self, field, None), field):
                try:
                    self.render_template(text, context, jinja_env)
                except Exception:  # noqa: BLE001 - which of them it is, is all that is asked
                    return path, repr(text)
        return ", ".join(self.template_fields), "a template"


def mistake(error: BaseException, *, rendering: bool = False) -> str | None:
    """What the user has got wrong, where the error says that it is that; None where it may not be.

    ``rendering``: it comes out of a template, whose expressions fail as any Python does.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from jinja2 import TemplateError

    if isinstance(error, TemplateError):
        line = getattr(error, "lineno", None)
        at = f"line {line}: " if line else ""
        return f"{at}{error.message or type(error).__name__}"
    if isinstance(error, AirflowNotFoundException):
        return str(error)
    if isinstance(error, AirflowRuntimeError):
        missing = (ErrorType.CONNECTION_NOT_FOUND, ErrorType.VARIABLE_NOT_FOUND)
        return str(error) if error.error.error in missing else None
    if rendering and isinstance(error, _OF_EXPRESSIONS):
        return f"{type(error).__name__}: {error}"
    return None


def refusal(field: str, found: str, why: str) -> str:
    """The message of a wrong template."""
    shown = found if len(found) <= _SHOWN else f"{found[: _SHOWN - 1]}…"
    return f"{field}: found {shown} ({why}), allowed: {_ALLOWED}"


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{path}[{number}]")
