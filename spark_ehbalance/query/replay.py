"""Decides which ranges must be read again of a batch that an earlier process of the query logged. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.member.membership import OwnedLease, ResumePoint
from spark_ehbalance.group.member.query_state import Progress, QueryState
from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.query.batch_planning import progress_of
from spark_ehbalance.query.offsets import StreamOffset


class LoggedBatches(NamedTuple):
    """Contents of Spark's checkpoint when a planner starts: the end of the last batch that the sink has finished, and
    the end of a batch that was logged but not finished. Each is an initial offset if there is no such batch."""

    finished: StreamOffset
    unfinished: StreamOffset

    @property
    def last(self) -> StreamOffset:
        return self.finished if self.unfinished.is_initial else self.unfinished

    def finished_progress(self) -> dict[str, Progress]:
        """How far the sink has finished each partition of the last batches. After a seek or reset to an earlier event,
        this may be lower than it once was."""
        begun = {
            p: Progress(range_.epoch, Position(range_.start - 1, range_.start_offset))
            for p, range_ in self.unfinished.ranges.items()
        }
        return progress_of(self.finished.ranges) | begun

    def progress(self) -> dict[str, Progress]:
        """The sink's progress in each partition that the checkpoint contains."""
        progress = self.finished_progress()
        for partition, later in self.last.other_positions.items():
            # Later than the finished batch, which may have been read again in a new epoch.
            known, position = progress.get(partition), Position.before(later.next)
            if known is not None and known.position.next == later.next:
                position = known.position  # with the offset
            progress[partition] = Progress(later.epoch, position)
        return progress

    def resumed(self) -> dict[str, ResumePoint]:
        """The ranges that the earlier process was reading."""
        return {
            p: ResumePoint(range_.start, range_.since_ms, range_.epoch) for p, range_ in self.unfinished.ranges.items()
        }

    def query_state(self, progress: Mapping[str, Progress]) -> QueryState:
        """The initial state that the query's new process passes to its group member. It includes `progress`, which the
        table lacks."""
        return QueryState(
            progress,
            to_replay=frozenset(self.unfinished.ranges),
            batch=self.finished.batch,
            begun=self.last.batch,
            planner=self.last.run,
        )


def _unknown_progress(progress: Mapping[str, Progress], found: Snapshot) -> dict[str, Progress]:
    """Progress that the table lacks although ownership has not changed, because the table was unreachable when the
    query ended."""
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
        """The ranges of the logged batch ending at `end` that must be read again. If it has finished, the sink may skip
        its number, so the next batch reads what it lacked."""
        return {} if end.batch <= self.finished_number else plan_replay(end.ranges, owned)


def recover(logged: LoggedBatches, found: Snapshot, lineage: str) -> tuple[dict[str, Progress], EarlierBatches]:
    """Progress of the sink that the table `found` may lack, and the batches of earlier processes."""
    record = found.queries.get(lineage)
    if record is None:
        return logged.finished_progress(), EarlierBatches(logged.finished)
    return _unknown_progress(logged.progress(), found), EarlierBatches(logged.finished, record.batch)


def plan_replay(ranges: Mapping[str, OffsetRange], owned: Mapping[str, OwnedLease]) -> dict[str, OffsetRange]:
    """The ranges that must be read again, with their new epochs, of a batch logged by the query's earlier process.

    These are the ranges of partitions whose checkpoint is still at the start of the range, and that the query has owned
    without a break since the batch was logged. All others have been or will be read by later owners or in the next
    batch. They must not be read here: the sink skips a batch number it has already written, even if the earlier process
    wrote only part of a range.

    If a seek has moved a partition since then, its checkpoint does not show whether the range was read, so it is read
    again.
    """

    def unread(range_: OffsetRange, holding: OwnedLease) -> bool:
        return was_moved_by_seek(range_, holding) or holding.checkpoint.next == range_.start

    return {
        partition: replace(range_, epoch=owned[partition].epoch, since_ms=owned[partition].since_ms)
        for partition, range_ in ranges.items()
        if partition in owned and unread(range_, owned[partition]) and _owned_without_break(range_, owned[partition])
    }


def unclaimed(
    ranges: Mapping[str, OffsetRange], replay: Mapping[str, OffsetRange], leases: Mapping[str, Lease]
) -> list[str]:
    """The partitions of a logged batch with these `ranges` that the `replay` omits, although nobody has claimed their
    `leases` since. If the batch finished without them, `recover` would count their ranges as finished.

    This happens if the store is not atomic and the restarted query's claim failed.
    """

    def is_unfinished(range_: OffsetRange, lease: Lease) -> bool:
        return lease.epoch == range_.epoch and (lease.checkpoint is None or lease.checkpoint.next < range_.end)

    return [p for p, range_ in ranges.items() if p not in replay and p in leases and is_unfinished(range_, leases[p])]


def was_moved_by_seek(logged: OffsetRange, holding: OwnedLease) -> bool:
    """Whether a seek has moved the partition since its range was logged."""
    return logged.epoch < holding.seek_epoch


def _owned_without_break(logged: OffsetRange, holding: OwnedLease) -> bool:
    """Whether no other member can have owned the partition since the range was logged: the query's new process made the
    only claim since then, or no other member has claimed it since then."""
    return holding.epoch <= logged.epoch + 1 or 0 < logged.since_ms == holding.since_ms
