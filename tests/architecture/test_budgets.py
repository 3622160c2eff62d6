"""Small pieces (STYLE rule 12), small ports (4), thin Airflow classes (7), few mocks (14).

A name in a list of exceptions carries its reason, and has to go when it is no longer needed.
"""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

from tests.architecture import source

FUNCTION_LINES, FUNCTION_LINES_P90 = 50, 30
CLASS_LINES = 300
MODULE_LINES = 600
PARAMETERS, POSITIONAL_PARAMETERS = 6, 3
PORT_METHODS = 5
OPERATOR_PARAMETERS, EXECUTE_LINES = 12, 30
MOCKS_PER_1000_LINES = 5

LONG_FUNCTIONS: dict[str, str] = {}
LONG_CLASSES: dict[str, str] = {}
MANY_PARAMETERS: dict[str, str] = {}
MANY_POSITIONAL: dict[str, str] = {
    "ffdl_airflow/operators/retry_policy.py:FfdlRetryPolicy.evaluate": "Airflow calls it so",
}

VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
AIRFLOW_CLASSES = ("operators", "sensors")
MOCKS = {"Mock", "MagicMock", "AsyncMock", "patch", "mocker", "create_autospec"}


def everything() -> list[source.Definition]:
    return [found for path in source.product_files() for found in source.definitions(path)]


def functions() -> list[source.Definition]:
    return [found for found in everything() if not isinstance(found.node, ast.ClassDef)]


def classes() -> list[source.Definition]:
    return [found for found in everything() if isinstance(found.node, ast.ClassDef)]


def check(measures: dict[str, int], limit: int, exceptions: dict[str, str] | None = None) -> None:
    """Fail with what is over the limit, and with an exception that nobody needs any more."""
    excused = exceptions or {}
    over = {name: value for name, value in measures.items() if value > limit}
    assert not set(excused) - set(over), "exceptions that can go"
    left = [f"{value:4} {name}" for name, value in sorted(over.items()) if name not in excused]
    assert not left, "\n".join([f"over {limit}:", *left])


def test_functions_are_short() -> None:
    lines = {found.name: found.lines for found in functions()}
    check(lines, FUNCTION_LINES, LONG_FUNCTIONS)
    assert statistics.quantiles(lines.values(), n=10)[-1] <= FUNCTION_LINES_P90


def test_classes_are_short() -> None:
    check({found.name: found.lines for found in classes()}, CLASS_LINES, LONG_CLASSES)


def test_modules_are_short() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in source.product_files()}
    check(lines, MODULE_LINES)


def test_functions_have_few_parameters() -> None:
    """Constructors of Airflow classes have a budget of their own, below."""
    counted = {found.name: sum(parameters(found)) for found in functions() if not is_glue(found)}
    check(counted, PARAMETERS, MANY_PARAMETERS)


def test_parameters_past_the_third_are_keyword_only() -> None:
    counted = {found.name: parameters(found)[0] for found in functions()}
    check(counted, POSITIONAL_PARAMETERS, MANY_POSITIONAL)


def parameters(found: source.Definition) -> tuple[int, int]:
    """Return how many parameters can be given by position, and how many by keyword only."""
    arguments = found.node.args
    positional = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
    bound = found.owner is not None and positional[:1] in (["self"], ["cls"])
    return len(positional) - bound, len(arguments.kwonlyargs)


def is_glue(found: source.Definition) -> bool:
    is_constructor = found.node.name == "__init__"
    return is_constructor and found.name.startswith(
        tuple(f"ffdl_airflow/{x}/" for x in AIRFLOW_CLASSES)
    )


def test_airflow_classes_are_glue() -> None:
    glue = {found.name: sum(parameters(found)) for found in functions() if is_glue(found)}
    check(glue, OPERATOR_PARAMETERS)
    executes = {
        found.name: found.lines
        for found in functions()
        if found.node.name in ("execute", "execute_complete", "poke")
        and found.name.startswith(tuple(f"ffdl_airflow/{folder}/" for folder in AIRFLOW_CLASSES))
    }
    check(executes, EXECUTE_LINES)


def test_no_module_has_a_vague_name() -> None:
    names = {path for path in source.product_files() if VAGUE_NAMES & set(stems(path))}
    names |= {path for path in source.test_files() if path.stem in VAGUE_NAMES}
    assert not names


def stems(path: Path) -> list[str]:
    return [Path(part).stem for part in path.relative_to(source.ROOT).parts]


def test_ports_are_small() -> None:
    ports = [found for found in classes() if is_port(found)]
    methods = {
        found.name: sum(
            isinstance(child, source.FunctionNode) and not child.name.startswith("_")
            for child in found.node.body
        )
        for found in ports
    }
    check(methods, PORT_METHODS)


def is_port(found: source.Definition) -> bool:
    """Protocols and abstract classes in the base.py of an adapter family."""
    bases = {ast.unparse(base).rpartition(".")[2] for base in found.node.bases}
    in_base = found.name.partition(":")[0].endswith("/base.py")
    return in_base and any(base.startswith(("Protocol", "ABC")) for base in bases)


def test_few_mocks() -> None:
    lines = mocks = 0
    for path in source.test_files():
        lines += len(path.read_text().splitlines())
        for node in ast.walk(source.tree(path)):
            name = getattr(node, "id", None) or getattr(node, "attr", None)
            mocks += isinstance(node, (ast.Name, ast.Attribute)) and name in MOCKS
    assert mocks * 1000 <= lines * MOCKS_PER_1000_LINES, f"{mocks} mocks in {lines} lines"
