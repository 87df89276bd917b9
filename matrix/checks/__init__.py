"""The checks. Their first lines are the lines of the matrix."""

from __future__ import annotations

import ast
from pathlib import Path


def titles() -> dict[str, str]:
    """The title of each check, by its function, in order. Read from the source: not every Python has a pyspark."""
    source = ast.parse(Path(__file__).with_name("test_checks.py").read_text())
    functions = [each for each in source.body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")]
    return {each.name: (ast.get_docstring(each) or each.name).splitlines()[0] for each in functions}
