"""Makes text that others wrote, such as owner ids and reasons, safe for terminals, logs and errors."""

from __future__ import annotations


def plain(text: str) -> str:
    """`text` in one line, with every unprintable character written as an escape such as `\\x1b`: control characters,
    direction marks, characters without width, lone surrogates."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def plain_lines(text: str) -> str:
    """The same for text that may have several lines."""
    return "\n".join(map(plain, text.split("\n")))
