"""Hooks for mkdocs, which builds a site from pages that can also be read in the repository.

README.md becomes the first page, and docs/index.md becomes the page `all-pages.md`. Links to other files in the
repository are replaced by their text, so that the repository's URL is not needed.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent

#: Path in the repository → path in the site, for files where the two differ.
_MOVED = {"README.md": "index.md", "docs/index.md": "all-pages.md"}

#: Matches a link, or code, in which there are no links.
_CODE_OR_LINK = re.compile(
    r"^(?P<fence>`{3,}).*?^(?P=fence)|\[(?P<text>[^\]]+)\]\((?P<link>[^)\s]+)\)|`[^`\n]+`", re.DOTALL | re.MULTILINE
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.remove(files.src_uris["index.md"])
    for path, uri in _MOVED.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    return with_links(markdown, next((path for path, moved in _MOVED.items() if moved == uri), f"docs/{uri}"))


def with_links(markdown: str, path: str) -> str:
    """`markdown`, which is the text of the repository's file `path`, with links for the site."""

    def replaced(found: re.Match[str]) -> str:
        target, _, anchor = (found["link"] or "").partition("#")
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if not target or ":" in target or not (ROOT / linked).is_file():
            return found[0]
        if linked not in _MOVED and not linked.startswith("docs/"):
            return found["text"]
        in_site = _MOVED.get(linked, linked.removeprefix("docs/"))
        return f"[{found['text']}]({in_site}{'#' + anchor if anchor else ''})"

    return _CODE_OR_LINK.sub(replaced, markdown)
