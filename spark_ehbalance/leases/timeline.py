"""Who owned what when, by a group's history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.values.position import partition_order

#: The events that change an owner. All others in a history are operators' orders, drawn as marks.
_OWNER_CHANGES = frozenset({"HandOver", "Claim", "Steal", "Release"})


class Segment(NamedTuple):
    """`owner` owned `partition` from `start` to `end`."""

    partition: str
    owner: str
    start: float
    end: float


class Mark(NamedTuple):
    """An event in the group, or in one partition of it."""

    at: float
    text: str
    partition: str | None = None


def segments_of(
    changes: Iterable[OwnershipChange], owners: Mapping[str, str | None], begin_ms: int, end_ms: int
) -> list[Segment]:
    """Who owned which partition when, in milliseconds. `owners` are the owners at the beginning, as far as known.

    The changes of a partition are ordered by epoch, because their authors' clocks may differ.
    """
    by_partition: dict[str, list[OwnershipChange]] = defaultdict(list)
    for change in changes:
        if change.partition is not None:
            by_partition[change.partition].append(change)
    segments = []
    for partition in sorted(owners.keys() | by_partition.keys(), key=partition_order):
        rows = sorted(by_partition[partition], key=lambda change: (change.epoch, change.at_ms))
        owner = owners[partition] if partition in owners else rows[0].owner_before
        start = begin_ms
        for change in rows:
            at = max(start, change.at_ms)
            if owner is not None and at > start:
                segments.append(Segment(partition, owner, start, at))
            owner, start = change.owner, at
        if owner is not None and end_ms > start:
            segments.append(Segment(partition, owner, start, end_ms))
    return segments


def split(history: Iterable[OwnershipChange]) -> tuple[list[OwnershipChange], list[Mark]]:
    """Split a history into changes of owner and marks for all other rows."""
    changes, marks = [], []
    for row in history:
        if row.event in _OWNER_CHANGES and row.partition is not None and row.epoch is not None:
            changes.append(row)
        else:
            what = " ".join(str(part) for part in (row.event, row.partition) if part is not None)
            text = f"{what} by {row.by}" + (f": {row.why}" if row.why else "")
            marks.append(Mark(row.at_ms, text, row.partition))
    return changes, marks


def moves_of(changes: Iterable[OwnershipChange], owners: Mapping[str, str | None]) -> list[tuple[float, str]]:
    """The time and the event of each move of a partition to another owner than its last one."""
    last: dict[str, str | None] = dict(owners)
    moves = []
    for change in changes:
        if change.partition is None:
            continue
        before = last.get(change.partition, change.owner_before)
        if change.owner is not None and change.owner != before:
            moves.append((float(change.at_ms), change.event))
        last[change.partition] = change.owner or before
    return moves
