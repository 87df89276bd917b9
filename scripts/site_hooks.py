"""Hooks of mkdocs: they make a site of pages that are written to be read in the repository too.

README.md becomes the first page and docs/index.md the page `all-pages.md`. Links that leave docs/ lead to copies of the
files in the site, so that no address of a repository is needed: Markdown as a page, other files as a page that shows
them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent

#: Where a file of the repository is in the site, if not where its path says.
_MOVED = {"README.md": "index.md", "docs/index.md": "all-pages.md"}

#: Code, in which nothing is a link, or a link's end.
_CODE_OR_LINK = re.compile(
    r"^(?P<fence>`{3,}).*?^(?P=fence)|`[^`\n]+`|\]\((?P<link>[^)\s]+)\)", re.DOTALL | re.MULTILINE
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leaves pages without a file out of the navigation: a page that is missing there is still an error."""
    config.nav = _existing(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what pages link to outside docs/, and what those link to."""
    files.remove(files.src_uris["index.md"])
    waiting = ["README.md", "docs/index.md", *(f"docs/{each.src_uri}" for each in files.documentation_pages())]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if path in _MOVED or not path.startswith("docs/"):
            files.append(File.generated(config, _in_site(path), content=_text(path)))
        if path.endswith(".md"):
            found = {linked for link in _links(_text(path)) if (linked := _linked_file(path, link))} - seen
            waiting += [each for each in found if not each.startswith("docs/")]
            seen |= found
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Has links lead to where their files are in the site."""
    path = _in_repository(page.file.src_uri)
    return with_links(markdown, path) if path.endswith(".md") else markdown


def _existing(nav: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for entry in nav:
        ((title, target),) = entry.items()
        if isinstance(target, list):
            kept.append({title: _existing(target)})
        elif target in _MOVED.values() or (ROOT / "docs" / target).is_file():
            kept.append(entry)
    return kept


def with_links(markdown: str, path: str) -> str:
    """The text of the repository's file `path`, with the site's links."""

    def replaced(found: re.Match[str]) -> str:
        link = found["link"]
        linked = _linked_file(path, link) if link else None
        if linked is None:
            return found[0]
        target = posixpath.relpath(_in_site(linked), posixpath.dirname(_in_site(path)) or ".")
        return f"]({target}{link[len(link.partition('#')[0]) :]})"

    return _CODE_OR_LINK.sub(replaced, markdown)


def _links(markdown: str) -> Iterator[str]:
    return (found["link"] for found in _CODE_OR_LINK.finditer(markdown) if found["link"])


def _linked_file(path: str, link: str) -> str | None:
    target = link.partition("#")[0]
    if not target or ":" in target:
        return None
    linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return linked if (ROOT / linked).is_file() else None


def _text(path: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    language = {".py": "python", ".conf": "properties", ".toml": "toml"}.get(Path(path).suffix, "text")
    return f"# {path}\n\n````{language}\n{text}````\n"


def _in_site(path: str) -> str:
    if path in _MOVED:
        return _MOVED[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"files/{path}" if path.endswith(".md") else f"files/{path}.md"


def _in_repository(uri: str) -> str:
    """The other way round; a file that is shown is not Markdown of the repository."""
    for path, moved in _MOVED.items():
        if uri == moved:
            return path
    if not uri.startswith("files/"):
        return f"docs/{uri}"
    path = uri.removeprefix("files/")
    return path if (ROOT / path).is_file() else path.removesuffix(".md")
