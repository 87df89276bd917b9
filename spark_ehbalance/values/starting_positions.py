"""Where reading begins and ends: the values of `startingPosition` and `endingPosition`, and their meaning.

A position is `earliest`, `latest`, a sequence number (inclusive), a time (the first event enqueued at or after it),
or a JSON object that gives one of these per partition, with "*" for all partitions not named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum

from spark_ehbalance.errors import OptionError
from spark_ehbalance.values.secrets import shown


class Edge(Enum):
    """The two ends of a partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


#: Sequence numbers are 64-bit integers with a sign.
_LARGEST = 2**63 - 1

#: One place in a partition: an end, a sequence number, or a time.
UnresolvedPosition = Edge | int | datetime

_ALLOWED_PLACE = "earliest, latest, a sequence number, a time such as 2026-01-31T12:00:00Z"
_ALLOWED = f'{_ALLOWED_PLACE}, or JSON of these by partition, such as {{"0": 4711, "*": "latest"}}'


@dataclass(frozen=True)
class StartingPositions:
    """A place for each partition: the one named for it, else `others`."""

    others: UnresolvedPosition | None
    named: Mapping[str, UnresolvedPosition] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> StartingPositions:
        """The positions that an option's `text` means. Raises `ValueError` with what is allowed."""
        if not text.startswith("{"):
            return cls(_place(text))
        try:
            by_partition = json.loads(text)
        except ValueError:
            raise ValueError(_ALLOWED) from None
        named = {partition: _place(value) for partition, value in by_partition.items()}
        return cls(named.pop("*", None), named)

    def check(self, partitions: tuple[str, ...]) -> None:
        """Raise `OptionError` if a partition is named that the hub does not have, or one is left out."""
        if unknown := sorted(set(self.named) - set(partitions)):
            raise OptionError(
                f"a position is given for partition {shown(unknown[0])}: the hub has {', '.join(partitions)}"
            )
        if self.others is None and (left_out := [p for p in partitions if p not in self.named]):
            raise OptionError(f'no position is given for partition {left_out[0]}: name it, or all others as "*"')

    def of(self, partition: str) -> UnresolvedPosition:
        """The place for `partition`. One that came up after the check begins at its earliest event."""
        place = self.named.get(partition, self.others)
        return Edge.EARLIEST if place is None else place


def parse_position(text: str) -> UnresolvedPosition:
    """The one place that `text` means. Raises `ValueError` with what is allowed."""
    try:
        return _place(text)
    except ValueError:
        raise ValueError(_ALLOWED_PLACE) from None


def _place(value: object) -> UnresolvedPosition:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST:
        return value
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in ("earliest", "latest"):
            return Edge(text.lower())
        if text.isascii() and text.isdigit():
            return _place(int(text[:20]))
        try:
            time = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text)
        except ValueError:
            raise ValueError(_ALLOWED) from None
        return time if time.tzinfo else time.replace(tzinfo=timezone.utc)
    raise ValueError(_ALLOWED)


EARLIEST = StartingPositions(Edge.EARLIEST)
LATEST = StartingPositions(Edge.LATEST)
