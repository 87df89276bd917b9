"""Decides which ranges of a batch logged by a query's earlier process are read again. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.member.membership import OwnedLease, ResumePoint
from spark_ehbalance.group.member.query_state import Progress, QueryState
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.query.batch_planning import progress_of
from spark_ehbalance.query.offsets import StreamOffset


class Logged(NamedTuple):
    """What Spark's checkpoint contains when a planner starts: the end of the last batch that the sink has finished, and
    the end of a batch that was logged but not finished. Each is an initial offset if there is no such batch."""

    finished: StreamOffset
    unfinished: StreamOffset

    @property
    def last(self) -> StreamOffset:
        return self.finished if self.unfinished.is_initial else self.unfinished

    def finished_progress(self) -> dict[str, Progress]:
        """Finished progress in the partitions of the last batches; after a reset it may be lower than before."""
        begun = {
            p: Progress(range_.epoch, Position(range_.start - 1, range_.start_offset))
            for p, range_ in self.unfinished.ranges.items()
        }
        return progress_of(self.finished.ranges) | begun

    def progress(self) -> dict[str, Progress]:
        """The sink's progress in each partition that the checkpoint contains."""
        others = {
            p: Progress(position.epoch, Position.before(position.next))
            for p, position in self.last.other_positions.items()
        }
        return others | self.finished_progress()

    def resumed(self) -> dict[str, ResumePoint]:
        """The ranges that the earlier process was reading."""
        return {
            p: ResumePoint(range_.start, range_.since_ms, range_.epoch) for p, range_ in self.unfinished.ranges.items()
        }

    def query_state(self, progress: Mapping[str, Progress]) -> QueryState:
        """The state that the next process first reports to its member, with `progress` that the table lacks."""
        return QueryState(
            progress,
            to_replay=frozenset(self.unfinished.ranges),
            batch=self.finished.batch,
            begun=self.last.batch,
            planner=self.last.run,
        )


def _unknown_progress(progress: Mapping[str, Progress], found: Snapshot) -> dict[str, Progress]:
    """Progress that the table lacks although ownership has not changed: the table was unreachable when the query
    ended."""
    return {
        partition: finished
        for partition, finished in progress.items()
        if (lease := found.leases.get(partition)) is not None
        and lease.epoch == finished.epoch
        and lease.checkpoint is not None
        and lease.checkpoint.next < finished.position.next
    }


@dataclass(frozen=True, slots=True)
class EarlierBatches:
    """The batches of a query's earlier processes, according to its checkpoint and its lease table.

    `finished` is the end of the last finished batch in the checkpoint, and `finished_number` the number of the last
    finished batch in the lease table.
    """

    finished: StreamOffset | None = None
    finished_number: int = 0

    def replay(self, end: StreamOffset, owned: Mapping[str, OwnedLease]) -> dict[str, OffsetRange]:
        """The ranges to read again of the logged batch that ends at `end`."""
        return plan_replay(end.ranges, owned, finished=end.batch <= self.finished_number)


def recover(logged: Logged, found: Snapshot, lineage: str) -> tuple[dict[str, Progress], EarlierBatches]:
    """Finished progress that the table `found` may lack, and the batches of earlier processes."""
    record = found.queries.get(lineage)
    if record is None:
        return logged.finished_progress(), EarlierBatches(logged.finished)
    return _unknown_progress(logged.progress(), found), EarlierBatches(logged.finished, record.batch)


def plan_replay(
    ranges: Mapping[str, OffsetRange], owned: Mapping[str, OwnedLease], *, finished: bool = False
) -> dict[str, OffsetRange]:
    """The ranges to read again, with their new epochs, of a batch that an earlier process of the query logged.

    These are the partitions whose checkpoint is still at the start of their range, and that the query has owned without
    a break since the batch was logged. The others were or will be read by their later owners, or by the next batch: the
    earlier process may have written only a part of a range, and the sink skips a batch number that it has written.

    If a seek has moved a partition since then, its checkpoint is no evidence, so the partition is read again unless the
    lease table records the batch as `finished`.
    """

    def unread(range_: OffsetRange, holding: OwnedLease) -> bool:
        return not finished if sought_since(range_, holding) else holding.checkpoint.next == range_.start

    return {
        partition: replace(range_, epoch=owned[partition].epoch, since_ms=owned[partition].since_ms)
        for partition, range_ in ranges.items()
        if partition in owned and unread(range_, owned[partition]) and _owned_without_break(range_, owned[partition])
    }


def sought_since(logged: OffsetRange, holding: OwnedLease) -> bool:
    """Whether a seek has moved the partition since its range was logged."""
    return logged.epoch < holding.seek_epoch


def _owned_without_break(logged: OffsetRange, holding: OwnedLease) -> bool:
    """Whether nobody else can have owned the partition since the range was logged: the query's new process made the
    only claim since then, or none of the claims since then was another member's."""
    return holding.epoch <= logged.epoch + 1 or 0 < logged.since_ms == holding.since_ms
