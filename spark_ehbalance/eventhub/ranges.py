"""Offset ranges: how many events a batch reads from each partition, in how many pieces, and from which position.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

from spark_ehbalance.errors import DataLossError
from spark_ehbalance.eventhub.metadata import PartitionState

#: Event Hubs allows 5 readers without an owner level per partition and consumer group; one is reserved for a task's
#: retry.
MAX_PIECES = 4


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The events of a partition with sequence numbers from `start` to `end`, exclusive.

    `epoch` and `since_ms` are the lease's epoch and `owned_since_ms`; 0 if there are no leases, or if unknown. The
    length is `end - start`, which is more than the number of events if the sequence numbers have gaps.

    In a geo-replicated hub, `start_offset` is the offset of the last event before `start`, and `end_offset` is the
    offset of the last event before `end`; None if unknown.
    """

    partition: str
    epoch: int
    start: int
    end: int
    since_ms: int = 0
    start_offset: str | None = None
    end_offset: str | None = None

    def __len__(self) -> int:
        return self.end - self.start


def limit_by_backlog(backlogs: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """The number of events to read per partition: `limit` in total, in proportion to the backlogs.

    As with maxOffsetsPerTrigger in Spark's Kafka source, at least one event is read from each partition that has a
    backlog, even beyond `limit`, so that no partition starves.
    """
    total = sum(backlogs.values())
    if limit is None or total <= limit:
        return dict(backlogs)
    first = {partition: min(backlog, 1) for partition, backlog in backlogs.items()}
    rest = {partition: backlog - first[partition] for partition, backlog in backlogs.items()}
    left, total_rest = limit - sum(first.values()), sum(rest.values())
    if left <= 0:
        return first
    counts = {partition: first[partition] + left * more // total_rest for partition, more in rest.items()}
    # Largest remainder method: the events left over by rounding down go to the partitions with the largest remainders.
    by_remainder = sorted(rest, key=lambda p: (-(left * rest[p] % total_rest), p))
    for partition in by_remainder[: limit - sum(counts.values())]:
        counts[partition] += 1
    return counts


def split(ranges: list[OffsetRange], min_pieces: int | None) -> list[OffsetRange]:
    """Split `ranges` into at least `min_pieces` pieces, as minPartitions does in Spark's Kafka source. Larger ranges
    are split into more pieces, but each into at most `MAX_PIECES`."""
    counts = [1] * len(ranges)
    # Repeatedly split the range with the largest pieces.
    largest = [(-float(len(whole)), index) for index, whole in enumerate(ranges) if len(whole) > 1]
    heapify(largest)
    for _ in range(0 if min_pieces is None else min_pieces - len(ranges)):
        if not largest:
            break
        _, index = heappop(largest)
        counts[index] += 1
        if counts[index] < min(MAX_PIECES, len(ranges[index])):
            heappush(largest, (-len(ranges[index]) / counts[index], index))
    pieces = []
    for whole, count in zip(ranges, counts, strict=True):
        edges = [whole.start + len(whole) * i // count for i in range(count + 1)]
        offsets = {whole.start: whole.start_offset, whole.end: whole.end_offset}
        pieces += [
            OffsetRange(whole.partition, whole.epoch, *cut, whole.since_ms, *map(offsets.get, cut))
            for cut in pairwise(edges)
        ]
    return pieces


def retained_start(
    partition: str, position: int, state: PartitionState, fail_on_data_loss: bool, *, is_known: bool = True
) -> tuple[int, str]:
    """The sequence number from which to continue reading `partition`, and a warning, which is empty if reading
    continues at `position`.

    Events are lost if `position` is before the first retained event, after the last one (the hub was recreated), or
    after an event that the hub does not have (not `is_known`). In that case, raises `DataLossError` if
    `fail_on_data_loss`.
    """
    if is_known and state.begin <= position <= state.end:
        return position, ""
    if position < state.begin:
        reason = f"they aged out, and the first retained event is {state.begin}"
    elif position > state.end:
        reason = f"the event hub was recreated, and its last event is {state.end - 1}"
    else:
        reason = "the hub has no event at the previous offset; a promotion to another region may have lost the event"
    error = DataLossError("EHB_EVENTS_LOST", partition=partition, position=position, reason=reason)
    if fail_on_data_loss:
        raise error
    return state.begin, f"{error.reason}. Continuing because failOnDataLoss=false: next={state.begin}"
