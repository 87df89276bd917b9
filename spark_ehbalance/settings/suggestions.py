"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(text: str, names: Iterable[str]) -> str | None:
    """The name in `names` that is most similar to `text`, ignoring case; None if no name is similar."""
    known = {name.lower(): name for name in names}
    return next((known[found] for found in difflib.get_close_matches(text.lower(), known, n=1)), None)


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """A suggestion for the end of an error message; "" if no name is similar."""
    found = nearest(text, names)
    return f" (did you mean {found}?)" if found else ""
