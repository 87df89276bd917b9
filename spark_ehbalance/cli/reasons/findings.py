"""What an explanation consists of, and how its sentences say times and names. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How bad it is; the worst is the highest."""

    #: As it should be, or as somebody has ordered.
    NOTE = 1
    #: Something is late, or will be wrong.
    WAITS = 2
    #: Partitions are not read, or events are lost.
    WRONG = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that holds partitions up: `text` says what and since when, `next` what happens then and when, `do` what
    you can do, or which line to look for in whose log. `partitions`: those that it concerns; none: the whole group."""

    severity: Severity
    partitions: tuple[str, ...]
    text: str
    next: str = ""
    do: str = ""


def span(ms: float) -> str:
    """A duration for people, exact to its two largest units, such as `4 min 12 s`."""
    seconds = max(0, round(ms / 1000))
    rest, parts = seconds, list[str]()
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}" if unit != "days" or count > 1 else "1 day")
    return " ".join(parts[:2])


def listed(names: Sequence[str], last: str = "and", most: int = 6) -> str:
    """Names in a sentence: `0, 1 and 2`."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} {last} {len(names) - most + 1} more"
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def partitions_text(partitions: Sequence[str]) -> str:
    """Such as `partition 3` or `partitions 0, 1 and 2`."""
    return f"partition{'s' if len(partitions) > 1 else ''} {listed(partitions, most=12)}"


def them(partitions: Sequence[object]) -> str:
    """The word that stands for so many partitions."""
    return "them" if len(partitions) > 1 else "it"
