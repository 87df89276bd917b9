"""The package's long description and URLs, for hatchling: README.md without links that would be broken on PyPI.

`repository` in pyproject.toml is the URL at which the project's files can be read. Links become absolute URLs that
begin with it, and the project's URLs are derived from it. While it is empty, links become plain text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        base = self.config["repository"]
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": long_description(readme, base)}
        metadata["urls"] = urls(base)


def long_description(readme: str, base: str) -> str:
    """`readme` with absolute links that begin with `base`. If `base` is empty, relative links are replaced by their
    text."""
    # Without a URL, a picture cannot be shown.
    readme = re.sub(r"!\[([^\]]*)\]\((?![a-z]+:)([^)]+)\)", rf"![\1]({base}/raw/main/\2)" if base else "", readme)
    link = rf"[\1]({base}/blob/main/\2)" if base else r"\1"
    # A link within the page does not need a URL.
    kept = "(?![a-z]+:|#)" if base else "(?![a-z]+:)"
    return re.sub(rf"\[([^\]]+)\]\({kept}([^)]+)\)", link, readme)


def urls(base: str) -> dict[str, str]:
    """The project's URLs on PyPI; none if `base` is empty."""
    if not base:
        return {}
    names = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md"}
    return {"Repository": base} | {name: f"{base}/blob/main/{path}" for name, path in names.items()}
