"""Checks the built documentation: python scripts/check_site.py [FOLDER]

Every link leads to a page and an anchor that exist, nothing is loaded from another host, and each page has the lists,
tables and headings that it has in the repository: MkDocs has rules of its own for those. Prints what is wrong and exits
with 1.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent

#: Attributes whose address is fetched when a page is shown; other links are followed by the reader.
_LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data")}

#: Elements of which a page must have as many as its source.
_COMPARED = ("li", "ol", "ul", "tr", "pre", "h2", "h3", "img")


@dataclass
class _Page(HTMLParser):
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    elements: Counter[str] = field(default_factory=Counter)  # in the article
    _in_article: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        for name in ("href", "src", "data"):
            if name in values:
                fetched = (tag, name) in _LOADED or (tag == "link" and values.get("rel") != "canonical")
                (self.loaded if fetched else self.links).append(values[name])
        self._in_article |= tag == "article"
        if self._in_article and tag in _COMPARED:
            self.elements[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._in_article &= tag != "article"


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


def misread(source: str, page: str) -> list[str]:
    """What a page has more or less often than its source, read as CommonMark with tables."""
    built, wanted = _Page(), _Page()
    built.feed(page)
    wanted.feed(f"<article>{MarkdownIt('commonmark').enable('table').render(source)}</article>")
    pairs = ((tag, built.elements[tag], wanted.elements[tag]) for tag in _COMPARED)
    return [f"has {found} <{tag}> instead of {right}" for tag, found, right in pairs if found != right]


def _all_misread(folder: Path) -> list[str]:
    sources = {"index": ROOT / "README.md", "all-pages": ROOT / "docs/index.md"}
    sources |= {path.stem: path for path in (ROOT / "docs").glob("*.md") if path.name != "index.md"}
    return [
        f"{name}.html: {problem}"
        for name, path in sources.items()
        for problem in misread(path.read_text("utf-8"), (folder / f"{name}.html").read_text("utf-8"))
    ]


if __name__ == "__main__":
    site = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site").resolve()
    found = [*problems(site), *_all_misread(site)]
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"{len(list(site.rglob('*.html')))} pages, {len(found)} problems")
    sys.exit(bool(found))
