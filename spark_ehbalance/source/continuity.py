"""Whether the lease table still knows what a query's own checkpoint knows, and what to do where it does not. Pure.

A table that was deleted, emptied or exchanged would have the query begin at its starting position, and skip what came
since it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_ehbalance.leases.model import Author, Position, Snapshot, TableIdentity, partition_order
from spark_ehbalance.leases.transitions import Restore
from spark_ehbalance.source.offsets import StreamOffset


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """The last epoch that is known of a partition, and where reading goes on under it. The later epoch counts first:
    what was read under an earlier one beyond that was broken off, or an operator has gone back."""

    epoch: int
    next: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What queries' checkpoints know of a group: how far each partition was finished, and the `lineages` of the lease
    tables (`StreamOffset.lineage`) by which they were found."""

    places: Mapping[str, Place] = field(default_factory=dict)
    lineages: frozenset[str] = frozenset()

    @classmethod
    def of(cls, finished: Sequence[StreamOffset], unfinished: Sequence[StreamOffset] = ()) -> Memory:
        """Of the ends of batches that a sink has finished, and of batches that were only planned: what these begin
        with was finished before, by whoever owned the partition then."""
        known = [(p, Place(each.epoch, each.end)) for end in finished for p, each in end.ranges.items()]
        known += [(p, Place(each.epoch, each.start)) for end in unfinished for p, each in end.ranges.items()]
        places: dict[str, Place] = {}
        for partition, place in known:
            places[partition] = max(place, places.get(partition, place))
        ordered = {partition: places[partition] for partition in sorted(places, key=partition_order)}
        return cls(ordered, frozenset(each.lineage for each in [*finished, *unfinished]))


def lost_memory(known: StreamOffset, memory: Memory, found: Snapshot | None, identity: TableIdentity | None) -> str:
    """In words, what a table does not know any more of what a query remembers that goes on after `known`; "" if it
    knows all. `found` and `identity` are None where there is no table.
    """
    if found is None or identity is None:
        return "there is no such table"
    if not identity.covers({known.lineage}):
        return f"that is another table{_beyond(memory, found)}"
    gone = [partition for partition in memory.places if _unknown(partition, found)]
    if gone:
        return f"it has no positions of {_named(gone)}"
    return "" if found.leases else "it has been emptied"


def restored(memory: Memory, found: Snapshot, by: Author, at_ms: int, why: str) -> list[Restore]:
    """What puts back into the table that reads as `found` what it does not know of `memory`."""
    return [
        Restore(by=by, at_ms=at_ms, partition=p, epoch=place.epoch, checkpoint=Position.before(place.next), why=why)
        for p, place in memory.places.items()
        if _unknown(p, found)
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
