"""Creates the page of groups as one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from spark_ehbalance.group.group_view import GroupView
from spark_ehbalance.text import plain

_FILES = Path(__file__).parent / "page"

#: Maximum number of history rows, and of characters per string: browsers take minutes to draw millions.
_MAX_ROWS, _MAX_TEXT = 100, 1000


def _text(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_SCRIPT, _STYLE = _text("page.js"), _text("page.css")

#: Allows only the page's own script and style, and loads nothing from elsewhere (docs/security.md).
POLICY = (
    f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
)


def facts(table: str, view: GroupView | None, problem: str = "") -> dict[str, Any]:
    """The page's facts about the group in `table`: the output of `ehbalance status --json` and the history, or only the
    `problem`."""
    if view is None:
        return {"table": shown(table), "problem": shown(problem)}
    rows = [asdict(change) for change in reversed(view.history[-_MAX_ROWS:])]
    return {"table": shown(table), **shown(view.to_json()), "history": shown(rows)}


def page(groups: list[dict[str, Any]] | int) -> str:
    """A page with the `facts` of groups. If `groups` is a number of groups, the page fetches their facts every
    second."""
    data = json.dumps(groups).replace("<", "\\u003c")
    parts = {"POLICY": POLICY, "ICON": f"data:image/svg+xml,{quote(_text('icon.svg'))}"}
    parts |= {"STYLE": _STYLE, "DATA": data, "SCRIPT": _SCRIPT}
    html = _text("page.html")
    for name, text in parts.items():
        html = html.replace(f"@{name}@", text)
    return html


def shown(value: Any) -> Any:
    """`value` with all strings in it escaped and shortened."""
    if isinstance(value, str):
        return plain(value if len(value) <= _MAX_TEXT else f"{value[:_MAX_TEXT]}…")
    if isinstance(value, dict):
        return {name: shown(item) for name, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, (list, tuple)) else value
