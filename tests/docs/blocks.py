"""The documentation's fenced code blocks and their marks, which are comments on the line above:

    <!-- run -->                     tests/docs/test_run.py runs it, after the page's earlier blocks
    <!-- run: in the background -->  the same; it runs until all blocks have run
    <!-- run: as a file -->          Python that is saved under the name in its first line, for later commands
    <!-- run by: FILE::TEST -->      another test runs the same
    <!-- not run: REASON -->         Python that needs something that tests lack

tests/docs/test_blocks.py runs other Python without Spark, and looks commands up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
PAGES = {page.relative_to(ROOT).as_posix(): page for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))}

_BLOCK = re.compile(
    r"(?:^[ ]*<!-- (?P<mark>run by|not run|run)(?:: (?P<detail>[^\n]*))? -->\n+)?"
    r"^(?P<indent>[ ]*)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Block:
    """`line` is the number of its first line of text. `detail` is the text after the colon of `mark`."""

    page: str
    line: int
    language: str
    text: str
    mark: str
    detail: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """The page's blocks in order."""
    text = PAGES[page].read_text(encoding="utf-8")
    return [
        Block(
            page=page,
            line=text.count("\n", 0, found.start("text")) + 1,
            language=found["language"],
            text=dedent(found["text"]),
            mark=found["mark"] or "",
            detail=found["detail"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks(page)]


def inline_code(page: str) -> list[str]:
    """Inline code in the text, which can span two lines."""
    prose = _BLOCK.sub("", PAGES[page].read_text(encoding="utf-8"))
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]
