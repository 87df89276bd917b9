"""The fenced code blocks of the documentation, and what is said of them in a comment right before:

    <!-- run -->                     tests/docs/test_run.py runs it, after the page's earlier ones
    <!-- run: in the background -->  the same; it runs until all have run
    <!-- run: as a program -->       Python with a process of its own, until it has printed something
    <!-- run: as a file -->          Python that is saved under the name in its first line, for later commands
    <!-- run by: FILE::TEST -->      another test runs the same
    <!-- not run: REASON -->         nothing runs it, nor is it checked

Others are checked as far as their language allows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
PAGES = {page.relative_to(ROOT).as_posix(): page for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))}

_BLOCK = re.compile(
    r"(?:^[ ]*<!--[ ]*(?P<mark>[^\n]*?)[ ]*-->\n+)?"
    r"^(?P<indent>[ ]*)(?P<fence>`{3,})(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)(?P=fence)[ ]*$",
    re.DOTALL | re.MULTILINE,
)

MARKS = ("run", "run by", "not run")


@dataclass(frozen=True, slots=True)
class Block:
    """`line` is that of its first line of text. `mark` is one of `MARKS` or "", `detail` what follows its colon."""

    page: str
    line: int
    language: str
    text: str
    mark: str
    detail: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, text: str) -> list[Block]:
    """The blocks of `text`, in their order."""
    found = []
    for each in _BLOCK.finditer(text):
        mark, _, detail = (each["mark"] or "").partition(":")
        known = mark in MARKS
        found.append(
            Block(
                page=page,
                line=text.count("\n", 0, each.start("text")) + 1,
                language=each["language"].strip(),
                text=dedent(each["text"]),
                mark=mark if known else "",
                detail=detail.strip() if known else "",
            )
        )
    return found


def all_blocks() -> list[Block]:
    return [block for name, page in PAGES.items() for block in blocks(name, page.read_text(encoding="utf-8"))]


def inline_code(text: str) -> list[str]:
    """The code within the text, which may be broken over two lines."""
    prose = _BLOCK.sub("", text)
    return [" ".join(each.split()) for each in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]
