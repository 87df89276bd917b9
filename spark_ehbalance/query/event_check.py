"""Checks that a geo-replicated hub still has the events at a query's positions, because a promotion may have lost them.
Does no I/O.

The check compares offsets after every new connection and every change of owner, because a promotion ends all
connections. Numeric offsets are not compared, because they are valid in only one region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from spark_ehbalance.errors import DataLossError
from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.member.membership import OwnedLease
from spark_ehbalance.group.position import Position, names_event, partition_order
from spark_ehbalance.query.batch_planning import BatchPlan
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Partition → the epoch and the connection under which the event at its position was last found.
Verified = Mapping[str, tuple[int, float]]


def unverified_positions(
    positions: Mapping[str, Position],
    owned: Mapping[str, OwnedLease],
    states: Mapping[str, PartitionState],
    connection: float,
    verified: Verified,
) -> dict[str, Position]:
    """The positions whose events must be looked up before reading continues there."""
    return {
        partition: position
        for partition, position in positions.items()
        if names_event(position.offset)
        and states[partition].begin < position.next
        and verified.get(partition) != (owned[partition].epoch, connection)
    }


def bounds(replay: Mapping[str, OffsetRange]) -> tuple[dict[str, Position], dict[str, Position]]:
    """The positions at the starts and at the ends of the ranges, without positions whose offset does not identify an
    event."""
    starts = {p: Position(range_.start - 1, range_.start_offset) for p, range_ in replay.items()}
    ends = {p: Position(range_.end - 1, range_.end_offset) for p, range_ in replay.items()}
    return _naming(starts), _naming(ends)


def _naming(positions: Mapping[str, Position]) -> dict[str, Position]:
    return {partition: position for partition, position in positions.items() if names_event(position.offset)}


def known_events(
    positions: Mapping[str, Position], found: Mapping[str, bool], states: Mapping[str, PartitionState]
) -> dict[str, bool]:
    """Partition → whether the hub has the event before its position. Contains only partitions for which this is known,
    from the hub's answer in `found` or because the newer `states` rule the event out."""
    known = dict(found)
    for partition in positions.keys() - found.keys():
        state, position = states.get(partition), positions[partition]
        if state is None:  # the hub was promoted, and its state has not been requested since
            continue
        if state.end < position.next or (state.end == position.next and state.last_offset != position.offset):
            known[partition] = False
    return known


def check_events_exist(positions: Mapping[str, Position], known: Mapping[str, bool]) -> None:
    """Raise `DataLossError` if the hub does not have the event before one of `positions`."""
    if lost := sorted((p for p in positions if known.get(p) is False), key=partition_order):
        events = ", ".join(f"{positions[p].sequence_number} of partition {p}" for p in lost)
        raise DataLossError("EHB_POSITION_UNKNOWN", events=events)


def replayable(
    replay: Mapping[str, OffsetRange],
    found: Iterable[Mapping[str, bool]],
    states: Mapping[str, PartitionState],
    sought: Callable[[str], bool],
) -> dict[str, OffsetRange]:
    """`replay` without the partitions whose events before the `bounds` are lost, but which a seek has moved since: the
    next batch reads these from the new position. Raises `DataLossError` if such an event is lost and no seek has moved
    the partition since."""
    gone = set[str]()
    for positions, answer in zip(bounds(replay), found, strict=True):
        known = known_events(positions, answer, states)
        check_events_exist({p: position for p, position in positions.items() if not sought(p)}, known)
        gone.update(p for p in positions if known.get(p) is False)
    return {partition: range_ for partition, range_ in replay.items() if partition not in gone}


def ends_without_offset(plan: BatchPlan, states: Mapping[str, PartitionState]) -> dict[str, int]:
    """Partition → the last event of its range, if that event is not the partition's newest, so that its offset must be
    looked up. Later checks compare positions with these offsets."""
    return {
        partition: range_.end - 1
        for partition, range_ in plan.ranges.items()
        if len(range_) and range_.end_offset is None and names_event(states[partition].last_offset)
    }


def with_end_offsets(plan: BatchPlan, states: Mapping[str, PartitionState], offsets: Mapping[str, str]) -> BatchPlan:
    """The plan with the `offsets` that were found for its `ends_without_offset`."""
    named = {p: offset for p, offset in offsets.items() if names_event(offset)}
    if missing := sorted(ends_without_offset(plan, states).keys() - named.keys(), key=partition_order):
        _LOG.warning(
            "the offsets of the next batch's last events were not found, so if a promotion of the event hub loses "
            "these events, the loss will not be detected: partitions=%s",
            ", ".join(missing),
        )
    ranges = {p: replace(range_, end_offset=named.get(p, range_.end_offset)) for p, range_ in plan.ranges.items()}
    return replace(plan, ranges=ranges)
