"""The values of the options `startingPosition` and `endingPosition`.

A value is `earliest`, `latest`, a sequence number (inclusive; also as `{"next": NUMBER}`), a time with a time zone
(meaning the first event enqueued at or after it), or a JSON object with one of these per partition, and "*" for all
other partitions. In such an object, a position can also be `{"next": NUMBER, "offset": TEXT}`, as `ehbalance positions`
prints it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any

from spark_ehbalance.errors import OptionError
from spark_ehbalance.group.position import Position
from spark_ehbalance.settings.secrets import redacted


class PartitionEnd(Enum):
    """The two ends of a partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


#: Sequence numbers are signed 64-bit integers.
_LARGEST = 2**63 - 1

#: Numbers with 13 digits are rejected as ambiguous: they are probably milliseconds since 1970 (years 2001 to 2286),
#: because few partitions have that many events.
_MILLISECONDS = range(10**12, 10**13)


@dataclass(frozen=True, slots=True)
class AfterOffset:
    """The position after the event with this `offset`, whose sequence number is unknown."""

    offset: str


#: A position that the hub may have to resolve to a sequence number.
UnresolvedPosition = PartitionEnd | int | datetime | Position | AfterOffset

#: The key in the output of `ehbalance positions` that identifies the event hub. Only commands check it.
HUB_KEY = "hub"

_ALLOWED_POSITION = "earliest, latest, a sequence number, a time such as 2026-01-31T12:00:00Z"
_ALLOWED_JSON = f'{_ALLOWED_POSITION}, or {{"next": 4711, "offset": "19482"}}'
_ALLOWED = f'{_ALLOWED_POSITION}, or JSON of these by partition, such as {{"0": 4711, "*": "latest"}}'


#: The digits of a time beyond microseconds, which `datetime` ignores.
_FINER = re.compile(r"(?<=[.,]\d{6})\d+")

#: An invalid offset from UTC that `datetime` accepts.
_NO_OFFSET = re.compile(r".*[+-]\d\d:?[6-9]\d", re.DOTALL)


class AmbiguousPositionError(ValueError):
    """A position with two possible meanings. The message contains an unambiguous form of each."""


@dataclass(frozen=True)
class StartingPositions:
    """A position for each partition: the one in `named` or, if there is none, `others`."""

    others: UnresolvedPosition | None
    named: Mapping[str, UnresolvedPosition] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> StartingPositions:
        """Parse an option's `text`. Raises `ValueError`, whose message states the allowed values."""
        try:
            return cls._from_json(load_json(text) if text.startswith("{") else text)
        except AmbiguousPositionError:
            raise
        except (ValueError, RecursionError):
            raise ValueError(_ALLOWED) from None

    @classmethod
    def _from_json(cls, by_partition: Any) -> StartingPositions:
        if isinstance(by_partition, str):
            return cls(position_from_json(by_partition))
        if by_partition.keys() == {"next"}:
            return cls(position_from_json(by_partition))
        by_partition.pop(HUB_KEY, None)
        named = {partition: position_from_json(value) for partition, value in by_partition.items()}
        return cls(named.pop("*", None), named)

    def check(self, partitions: tuple[str, ...]) -> None:
        """Raise `OptionError` unless the hub has all named partitions and each of `partitions` has a position."""
        if unknown := sorted(set(self.named) - set(partitions)):
            raise _invalid(redacted(unknown[0]), "the hub has no such partition", f"partitions {', '.join(partitions)}")
        if self.others is None and (missing := [p for p in partitions if p not in self.named]):
            raise _invalid(missing[0], "it is missing", 'a position for this partition, or for all others as "*"')

    def check_ends(self, ends: Mapping[str, int]) -> None:
        """Raise `OptionError` if a sequence number is beyond the end of its partition. `ends` maps each partition that
        will be read to the sequence number after its last event."""
        for partition, end in ends.items():
            position = self.first_sequence_number(partition)
            if position is not None and position > end:
                last = f"the last event is {end - 1}" if end else "the partition has no event yet"
                raise _invalid(partition, f"it is {position}, but {last}", f"at most {end}, the next event")

    def position(self, partition: str) -> UnresolvedPosition:
        """The position for `partition`. A partition that was added after `check` begins at its earliest event."""
        position = self.named.get(partition, self.others)
        return PartitionEnd.EARLIEST if position is None else position

    def first_sequence_number(self, partition: str) -> int | None:
        """The first sequence number to read in `partition`; None if only the hub can resolve it."""
        position = self.position(partition)
        if isinstance(position, Position):
            return position.next
        return position if isinstance(position, int) else None


