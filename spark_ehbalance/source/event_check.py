"""Whether a geo-replicated hub still has the events before a query's positions: a promotion may have taken them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from spark_ehbalance.errors import DataLossError
from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.hub.resolve import Unlocated
from spark_ehbalance.member.membership import Holding
from spark_ehbalance.source.batch_planning import BatchPlan, PlanInputs, doubts
from spark_ehbalance.source.promotion import PROMOTION_HELP, promotion_loss
from spark_ehbalance.source.ranges import Range
from spark_ehbalance.text import logger
from spark_ehbalance.values.position import Position, names_event, partition_order

_LOG = logger(__name__)


class Hub(Protocol):
    """What is asked of the hub; see `HubWatcher`."""

    def states(self) -> Mapping[str, PartitionState]: ...
    def connected_at(self) -> float: ...
    def offsets(
        self, positions: Mapping[str, int], owner_level: int | Mapping[str, int | None]
    ) -> Mapping[str, str]: ...
    def locate(
        self, positions: Mapping[str, Position], owner_levels: Mapping[str, int | None]
    ) -> Mapping[str, int | Unlocated]: ...


class EventCheck:
    """Asks the hub for events by their offsets, and remembers what it has found. In a hub whose offsets are numbers it
    has nothing to do. `owner_level` is that of the query's readers, by the lease's epoch."""

    def __init__(self, hub: Hub, owner_level: Callable[[int], int | None], *, fail_on_data_loss: bool) -> None:
        self._hub = hub
        self._owner_level = owner_level
        self.fail_on_data_loss = fail_on_data_loss
        self._verified: dict[str, tuple[int, float]] = {}
        self._awaited: dict[str, tuple[Position, int]] = {}

    def known(self, inputs: PlanInputs) -> PlanInputs:
        """The inputs with what is known already."""
        awaited = {} if self.fail_on_data_loss else dict(self._awaited)
        return replace(inputs, verified=self._verified, connection=self._hub.connected_at(), awaited=awaited)

    def located(self, inputs: PlanInputs) -> PlanInputs:
        """The inputs with where the hub goes on after the doubtful positions, as far as that could be found out."""
        (doubtful, lost), states = doubts(inputs), inputs.states
        located = dict(self._hub.locate(doubtful, self._levels(inputs.holdings, doubtful)))
        for partition in [p for p, found in located.items() if found is Unlocated.NOTHING_YET]:
            position, end = self._awaited.pop(partition, (None, 0))
            if partition not in lost:
                del located[partition]  # it is only late
            elif position == lost[partition] and end < states[partition].end:
                located[partition] = Unlocated.UNKNOWN  # an event has come, and not there
            else:
                self._awaited[partition] = lost[partition], states[partition].end
        for partition, found in located.items():
            if found == doubtful[partition].next:
                self._verified[partition] = inputs.holdings[partition].epoch, inputs.connection
        return replace(inputs, located=located)

    def without_lost(self, replay: Mapping[str, Range]) -> dict[str, Range]:
        """`replay` without the partitions that do not go on where they were planned to: the next batch reads them.
        Raises `DataLossError` if that is an error."""
        starts = {p: Position(e.start - 1, e.start_offset) for p, e in replay.items() if names_event(e.start_offset)}
        if not starts:
            return dict(replay)
        located, states = self._hub.locate(starts, self._levels(replay, starts)), self._hub.states()
        gone = {
            p: promotion_loss(p, starts[p].next, found, states[p])
            for p, found in located.items()
            if found not in (starts[p].next, Unlocated.NOTHING_YET)
        }
        if gone and self.fail_on_data_loss:
            raise DataLossError(f"{'; '.join(each.what for each in gone.values())}. {PROMOTION_HELP}")
        return {partition: each for partition, each in replay.items() if partition not in gone}

    def with_end_offsets(self, plan: BatchPlan, states: Mapping[str, PartitionState]) -> BatchPlan:
        """The plan with the offsets of the last events, where they are needed to go on after them: those of events that
        are not a partition's newest have to be looked up."""
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
