"""Text that others have written, such as owner ids and reasons in a lease table, for terminals, logs and errors."""

from __future__ import annotations


def plain(text: str) -> str:
    """`text` in one line, with whatever a terminal would obey or not show written as an escape such as `\\x1b`: control
    characters, marks that turn the direction of writing, characters without a width, half surrogates."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def plain_lines(text: str) -> str:
    """The same of text that may have several lines."""
    return "\n".join(map(plain, text.split("\n")))
