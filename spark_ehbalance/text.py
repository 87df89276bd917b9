"""Makes untrusted text, such as owner ids and reasons, safe for terminals, logs and errors."""

from __future__ import annotations

import logging
from datetime import datetime, timezone


def plain(text: str) -> str:
    """`text` on one line. Unprintable characters (control characters, direction marks, zero-width characters, lone
    surrogates) are replaced with escapes such as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def plain_lines(text: str) -> str:
    """`text` with each line made `plain`."""
    return "\n".join(map(plain, text.split("\n")))


def format_time(ms: int) -> str:
    """A time, given in milliseconds since 1970, formatted to the second."""
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(sep=" ", timespec="seconds")


def iso(ms: int) -> str:
    """A time, given in milliseconds since 1970, in ISO 8601."""
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(timespec="milliseconds")


def age(ms: int) -> str:
    """A duration, given in milliseconds, in readable units."""
    seconds = ms / 1000
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def logger(name: str) -> logging.Logger:
    """The logger with this name, which makes messages `plain` for every handler."""
    result = logging.getLogger(name)
    result.addFilter(_make_plain)
    return result


def _make_plain(record: logging.LogRecord) -> bool:
    """A logging filter that makes each record plain and drops none. Every logger needs this filter, because records do
    not pass through the filters of parent loggers."""
    if not (text := record.getMessage()).isprintable():
        record.msg, record.args = plain(text), ()
    if record.exc_info and not record.exc_text:  # formatters use `exc_text` unchanged
        record.exc_text = plain_lines(logging.Formatter().formatException(record.exc_info))
    return True
