"""Ranges of events: what a batch reads. Pure: how much of each partition, and in how many tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

from spark_ehbalance.errors import DataLossError
from spark_ehbalance.hub.metadata import PartitionState


@dataclass(frozen=True, slots=True)
class Range:
    """The events of one partition from sequence number `start` up to but not including `end`.

    `epoch` is that of the lease under which it is read; 0 without leases.
    """

    partition: str
    epoch: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def limit_by_backlog(backlogs: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """How many events of each partition to read, at most `limit` together, in proportion to the backlogs.

    As Spark's Kafka source does with maxOffsetsPerTrigger. Each partition with a backlog gets at least one event as
    long as the limit allows it, so that none starves beside a large one; only the rest is in proportion.
    """
    total = sum(backlogs.values())
    if limit is None or total <= limit:
        return dict(backlogs)
    first = {partition: min(backlog, 1) for partition, backlog in backlogs.items()}
    if sum(first.values()) > limit:
        first = dict.fromkeys(backlogs, 0)
    rest = {partition: backlog - first[partition] for partition, backlog in backlogs.items()}
    share, of = limit - sum(first.values()), sum(rest.values())
    counts = {partition: first[partition] + share * more // of for partition, more in rest.items()}
    # What rounding has left goes to those who lost most by it.
    by_loss = sorted(rest, key=lambda p: (-(share * rest[p] % of), p))
    for partition in by_loss[: limit - sum(counts.values())]:
        counts[partition] += 1
    return counts


def split(ranges: list[Range], least: int | None) -> list[Range]:
    """`ranges` cut into at least `least` pieces, the larger ones into more, as Kafka's minPartitions does.

    No range is cut into more pieces than Event Hubs allows readers of a partition at once.
    """
    counts = [1] * len(ranges)
    # Whatever has the largest pieces gets one more, until there are enough of them.
    pieces_of = [(-float(len(whole)), index) for index, whole in enumerate(ranges) if len(whole) > 1]
    heapify(pieces_of)
    for _ in range(0 if least is None else least - len(ranges)):
        if not pieces_of:
            break
        _, index = heappop(pieces_of)
        counts[index] += 1
        if counts[index] < min(MOST_PIECES, len(ranges[index])):
            heappush(pieces_of, (-len(ranges[index]) / counts[index], index))
    pieces = []
    for whole, count in zip(ranges, counts, strict=True):
        edges = [whole.start + len(whole) * i // count for i in range(count + 1)]
        pieces += [Range(whole.partition, whole.epoch, *cut) for cut in pairwise(edges)]
    return pieces


#: Event Hubs serves 5 readers without owner level of a partition and group; one place is left for a task run twice.
MOST_PIECES = 4


def retained_start(partition: str, position: int, state: PartitionState, fail_on_data_loss: bool) -> tuple[int, str]:
    """Where reading of `partition` really goes on, and a warning ("" if all is well).

    A `position` before the first retained event, or beyond the end (of a hub made anew), means that events are lost.
    Raises `DataLossError` for that if `fail_on_data_loss`.
    """
    if state.begin <= position <= state.end:
        return position, ""
    where = f"partition {partition}: reading was to go on at sequence number {position}"
    if position < state.begin:
        found, what = state.begin, f"{where}, but the first retained event is {state.begin}: it has aged out"
    else:
        found, what = state.begin, f"{where}, but the last event is {state.end - 1}: the event hub was made anew"
    if fail_on_data_loss:
        raise DataLossError(f"{what}. Set failOnDataLoss=false to go on at {found}")
    return found, f"{what}. Going on at {found}, because failOnDataLoss=false"
