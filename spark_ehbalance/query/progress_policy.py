"""Two policies for where a query's progress is stored, and therefore what its offsets contain. Does no I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.model import Lease, TableIdentity
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.query.offsets import EpochPosition, FirstStart, StreamOffset, TableReference


class TableState(NamedTuple):
    """The lease table as last read: its identity, and the number of the query's last batch recorded as begun."""

    identity: TableIdentity | None
    begun: int = 0


@dataclass(frozen=True, slots=True)
class LeaseTableProgress:
    """The lease table at `location` stores the progress, so an offset contains only the ranges of its batch.

    `query` is an offset with owner, group, event hub, lineage and run.
    """

    query: StreamOffset
    location: str

    def named(self, start: StreamOffset, ranges: Mapping[str, OffsetRange]) -> Mapping[str, OffsetRange]:
        """The ranges that the offset of the batch after `start` contains, given `ranges` of all owned partitions, with
        or without events. Empty if they do not justify a batch."""
        return {partition: range_ for partition, range_ in ranges.items() if len(range_)}

    def batch_end(
        self,
        start: StreamOffset,
        named: Mapping[str, OffsetRange],
        ranges: Mapping[str, OffsetRange],
        reserved: Collection[str],
        table: TableState,
        checkpoints: Mapping[str, int],
        lapsed: Mapping[str, Progress],
    ) -> StreamOffset:
        """The end of the batch that follows `start` and has the ranges in `named`. Only the `reserved` partitions of
        that batch are still owned. `checkpoints` are the next sequence numbers in the `table`, and `lapsed` is
        uncommitted progress under lapsed leases."""
        read = {partition: range_ for partition, range_ in named.items() if partition in reserved}
        positions = {p: EpochPosition(progress.epoch, progress.position.next) for p, progress in lapsed.items()}
        positions |= {p: EpochPosition(range_.epoch, range_.start) for p, range_ in ranges.items()}
        return replace(
            self.query,
            ranges=read,
            table=self._table(table.identity),
            other_positions={p: position for p, position in positions.items() if p not in read},
            batch=start.batch + 1,
            table_begun=table.begun,
            checkpoints={
                p: checkpoint
                for p, checkpoint in checkpoints.items()
                if p in positions and checkpoint < positions[p].next
            },
        )

    def empty_end(self, start: StreamOffset, table: TableIdentity | None) -> StreamOffset:
        """The end of a batch without events after `start`: `start` itself, unless it does not refer to the `table`."""
        used = self._table(table)
        return start if used == start.table else replace(self.query, table=used, batch=start.batch + 1)

    def _table(self, identity: TableIdentity | None) -> TableReference | None:
        return TableReference(identity.id, self.location) if identity else None


@dataclass(frozen=True, slots=True)
class OffsetProgress:
    """Without a lease table, the offset alone stores the progress, so it contains every partition ever read. Has the
    same methods as `LeaseTableProgress`.

    `query` is an offset with owner, event hub, lineage and run.
    """

    query: StreamOffset
    location: ClassVar[None] = None

    def snapshot(self, group: Group, finished: StreamOffset, unfinished: StreamOffset) -> Snapshot:
        """The state of a group that consists only of this query, from the end of its last finished batch and the end of
        a logged unfinished batch."""
        positions = {
            p: (range_.epoch, Position(range_.end - 1, range_.end_offset)) for p, range_ in finished.ranges.items()
        }
        positions |= {
            p: (range_.epoch, Position(range_.start - 1, range_.start_offset))
            for p, range_ in unfinished.ranges.items()
        }
        leases = {
            p: Lease(p, owner=self.query.owner, epoch=epoch, checkpoint=position)
            for p, (epoch, position) in positions.items()
        }
        if not leases:
            return Snapshot(group)
        first = self.query.first_start or FirstStart(0, 0)
        leases |= {p: Lease(p) for p in map(str, range(first.partitions)) if p not in leases}
        return Snapshot(group, leases=leases, table=TableIdentity("", latest_ms=first.at_ms))

    def named(self, start: StreamOffset, ranges: Mapping[str, OffsetRange]) -> Mapping[str, OffsetRange]:
        unmoved = {
            p: OffsetRange(p, range_.epoch, range_.end, range_.end, 0, range_.end_offset, range_.end_offset)
            for p, range_ in start.ranges.items()
        }
        # A partition's first range justifies a batch without events: it stores where reading starts.
        worth_a_batch = any(len(range_) or p not in unmoved for p, range_ in ranges.items())
        return {**unmoved, **ranges} if worth_a_batch else {}

    def batch_end(self, start: StreamOffset, named: Mapping[str, OffsetRange], *_: object) -> StreamOffset:
        return replace(self.query, ranges=named, batch=start.batch + 1)

    def empty_end(self, start: StreamOffset, table: TableIdentity | None) -> StreamOffset:
        return start


ProgressPolicy = LeaseTableProgress | OffsetProgress