def _invalid(partition: str, problem: str, allowed: str) -> OptionError:
    return OptionError("EHB_POSITION_INVALID", partition=partition, problem=problem, allowed=allowed)


def load_json(text: str) -> Any:
    """Parse JSON. Raises `ValueError`, or `AmbiguousPositionError` if a key occurs twice in an object."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if repeated := [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]:
            raise AmbiguousPositionError(f"each key once, but {redacted(repeated[0])} occurs twice")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=unique)


def parse_position(text: str) -> UnresolvedPosition:
    """Parse `text` as a single position. Raises `ValueError`, whose message states the allowed values."""
    try:
        return position_from_json(load_json(text) if text.startswith("{") else text)
    except AmbiguousPositionError:
        raise
    except (ValueError, RecursionError):
        raise ValueError(_ALLOWED_POSITION) from None


def position_from_json(value: object) -> UnresolvedPosition:
    """The position in a JSON `value`. Raises `ValueError`, whose message states the allowed values."""
    if isinstance(value, dict):
        return _described_position(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST:
        if value in _MILLISECONDS:
            text = datetime.fromtimestamp(value / 1000, timezone.utc).isoformat(timespec="milliseconds")
            raise AmbiguousPositionError(
                f'{text.replace("+00:00", "Z")} for these milliseconds since 1970, or {{"next": {value}}} for this '
                "sequence number"
            )
        return value
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in ("earliest", "latest"):
            return PartitionEnd(text.lower())
        if text.isascii() and text.isdigit():
            return position_from_json(int(text[:20]))
        finer = _FINER.search(text)
        exact = _FINER.sub("", text, count=1)
        try:
            if _NO_OFFSET.fullmatch(text):
                raise ValueError
            time = datetime.fromisoformat(exact[:-1] + "+00:00" if exact[-1:] in ("Z", "z") else exact)
            # Round up to milliseconds, the precision of event times. Azure's client truncates, so it would begin too
            # early.
            time += timedelta(microseconds=1 if finer and finer[0].strip("0") else 0)
            time += timedelta(microseconds=-time.microsecond % 1000)
            if time.tzinfo is not None:
                time.astimezone(timezone.utc)  # raises if the year in UTC is not 1 to 9999
        except (ValueError, OverflowError):
            raise ValueError(_ALLOWED_JSON) from None
        if time.tzinfo is None:
            written = time.isoformat()
            raise AmbiguousPositionError(
                f"a time with a time zone: {written}Z for UTC, or with an offset, such as {written}+01:00"
            )
        return time
    raise ValueError(_ALLOWED_JSON)


def _described_position(value: Mapping[str, object]) -> Position | AfterOffset:
    number, offset = value.get("next"), value.get("offset")
    known = type(number) is int and 0 <= number <= _LARGEST
    if not value.keys() <= {"next", "offset"} or not (known or number is None) or not isinstance(offset, str | None):
        raise ValueError(_ALLOWED_JSON)
    if isinstance(number, int):
        return Position(number - 1, offset)
    if offset:
        return AfterOffset(offset)
    raise ValueError(_ALLOWED_JSON)


EARLIEST = StartingPositions(PartitionEnd.EARLIEST)
LATEST = StartingPositions(PartitionEnd.LATEST)
