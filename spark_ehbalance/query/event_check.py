"""Whether a geo-replicated hub has the events at a query's positions: a promotion may have lost them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.group.member.membership import Holding
from spark_ehbalance.group.mismatch import Mismatch
from spark_ehbalance.group.position import Position, names_event, partition_order
from spark_ehbalance.query.batch_planning import BatchPlan
from spark_ehbalance.text import logger

_LOG = logger(__name__)


class Hub(Protocol):
    """What is asked of the hub; see `HubWatcher`."""

    def states(self) -> Mapping[str, PartitionState]: ...
    def refresh(self, partitions: Iterable[str]) -> None: ...
    def connected_at(self) -> float: ...
    def offsets(
        self, positions: Mapping[str, int], owner_level: int | Mapping[str, int | None]
    ) -> Mapping[str, str]: ...
    def has_events(
        self, positions: Mapping[str, Position], owner_levels: Mapping[str, int | None]
    ) -> Mapping[str, bool]: ...


class EventCheck:
    """Compares offsets with the hub's, after every new connection and change of owner: a promotion ends all
    connections. Offsets that are numbers are not compared. `owner_level` is that of the query's readers, by epoch."""

    def __init__(self, hub: Hub, owner_level: Callable[[int], int | None]) -> None:
        self._hub = hub
        self._owner_level = owner_level
        self._verified: dict[str, tuple[int, float]] = {}

    def unverified(self, positions: Mapping[str, Position], holdings: Mapping[str, Holding]) -> set[str]:
        """The partitions whose event the hub has not returned in time. Raises `DataLossError` for unknown ones."""
        states, connection = self._hub.states(), self._hub.connected_at()
        doubtful = {
            partition: position
            for partition, position in positions.items()
            if names_event(position.offset)
            and states[partition].begin < position.next
            and self._verified.get(partition) != (holdings[partition].epoch, connection)
        }
        known = self._known(doubtful, holdings)
        if unknown := {p: each for p, each in doubtful.items() if known.get(p) is False}:
            raise _lost(unknown)
        self._verified |= {p: (holdings[p].epoch, connection) for p in known}
        return doubtful.keys() - known.keys()

    def replayable(self, replay: Mapping[str, Range], sought: Callable[[str], bool]) -> dict[str, Range]:
        """`replay` without the partitions that were `sought` since and do not have the events before their bounds any
        more: the next batch reads them. Raises `DataLossError` for any other of these."""
        bounds = [{p: Position(e.start - 1, e.start_offset) for p, e in replay.items()}]
        bounds += [{p: Position(e.end - 1, e.end_offset) for p, e in replay.items()}]
        unknown: dict[str, Position] = {}
        for positions in bounds:
            named = {p: each for p, each in positions.items() if names_event(each.offset)}
            known = self._known(named, replay)
            unknown |= {p: each for p, each in named.items() if known.get(p) is False}
        if lost := {p: each for p, each in unknown.items() if not sought(p)}:
            raise _lost(lost)
        return {partition: each for partition, each in replay.items() if partition not in unknown}

    def _known(self, positions: Mapping[str, Position], owned: Mapping[str, Range | Holding]) -> dict[str, bool]:
        if not positions:
            return {}
        known = dict(self._hub.has_events(positions, self._levels(owned, positions)))
        if silent := positions.keys() - known.keys():
            self._hub.refresh(silent)
            for partition in silent:
                state, position = self._hub.states()[partition], positions[partition]
                if state.end < position.next or (state.end == position.next and state.last_offset != position.offset):
                    known[partition] = False
        return known

    def with_end_offsets(self, plan: BatchPlan, states: Mapping[str, PartitionState]) -> BatchPlan:
        """The plan with the offsets of the last events, with which the next positions are compared: those of events
        that are not a partition's newest are looked up."""
        unknown = {
            partition: each.end - 1
            for partition, each in plan.ranges.items()
            if len(each) and each.end_offset is None and names_event(states[partition].last_offset)
        }
        if not unknown:
            return plan
        offsets = self._hub.offsets(unknown, self._levels(plan.ranges, unknown))
        found = {p: offset for p, offset in offsets.items() if names_event(offset)}
        if missing := sorted(unknown.keys() - found.keys(), key=partition_order):
            _LOG.warning(
                "partitions %s: the offsets of the last events of the next batch were not found: a promotion of the "
                "event hub that takes these events away would not be noticed",
                ", ".join(missing),
            )
        return replace(
            plan, ranges={p: replace(e, end_offset=found.get(p, e.end_offset)) for p, e in plan.ranges.items()}
        )

    def offset_of(self, partition: str, number: int, read: Mapping[str, Range]) -> str | None:
        """The offset of an event of a partition that is `read`; None if it was not found in time."""
        return self._hub.offsets({partition: number}, self._levels(read, [partition])).get(partition)

    def _levels(self, owned: Mapping[str, Range | Holding], partitions: Iterable[str]) -> dict[str, int | None]:
        return {partition: self._owner_level(owned[partition].epoch) for partition in partitions}


def _lost(unknown: Mapping[str, Position]) -> Exception:
    events = [f"{unknown[p].sequence_number} of partition {p}" for p in sorted(unknown, key=partition_order)]
    return Mismatch("EHB_POSITION_UNKNOWN", {"events": ", ".join(events)}).error()
