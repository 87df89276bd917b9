"""What a user may have meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: How alike two names must be, from 0 to 1: difflib's default finds typing errors, and few strangers.
_ALIKE = 0.6


def nearest(text: str, names: Iterable[str], most: int = 1, alike: float = _ALIKE) -> list[str]:
    """Those of `names` that are most like `text`, in any case: `most` of them, or those that are as `alike` as that."""
    known = {name.lower(): name for name in names}
    return [known[found] for found in difflib.get_close_matches(text.lower(), known, n=most, cutoff=alike)]


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """A clause for the end of an error message, or nothing."""
    found = nearest(text, names)
    return f" (did you mean {found[0]}?)" if found else ""
