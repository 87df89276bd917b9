"""What a user may have meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: How alike two names must be, from 0 to 1: difflib's default finds typing errors, and few strangers.
_ALIKE = 0.6


def nearest(text: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is most like `text`, in any case; None if none is alike."""
    known = {name.lower(): name for name in names}
    found = difflib.get_close_matches(text.lower(), known, n=1, cutoff=_ALIKE)
    return known[found[0]] if found else None


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """A clause for the end of an error message, or nothing."""
    found = nearest(text, names)
    return f" (did you mean {found}?)" if found else ""
