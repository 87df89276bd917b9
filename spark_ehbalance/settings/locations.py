"""Locations: paths, or addresses that begin with a scheme."""

from __future__ import annotations

import re

EXAMPLE_ADDRESS = "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER"


def scheme(text: str) -> str | None:
    """The scheme of an address in lower case, such as "s3"; None for a path."""
    before, colon, _ = text.partition(":")
    return before.lower() if colon and "/" not in before else None


def is_relative(text: str) -> bool:
    """Whether the location depends on the working directory."""
    return not text.startswith("/") and ":" not in text.partition("/")[0]


def has_unsafe_characters(text: str) -> bool:
    """Whether `text` contains characters that a storage system rejects or misinterprets. Some systems treat a backslash
    as a slash and others as part of a name, and delta-rs panics on quotes and on `^`."""
    return re.search(r"[\"'\[\]{}<>|*?`^\\\x00-\x1f\x7f]", text) is not None


def path_in_url(kind: str, rest: str) -> str:
    """The absolute path in `kind:rest`, as in file:///PATH. Raises `ValueError`."""
    match = re.fullmatch(r"(?://(?:localhost)?)?(/[^/].*)", rest, re.DOTALL)
    if match is None:
        raise ValueError(f"{kind}:///PATH with an absolute path")
    return match[1]
