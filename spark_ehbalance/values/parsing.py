"""Parsers for the texts of options. Each takes the text and raises `ValueError`, which names what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable

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


def parse_duration(value: str) -> float:
    """The seconds of a duration such as `10 seconds`, `500ms`, `2m` or `1.5` (seconds)."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", value.strip().lower())
    unit = _UNIT_NAMES.get(match[2], match[2] or "s") if match else ""
    if match is None or unit not in _UNITS or float(match[1]) == 0:
        raise ValueError("a length of time over 0, such as 10 seconds, 500 ms, 2 minutes or 10 (seconds)")
    return float(match[1]) * _UNITS[unit]


def whole(minimum: int) -> Callable[[str], int]:
    """Parses a whole number of at least `minimum`."""

    def parse(value: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", value) or int(value) < minimum:
            raise ValueError(f"a whole number from {minimum}")
        return int(value)

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """Parses a number from `low` to `high`, both included."""

    def parse(value: str) -> float:
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value) or not low <= float(value) <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return float(value)

    return parse


def flag(value: str) -> bool:
    """Parses `true` or `false`, in any case."""
    if value.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.lower() == "true"


def one_of(*names: str) -> Callable[[str], str]:
    """Parses one of `names`, in exactly this case."""

    def parse(value: str) -> str:
        if value not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return value

    return parse
