"""docs/troubleshooting.md knows every error, and says what the code says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_ehbalance
from spark_ehbalance import errors

PAGE = (Path(__file__).parents[2] / "docs/troubleshooting.md").read_text(encoding="utf-8")
OURS, _, OF_SPARK = PAGE.partition("## What Spark says")
CLASSES = [name for name, each in vars(errors).items() if isinstance(each, type) and each.__module__ == errors.__name__]


def texts() -> Iterator[str]:
    """All texts of the package, with … for what is put into them."""
    for file in Path(spark_ehbalance.__file__).parents[1].glob("*spark_ehbalance/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


TEXTS = "\n".join(texts())
MESSAGES = re.findall(r"^\| `([^`]+)` \|", OURS, re.MULTILINE)


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_has_a_section(name: str) -> None:
    headings = " ".join(re.findall(r"^## (.*)$", PAGE, re.MULTILINE))
    assert re.search(rf"\b{name}\b", headings)


@pytest.mark.parametrize("message", [each for each in MESSAGES if re.search(r"\w{3}", each)])
def test_a_message_is_in_the_code(message: str) -> None:
    assert message in TEXTS


def test_the_page_has_messages() -> None:
    assert len(MESSAGES) > 30
