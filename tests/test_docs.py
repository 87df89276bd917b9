"""README and docs: link targets, mentioned files and quoted messages exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ehbalance.group.strategies import DECLARATIONS

ROOT = Path(__file__).parents[1]
PAGES = {page.relative_to(ROOT).as_posix(): page for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
#: Pages outside the documentation's index.
ALL = PAGES | {name: ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")}

#: The folders in which a path in the text can begin.
_FOLDERS = (ROOT, ROOT / "spark_ehbalance", ROOT / "spark_ehbalance/eventhub/wire")


def prose(page: Path) -> str:
    """The text without code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub derives from the headings of `page`."""
    headings = re.findall(r"^#+ +(.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", ALL)
def test_link_targets_exist(name: str) -> None:
    page, wrong = ALL[name], []
    for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if ":" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            wrong.append(link)
    assert not wrong


@pytest.mark.parametrize("name", ALL)
def test_mentioned_files_exist(name: str) -> None:
    named = re.findall(r"`([\w/]+\.(?:py|conf|md))`", prose(ALL[name]))
    assert not [path for path in named if not any((folder / path).is_file() for folder in _FOLDERS)]


def test_index_lists_every_page() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    linked = {Path(link).name for link in re.findall(r"\]\(([^)]+)\)", index)}
    assert {Path(name).name for name in PAGES} == linked | {"index.md"}


def test_handwritten_table_names_all_strategies() -> None:
    text = prose(ROOT / "docs/sharing.md").partition("## Which strategy\n")[2].partition("\n#")[0]
    table = "".join(line for line in text.splitlines() if line.startswith("|"))
    missing = [name for name in DECLARATIONS if f"`{name}`" not in table]
    assert not missing, "docs/sharing.md lacks a strategy under 'Which strategy'"


@pytest.mark.parametrize("walk", ["The life of an event", "The life of a lease"])
def test_walks_pass_through_at_most_seven_files(walk: str) -> None:
    section = prose(ROOT / "docs/design.md").partition(f"## {walk}\n")[2].partition("\n## ")[0]
    files = set(re.findall(r"`([\w/]+\.py)`", section))
    assert 4 <= len(files) <= 7


def texts() -> Iterator[str]:
    """All strings in the package, with … for the values in f-strings."""
    for file in ROOT.glob("*spark_ehbalance/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(value.value) if isinstance(value, ast.Constant) else "…" for value in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_messages_quoted_for_troubleshooting_exist_in_the_code() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8").partition("## Messages from Spark")[0]
    quoted, known = re.findall(r"log:? (?:contains )?`([^`]+)`", page), "\n".join(texts())
    assert len(quoted) == 3
    assert [message for message in quoted if message not in known] == []
