"""Hooks of mkdocs: they make a site of pages that are written to be read in the repository too.

README.md becomes the first page and docs/index.md the page `all-pages.md`. Links to other files of the repository
become their text, so that no address of a repository is needed.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent

#: Files whose path in the site differs from the repository's.
_MOVED = {"README.md": "index.md", "docs/index.md": "all-pages.md"}

#: Code, in which nothing is a link, or a link.
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
    """The text of the repository's file `path`, with the site's links."""

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
