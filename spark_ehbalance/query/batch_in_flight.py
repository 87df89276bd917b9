"""The batch that Spark runs at the moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.model import Lease
from spark_ehbalance.query.batch_planning import progress_of
from spark_ehbalance.query.offsets import StreamOffset


@dataclass(frozen=True, slots=True)
class BatchInFlight:
    """The batch that ends at `end`, and the `ranges` that are read of it.

    These are the ranges in `end` if this process has `planned` it. A batch that an earlier process has planned is run
    again with those that are left of it, and of its partitions those in `sought` were moved elsewhere meanwhile.
    `finished`: by the sink, or a later batch is.
    """

    end: StreamOffset
    ranges: Mapping[str, Range]
    planned: bool
    sought: frozenset[str] = frozenset()
    finished: bool = False

    @property
    def read(self) -> dict[str, Range]:
        """The ranges that have events, or gaps, by partition."""
        return {partition: range_ for partition, range_ in self.ranges.items() if len(range_)}

    def progress(self) -> dict[str, Progress]:
        """How far each partition has got once the sink has finished the batch; not of those that were sought."""
        return progress_of({p: range_ for p, range_ in self.ranges.items() if p not in self.sought})

    def lost(self, leases: Mapping[str, Lease]) -> tuple[list[str], list[str]]:
        """Which partitions that are `read` were taken or stalled, by the lease table, and a warning for each of
        which the next owner does not read the same events again."""
        lost = [
            range_
            for range_ in self.read.values()
            if not leases[range_.partition].still_owned(range_.epoch, range_.since_ms)
        ]
        warnings = [
            "another member took a partition that a seek had moved, before the batch was written: events before the "
            f"new position are not read again partition={range_.partition} from={range_.start} to={range_.end - 1}"
            for range_ in lost
            if range_.epoch < leases[range_.partition].sought
        ]
        return [range_.partition for range_ in lost], warnings
