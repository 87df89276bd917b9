"""Parsers for option values. They raise `ValueError` with the allowed values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from spark_ehbalance.settings.suggestions import did_you_mean

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNIT_NAMES = {
    "millisecond": "ms",
    "milliseconds": "ms",
    "sec": "s",
    "second": "s",
    "seconds": "s",
    "min": "m",
    "minute": "m",
    "minutes": "m",
    "hour": "h",
    "hours": "h",
}
#: Maximum duration, in seconds. Longer durations overflow operating systems' clocks.
_LONGEST = 366 * 86400.0
_DURATION_FORMS = "such as 10 seconds, 500 ms, 2 minutes or 10 (seconds), at most 366 days"


def parse_duration(value: str) -> float:
    """Parse a duration above 0, such as `10 seconds`, `500ms`, `2m` or `1.5` (seconds), to seconds."""
    seconds = _seconds(value)
    if not seconds:
        raise ValueError(f"a duration above 0, {_DURATION_FORMS}")
    return seconds


def parse_delay(value: str) -> float:
    """Parse a duration (0 is allowed) and return it in seconds."""
    seconds = _seconds(value)
    if seconds is None:
        raise ValueError(f"a duration, {_DURATION_FORMS}")
    return seconds


def parse_shift(value: str) -> float:
    """Parse a duration that may be 0 or negative, such as a clock's offset, to seconds."""
    seconds = _seconds(value.strip().removeprefix("-"))
    if seconds is None:
        raise ValueError(f"a duration, with or without a minus sign, {_DURATION_FORMS}")
    return -seconds if value.strip().startswith("-") else seconds


def _seconds(value: str) -> float | None:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", value.strip().lower())
    unit = _UNIT_NAMES.get(match[2], match[2] or "s") if match else ""
    seconds = float(match[1]) * _UNITS[unit] if match and unit in _UNITS else None
    return seconds if seconds is not None and seconds <= _LONGEST else None


def duration_text(seconds: float) -> str:
    """Format `seconds` as a duration that `parse_duration` accepts."""
    return f"{seconds:g} seconds" if seconds >= 1 else f"{seconds * 1000:g} ms"


def whole_number(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """A parser for whole numbers from `minimum` to `maximum`."""
    allowed = "a whole number " + (f"of {minimum} or more" if maximum is None else f"from {minimum} to {maximum}")

    def parse(value: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", value) or not minimum <= int(value) <= (maximum or int(value)):
            raise ValueError(allowed)
        return int(value)

    return parse


def number(low: float, high: float = math.inf) -> Callable[[str], float]:
    """A parser for finite numbers from `low` to `high` (inclusive)."""
    allowed = "a number " + (f"of {low:g} or more" if high == math.inf else f"from {low:g} to {high:g}")

    def parse(value: str) -> float:
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", value) or not low <= float(value) <= high or float(value) == math.inf:
            raise ValueError(allowed)
        return float(value)

    return parse


def parse_positive_number(value: str) -> float:
    """Parse a finite number above 0."""
    try:
        parsed = number(0)(value)
    except ValueError:
        parsed = 0.0
    if parsed == 0:
        raise ValueError("a number above 0")
    return parsed


def flag(value: str) -> bool:
    """Parse `true` or `false`, ignoring case."""
    if value.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.lower() == "true"


def one_of(*names: str) -> Callable[[str], str]:
    """A case-sensitive parser that accepts only `names`."""

    def parse(value: str) -> str:
        if value not in names:
            raise ValueError(f"one of {', '.join(names)}{did_you_mean(value, names)}")
        return value

    return parse
