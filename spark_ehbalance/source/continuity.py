"""Whether the lease table still has the progress that a query's own checkpoint records, and how to restore it. Pure.

With a table that was deleted, emptied or replaced the query would begin at its starting position and skip the events
that arrived since it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_ehbalance.leases.model import Author
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import Restore
from spark_ehbalance.member.query import Progress
from spark_ehbalance.source.offsets import EpochPosition, StreamOffset
from spark_ehbalance.values.position import Position, partition_order


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """The end of a batch in Spark's offset log, and whether the sink has finished the batch (Spark's commit log)."""

    end: StreamOffset
    finished: bool


@dataclass(frozen=True, slots=True)
class RecordedProgress:
    """What a query's checkpoint records: where reading of each partition goes on, and the `origins`
    (`StreamOffset.origin`) of the lease tables that it was read with."""

    positions: Mapping[str, EpochPosition] = field(default_factory=dict)
    origins: frozenset[str] = frozenset()

    @classmethod
    def from_log(cls, *log: LoggedBatch) -> RecordedProgress:
        """What the log records, oldest batch first: for each partition its last entry counts."""
        positions: dict[str, EpochPosition] = {}
        for batch in log:
            end = batch.end
            # The events before the start of a batch were finished earlier, by whichever member owned the partition.
            ranges = end.ranges.items()
            read = {p: EpochPosition(each.epoch, each.end if batch.finished else each.start) for p, each in ranges}
            positions |= {**read, **end.other_positions}
        ordered = {partition: positions[partition] for partition in sorted(positions, key=partition_order)}
        return cls(ordered, frozenset(each.end.origin for each in log))


def describe_loss(known: StreamOffset, recorded: RecordedProgress, found: Snapshot | None) -> str:
    """What the table lacks of the progress that the query recorded, as a clause for a message; "" if it lacks nothing.

    `known` is the query's last offset; `found` is None where there is no table.
    """
    if found is None:
        return "there is no such table"
    if not found.leases:
        return "it has been emptied"
    if found.table is not None and not found.table.covers({known.origin}):
        return f"that is another table{_skip_clause(recorded, found)}"
    if gone := [partition for partition in recorded.positions if _has_no_position(partition, found)]:
        return f"it has no positions of {_listed(gone)}"
    for partition, position in recorded.positions.items():
        if (epoch := found.leases[partition].epoch) < position.epoch:
            return (
                f"it has partition {partition} with epoch {epoch} only, where the checkpoint has {position.epoch}: it "
                "was set back or made anew"
            )
    return ""


def restore_transitions(
    recorded: RecordedProgress, found: Snapshot, by: Author, at_ms: int, why: str, *, older: bool
) -> list[Restore]:
    """The transitions that add to `found` what it lacks of `recorded`: partitions without a position and, if `older`,
    those with an older epoch, or with an older position. Epochs of different tables cannot be compared."""
    beyond = progress_beyond(found, recorded)
    return [
        Restore(by=by, at_ms=at_ms, partition=p, epoch=each.epoch, checkpoint=Position.before(each.next), why=why)
        for p, each in recorded.positions.items()
        if _has_no_position(p, found) or (older and (p in beyond or found.leases[p].epoch < each.epoch))
    ]


def progress_beyond(found: Snapshot, recorded: RecordedProgress) -> dict[str, Progress]:
    """What of `recorded` the table does not know although nobody else has had the partition since: it was away when the
    query ended, or was set back. An epoch without an owner is that of a seek, which decides where reading continues."""
    return {
        p: Progress(each.epoch, Position.before(each.next))
        for p, each in recorded.positions.items()
        if (lease := found.leases.get(p)) is not None
        and lease.epoch == each.epoch
        and not (lease.sought == lease.epoch and lease.owned_since_ms == 0)
        and (lease.checkpoint is None or lease.checkpoint.next < each.next)
    }


def skipped_events(recorded: RecordedProgress, found: Snapshot) -> dict[str, tuple[int, int]]:
    """The first and last sequence number of each partition between the recorded position and the position at which
    the table goes on. No query has finished these events as far as `recorded` tells."""
    between = {}
    for partition, position in recorded.positions.items():
        lease = found.leases.get(partition)
        if lease is not None and lease.checkpoint is not None and lease.checkpoint.next > position.next:
            between[partition] = (position.next, lease.checkpoint.sequence_number)
    return between


def _has_no_position(partition: str, found: Snapshot) -> bool:
    lease = found.leases.get(partition)
    return lease is None or lease.checkpoint is None


def _skip_clause(recorded: RecordedProgress, found: Snapshot) -> str:
    between = skipped_events(recorded, found)
    shown = ", ".join(f"{first} to {last} of partition {p}" for p, (first, last) in list(between.items())[:3])
    return f", which would skip events {shown}{' and more' if len(between) > 3 else ''}" if between else ""


def _listed(partitions: list[str]) -> str:
    shown = ", ".join(partitions[:8])
    return f"partition{'s' if len(partitions) > 1 else ''} {shown}{' and more' if len(partitions) > 8 else ''}"
