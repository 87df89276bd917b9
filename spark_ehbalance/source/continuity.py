"""Whether the lease table still knows what a query's own checkpoint knows, and what to do where it does not. Pure.

A table that was deleted, emptied or exchanged would have the query begin at its starting position, and skip what came
since it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_ehbalance.leases.model import Author
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import Restore
from spark_ehbalance.source.offsets import HeldPosition, StreamOffset
from spark_ehbalance.values.position import Position, partition_order


@dataclass(frozen=True, slots=True)
class Memory:
    """What queries' checkpoints know of a group: how far each partition was finished, and the `lineages` of the lease
    tables (`StreamOffset.lineage`) by which they were found."""

    places: Mapping[str, HeldPosition] = field(default_factory=dict)
    lineages: frozenset[str] = frozenset()

    @classmethod
    def of(cls, *log: LoggedBatch) -> Memory:
        """What one query's log of batches knows, the oldest first: of each partition what the last one says."""
        places: dict[str, HeldPosition] = {}
        for batch in log:
            # What a batch begins with was finished before, by whoever owned the partition then.
            ranges = batch.end.ranges.items()
            places |= {p: HeldPosition(each.epoch, each.end if batch.finished else each.start) for p, each in ranges}
            places |= batch.end.held
        return cls(_ordered(places), frozenset(each.end.lineage for each in log))

    def joined(self, other: Memory) -> Memory:
        """What both know together: of each partition the further place."""
        places = dict(self.places)
        for partition, place in other.places.items():
            places[partition] = max(place, places.get(partition, place))
        return Memory(_ordered(places), self.lineages | other.lineages)


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """The end of a batch, and whether the sink has finished it."""

    end: StreamOffset
    finished: bool


def lost_memory(known: StreamOffset, memory: Memory, found: Snapshot | None) -> str:
    """In words, what a table does not know any more of what a query remembers that goes on after `known`; "" if it
    knows all. `found` is None where there is no table.
    """
    if found is None:
        return "there is no such table"
    if not found.leases:
        return "it has been emptied"
    if found.table is not None and not found.table.covers({known.lineage}):
        return f"that is another table{_beyond(memory, found)}"
    if gone := [partition for partition in memory.places if _unknown(partition, found)]:
        return f"it has no positions of {_named(gone)}"
    older = {p: found.leases[p].epoch for p, place in memory.places.items() if found.leases[p].epoch < place.epoch}
    return "".join(
        f"it has partition {p} with epoch {epoch} only, where the checkpoint has {memory.places[p].epoch}: it was set "
        "back or made anew"
        for p, epoch in list(older.items())[:1]
    )


def restored(memory: Memory, found: Snapshot, by: Author, at_ms: int, why: str, *, older: bool) -> list[Restore]:
    """What puts back into the table that reads as `found` what it does not know of `memory`: partitions without a
    position and, if `older`, those with an older epoch. Epochs of different tables do not compare."""
    return [
        Restore(by=by, at_ms=at_ms, partition=p, epoch=place.epoch, checkpoint=Position.before(place.next), why=why)
        for p, place in memory.places.items()
        if _unknown(p, found) or (older and found.leases[p].epoch < place.epoch)
    ]


def skipped(memory: Memory, found: Snapshot) -> dict[str, tuple[int, int]]:
    """The sequence numbers, first and last, of each partition that lie between what `memory` knows to be finished and
    where the table that reads as `found` goes on."""
    between = {}
    for partition, place in memory.places.items():
        lease = found.leases.get(partition)
        if lease is not None and lease.checkpoint is not None and lease.checkpoint.next > place.next:
            between[partition] = (place.next, lease.checkpoint.sequence_number)
    return between


def _ordered(places: Mapping[str, HeldPosition]) -> dict[str, HeldPosition]:
    return {partition: places[partition] for partition in sorted(places, key=partition_order)}


def _unknown(partition: str, found: Snapshot) -> bool:
    lease = found.leases.get(partition)
    return lease is None or lease.checkpoint is None


def _beyond(memory: Memory, found: Snapshot) -> str:
    between = skipped(memory, found)
    shown = ", ".join(f"{first} to {last} of partition {p}" for p, (first, last) in list(between.items())[:3])
    return f", which would skip events {shown}{' and more' if len(between) > 3 else ''}" if between else ""


def _named(partitions: list[str]) -> str:
    shown = ", ".join(partitions[:8])
    return f"partition{'s' if len(partitions) > 1 else ''} {shown}{' and more' if len(partitions) > 8 else ''}"
