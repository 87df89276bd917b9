"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """A suggestion for the end of an error message: the most similar name, ignoring case; "" if no name is similar."""
    known = {name.lower(): name for name in names}
    found = difflib.get_close_matches(text.lower(), known, n=1)
    return f" (did you mean {known[found[0]]}?)" if found else ""
