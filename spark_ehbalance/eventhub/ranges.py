"""Ranges of events: how much of each partition a batch reads, in how many pieces, and from where. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

from spark_ehbalance.errors import DataLossError
from spark_ehbalance.eventhub.metadata import PartitionState

#: Event Hubs allows 5 readers without owner level of a partition and group; one is left for a second attempt of a task.
MAX_PIECES = 4


@dataclass(frozen=True, slots=True)
class Range:
    """The events of one partition from sequence number `start` up to but not including `end`.

    `epoch` is that of the lease under which they are read, 0 without leases; `since_ms` is the `owned_since_ms` of that
    lease, 0 where it is not known. The length is `end - start`, which is more than the number of events where sequence
    numbers have gaps.

    In a hub whose offsets are texts (a geo-replicated one), `start_offset` and `end_offset` are those of the last event
    before `start` and before `end`, as far as they are known; else None.
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
    """The number of events to read of each partition: `limit` together, in proportion to the backlogs.

    As with maxOffsetsPerTrigger of Spark's Kafka source, each partition with a backlog gets one event at least, so that
    none starves beside a large one, even if these are more than `limit`.
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
    # Largest remainder method: the events left over by rounding down go to the partitions that lost most by it.
    by_remainder = sorted(rest, key=lambda p: (-(left * rest[p] % total_rest), p))
    for partition in by_remainder[: limit - sum(counts.values())]:
        counts[partition] += 1
    return counts


def split(ranges: list[Range], min_pieces: int | None) -> list[Range]:
    """`ranges` cut into at least `min_pieces`, larger ones into more, as with minPartitions of Spark's Kafka source.

    No range is cut into more pieces than Event Hubs allows readers of a partition at once.
    """
    counts = [1] * len(ranges)
    # The range with the largest pieces gets one piece more, until there are enough.
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
            Range(whole.partition, whole.epoch, *cut, whole.since_ms, *map(offsets.get, cut)) for cut in pairwise(edges)
        ]
    return pieces


def retained_start(
    partition: str, position: int, state: PartitionState, fail_on_data_loss: bool, *, is_known: bool = True
) -> tuple[int, str]:
    """The sequence number at which reading of `partition` goes on, and a warning ("" if it is `position`).

    A `position` before the first retained event, or after the last one (the hub was recreated), means that events are
    lost; so does one behind an event that the hub does not have (not `is_known`). Raises `DataLossError` for that if
    `fail_on_data_loss`.
    """
    if is_known and state.begin <= position <= state.end:
        return position, ""
    if position < state.begin:
        why = f"the first retained event is {state.begin}: it has aged out"
    elif position > state.end:
        why = f"the last event is {state.end - 1}: the event hub was recreated"
    else:
        why = "the hub has no event at the offset before it: a promotion to another region may have lost it"
    what = f"partition {partition}: reading was to go on at sequence number {position}, but {why}"
    if fail_on_data_loss:
        raise DataLossError(f"{what}. Set failOnDataLoss=false to go on at {state.begin}")
    return state.begin, f"{what}. Going on at {state.begin}, because failOnDataLoss=false"
