"""Checks the Python of the documentation: it compiles, what it imports exists, and so do the options that it sets."""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Iterator

from spark_ehbalance.source.options import OPTIONS, STRATEGY_OPTIONS
from tests.docs.shell import is_option

#: Placeholders of the reader's own modules.
_READERS = {"my_package"}


def problems(text: str) -> list[str]:
    """What is wrong in a block of Python. One that begins with a dot goes on from an expression."""
    try:
        tree = ast.parse(f"(it\n{text})" if text.startswith(".") else text)
    except SyntaxError as error:
        return [f"is no Python: {error}"]
    return [*_imports(tree), *_names(tree), *_options(tree)]


def name_problem(dotted: str) -> str | None:
    """What is wrong with a name such as `spark_ehbalance.delta.once`."""
    module, _, rest = dotted.partition(".")
    found = importlib.import_module(module)
    for part in filter(None, rest.split(".")):
        module = f"{module}.{part}"
        try:
            found = getattr(found, part) if hasattr(found, part) else importlib.import_module(module)
        except ImportError:
            return f"there is no {module}"
    return None


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted = [(each.name, None) for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            wanted = [(node.module or "", each.name) for each in node.names]
        else:
            continue
        for module, name in wanted:
            if module.partition(".")[0] in _READERS:
                continue
            try:
                found = importlib.import_module(module)
                if name and not hasattr(found, name):
                    importlib.import_module(f"{module}.{name}")
            except ImportError as error:
                yield f"import fails: {error}"


def _names(tree: ast.Module) -> Iterator[str]:
    """Attributes of this package that are used by their full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (dotted := _dotted(node)) and dotted.startswith("spark_ehbalance."):
            problem = name_problem(dotted)
            if problem:
                yield problem


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (inner := _dotted(node.value)):
        return f"{inner}.{node.attr}"
    return None


def _options(tree: ast.Module) -> Iterator[str]:
    """Those of a reader of this source, and of a chain whose beginning is not shown."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr == "option" and _reads_hub(node.func.value) and node.args:
            pairs = [(node.args[0], node.args[1] if len(node.args) > 1 else None)]
        elif node.func.attr == "options" and _reads_hub(node.func.value):
            pairs = [(ast.Constant(word.arg), word.value) for word in node.keywords if word.arg]
        else:
            continue
        for name, value in pairs:
            if isinstance(name, ast.Constant):
                yield from _option(str(name.value), value)


def _option(name: str, value: ast.expr | None) -> Iterator[str]:
    if not is_option(name):
        yield f"there is no option {name}"
        return
    declared = {each.lower(): declaration for each, declaration in {**OPTIONS, **STRATEGY_OPTIONS}.items()}
    if isinstance(value, ast.Constant) and (declaration := declared.get(name.lower())):
        text = value.value if isinstance(value.value, str) else json.dumps(value.value)
        try:
            declaration.parse(text)
        except ValueError as error:
            yield f"{name}={text} is wrong: allowed is {error}"


def _reads_hub(node: ast.expr) -> bool:
    """Whether the chain of calls is a reader's with `.format("ehbalance")`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "format":
            return [each.value for each in node.args if isinstance(each, ast.Constant)] == ["ehbalance"]
        node = node.func.value
    return isinstance(node, ast.Name) and node.id == "it"
