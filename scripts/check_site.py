"""Checks the built documentation: python scripts/check_site.py [FOLDER]

Every link leads to a page and an anchor that exist, nothing is loaded from another host, and no list or table was taken
for text. Prints what is wrong and exits with 1.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Attributes whose address is fetched when a page is shown; other links are followed by the reader.
_LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data")}


@dataclass
class _Page(HTMLParser):
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    paragraphs: list[str] = field(default_factory=list)
    _in_paragraph: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        for name in ("href", "src", "data"):
            if name in values:
                fetched = (tag, name) in _LOADED or (tag == "link" and values.get("rel") != "canonical")
                (self.loaded if fetched else self.links).append(values[name])
        if tag == "p":
            self.paragraphs.append("")
        self._in_paragraph = tag == "p" or (self._in_paragraph and tag not in {"div", "ul", "ol", "table", "pre"})

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self._in_paragraph = False

    def handle_data(self, data: str) -> None:
        if self._in_paragraph:
            self.paragraphs[-1] += data


def problems(folder: Path) -> list[str]:
    """What is wrong in the site in `folder`, one line each."""
    pages = {path: _parsed(path) for path in sorted(folder.rglob("*.html"))}
    wrong = [] if pages else [f"{folder} has no page: build the site first"]
    for path, page in pages.items():
        # the error page is shown for any address, so its links are absolute
        base = folder if path.name == "404.html" else path.parent
        wrong += [
            f"{path.relative_to(folder)}: {reason}"
            for reason in (
                *(_broken(link, path, folder, base, pages) for link in page.links + page.loaded),
                *(f"loads {link} from another host" for link in page.loaded if urlsplit(link).netloc),
                *(f"a list or table is shown as text: {text!r}" for text in page.paragraphs if _is_markup(text)),
            )
            if reason
        ]
    return wrong


def _parsed(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def _broken(link: str, path: Path, folder: Path, base: Path, pages: dict[Path, _Page]) -> str | None:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    target = path
    if parts.path:
        target = (folder if parts.path.startswith("/") else base) / unquote(parts.path).lstrip("/")
        target = Path(target).resolve()
        target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return f"{link} leads nowhere"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return f"{link}: the page has no such anchor"
    return None


def _is_markup(paragraph: str) -> bool:
    return bool(re.search(r"^\s*(?:[-*] |\d+\. |\|.*\|\s*$)", paragraph, re.MULTILINE))


if __name__ == "__main__":
    site = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "site").resolve()
    found = problems(site)
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"{len(list(site.rglob('*.html')))} pages, {len(found)} problems")
    sys.exit(bool(found))
