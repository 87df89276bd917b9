"""The page of groups as one self-contained HTML file."""

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

#: Rows of history that are listed, and characters of a text that are shown: browsers take minutes to draw millions.
_MOST_ROWS, _MOST_TEXT = 100, 1000


def _text(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_SCRIPT, _STYLE = _text("page.js"), _text("page.css")

#: Nothing but the page's own script and style runs, and it loads nothing from elsewhere; see docs/security.md.
POLICY = (
    f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
)


def facts(table: str, view: GroupView | None, problem: str = "") -> dict[str, Any]:
    """What the page shows of the group in `table`: `ehbalance status --json`, and its history. Without a view: why
    there is none."""
    if view is None:
        return {"table": shown(table), "problem": shown(problem)}
    rows = [asdict(each) for each in reversed(view.history[-_MOST_ROWS:])]
    return {"table": shown(table), **shown(view.to_json()), "history": shown(rows)}


def page(groups: list[dict[str, Any]] | int) -> str:
    """The page with these `facts`, or one that fetches the facts of so many groups every second."""
    data = json.dumps(groups).replace("<", "\\u003c")
    parts = {"POLICY": POLICY, "ICON": f"data:image/svg+xml,{quote(_text('icon.svg'))}"}
    parts |= {"STYLE": _STYLE, "DATA": data, "SCRIPT": _SCRIPT}
    made = _text("page.html")
    for name, text in parts.items():
        made = made.replace(f"@{name}@", text)
    return made


def shown(value: Any) -> Any:
    """`value` with all texts safe to show: others wrote them."""
    if isinstance(value, str):
        return plain(value if len(value) <= _MOST_TEXT else f"{value[:_MOST_TEXT]}…")
    if isinstance(value, dict):
        return {name: shown(each) for name, each in value.items()}
    return [shown(each) for each in value] if isinstance(value, (list, tuple)) else value
