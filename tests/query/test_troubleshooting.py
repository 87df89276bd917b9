"""docs/errors.md documents every error class, and docs/troubleshooting.md quotes messages from the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_ehbalance
from spark_ehbalance import errors

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "troubleshooting.md").read_text(encoding="utf-8").partition("## Messages from Spark")[0]
ERRORS = (DOCS / "errors.md").read_text(encoding="utf-8")
CLASSES = [
    name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
]


def texts() -> Iterator[str]:
    """All strings in the package, with … for the values in f-strings."""
    for file in Path(spark_ehbalance.__file__).parents[1].glob("*spark_ehbalance/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(value.value) if isinstance(value, ast.Constant) else "…" for value in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


TEXTS = "\n".join(texts())
MESSAGES = re.findall(r"log:? (?:contains )?`([^`]+)`", PAGE)


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_has_a_section(name: str) -> None:
    assert f"\n## {name}\n" in ERRORS


@pytest.mark.parametrize("message", MESSAGES)
def test_quoted_message_exists_in_the_code(message: str) -> None:
    assert message in TEXTS


def test_page_quotes_all_expected_messages() -> None:
    assert len(MESSAGES) == 3
