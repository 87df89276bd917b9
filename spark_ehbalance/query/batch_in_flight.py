"""The batch that Spark is running. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.model import Lease
from spark_ehbalance.query.batch_planning import progress_of
from spark_ehbalance.query.offsets import StreamOffset


@dataclass(frozen=True, slots=True)
class BatchInFlight:
    """The batch that ends at `end`, and its `ranges` to read.

    If this process `planned` the batch, these are the ranges in `end`. If it replays an earlier process's batch, these
    are the remaining ranges, and a seek has since moved the partitions in `sought`. `finished` is set once the sink has
    finished this or a later batch.
    """

    end: StreamOffset
    ranges: Mapping[str, OffsetRange]
    planned: bool
    sought: frozenset[str] = frozenset()
    finished: bool = False

    @property
    def read(self) -> dict[str, OffsetRange]:
        """The non-empty ranges by partition."""
        return {partition: range_ for partition, range_ in self.ranges.items() if len(range_)}

    def progress(self) -> dict[str, Progress]:
        """Each partition's progress once the sink has finished the batch, without the partitions in `sought`."""
        return progress_of({p: range_ for p, range_ in self.ranges.items() if p not in self.sought})

    def lost(self, leases: Mapping[str, Lease]) -> tuple[list[str], list[str]]:
        """The `read` partitions that have since been taken or stalled, and a warning for each partition whose events
        will not be read again."""
        lost = [
            range_
            for range_ in self.read.values()
            if not leases[range_.partition].still_owned(range_.epoch, range_.since_ms)
        ]
        warnings = [
            "another member took a partition that a seek had moved, before the batch was written: events before the "
            f"new position are not read again. partition={range_.partition} from={range_.start} to={range_.end - 1}"
            for range_ in lost
            if range_.epoch < leases[range_.partition].seek_epoch
        ]
        return [range_.partition for range_ in lost], warnings
