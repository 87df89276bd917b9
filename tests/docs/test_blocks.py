"""Everything that the documentation mentions exists: commands and options, Python, source options, variables."""

from __future__ import annotations

import difflib
import json
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from typer.main import get_command

from spark_ehbalance.ops.main import app
from spark_ehbalance.query.options import OPTIONS, STRATEGY_OPTIONS
from tests.docs.blocks import PAGES, ROOT, Block, all_blocks, inline_code

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ALL = all_blocks()
PYTHON = [block for block in ALL if block.language == "python" and not block.mark]
COMMANDS = [block for block in ALL if block.language not in ("python", "text", "toml", "dockerfile")]

_EHBALANCE = get_command(app)
_DECLARED = {**OPTIONS, **STRATEGY_OPTIONS}
_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
_PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


class Reader:
    """Stands in for a session and its reader: accepts only valid options of the source with valid values."""

    @property
    def readStream(self) -> Reader:
        return self

    def format(self, name: str) -> Reader:
        assert name == "ehbalance"
        return self

    def option(self, name: str, value: object) -> Reader:
        prefix = f"{name.partition('.')[0]}.*"
        assert {name, prefix} & {*_DECLARED}, f"there is no option {name}"
        if name in _DECLARED:
            _DECLARED[name].parse(value if isinstance(value, str) else json.dumps(value))
        return self

    def options(self, **options: object) -> Reader:
        for name, value in options.items():
            self.option(name, value)
        return self

    def load(self) -> MagicMock:
        return MagicMock()


def run(text: str) -> None:
    """A block that begins with a dot continues a reader's options."""
    names: dict[str, Any] = {"spark": Reader(), "events": MagicMock()}
    exec(f"(spark\n{text})" if text.startswith(".") else text, names)


def problems(code: str) -> list[str]:
    """Things in commands that do not exist."""
    wrong = []
    for name, arguments in re.findall(r"(?<![\w-])ehbalance ([a-z][a-z-]+)([^&\n]*)", code.replace("\\\n", " ")):
        command = _EHBALANCE.commands.get(name)  # type: ignore[attr-defined]
        if command is None:
            # a message can begin like this too; ignore text that does not look like a command
            wrong += [f"no command {name}"] if difflib.get_close_matches(name, _EHBALANCE.commands) else []  # type: ignore[attr-defined]
            continue
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        wrong += [f"{name} has no {flag}" for flag in re.findall(r"--[a-z][\w-]*", arguments) if flag not in known]
    wrong += [
        f"no target {target}" for target in re.findall(r"^make ([a-z-]+)", code, re.MULTILINE) if target not in _TARGETS
    ]
    for extras in re.findall(r"spark-ehbalance\[([\w,]+)\]", code):
        wrong += [f"no extra {extra}" for extra in extras.split(",") if f"\n{extra} = [" not in _PYPROJECT]
    return wrong


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.name)
def test_python_runs(block: Block) -> None:
    run(block.text)


@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: block.name)
def test_names_in_commands_exist(block: Block) -> None:
    assert problems(block.text) == []


@pytest.mark.parametrize("block", [block for block in ALL if block.language == "toml"], ids=lambda block: block.name)
def test_toml_is_valid(block: Block) -> None:
    assert tomllib.loads(block.text)


@pytest.mark.parametrize("page", PAGES)
def test_names_in_the_text_exist(page: str) -> None:
    code = inline_code(page)
    assert problems("\n".join(code)) == []
    for name in [found[0] for text in code if (found := re.match(r"spark_ehbalance(\.\w+)+(?=$|\()", text))]:
        pkgutil.resolve_name(name)


@pytest.mark.parametrize("block", [block for block in ALL if block.mark == "run by"], ids=lambda block: block.name)
def test_tests_that_run_blocks_exist(block: Block) -> None:
    file, _, test = block.detail.partition("::")
    assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8")


def test_documented_variables_are_read() -> None:
    files = [
        file
        for folder in ("spark_ehbalance", "jobs", "tests/service", "tests/ops/dashboard")
        for file in (ROOT / folder).rglob("*.py")
    ]
    code = "".join(file.read_text(encoding="utf-8") for file in files)
    named = {name for page in PAGES.values() for name in re.findall(r"EHBALANCE_\w+", page.read_text(encoding="utf-8"))}
    assert not [name for name in named if name not in code]


def test_all_pages_are_run() -> None:
    """`make package` runs the quick start."""
    tests = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_run*.py"))
    pages = {block.page for block in ALL if block.mark == "run"} - {"docs/quick-start.md"}
    assert not [page for page in pages if f'start("{page}"' not in tests]
