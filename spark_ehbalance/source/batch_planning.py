"""What the next batch of a streaming query reads. Pure: values in, a value out; `Planner` carries it out.

`plan_batch` returns a `BatchPlan`, or a `Request` where the hub's states are too old to plan with. The planner then
asks the hub and plans again; each request is returned once at most.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from spark_ehbalance.errors import DataLossError
from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.hub.resolve import Unlocated
from spark_ehbalance.member.membership import Holding
from spark_ehbalance.member.query import Progress
from spark_ehbalance.source.promotion import PROMOTION_HELP, PromotionLoss, promotion_loss
from spark_ehbalance.source.ranges import Range, limit_by_backlog, retained_start
from spark_ehbalance.source.tasks import EVENTS_PER_TASK
from spark_ehbalance.values.position import Position, names_event


class Request(enum.Enum):
    """What to ask the hub before planning again."""

    #: The states of the owned partitions. A position lies outside the retained events as last known: another member may
    #: have set it after the hub was asked.
    REFRESH = enum.auto()
    #: The newest events of the owned partitions, if the hub answers soon. A batch has ended, and the events that
    #: arrived meanwhile are to be in the next one, which with a long trigger does not come soon.
    CATCH_UP = enum.auto()
    #: Where the hub goes on after positions that it may not have any more: it may have been promoted, and have lost
    #: events.
    LOCATE = enum.auto()


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """All that a batch is planned from.

    `progress` is what the sink has finished, which may be ahead of the checkpoints in `holdings`. `fixed_ends` are the
    sequence numbers at which reading ends for good (`Trigger.AvailableNow`), `limit` the largest number of events.
    """

    holdings: Mapping[str, Holding]
    states: Mapping[str, PartitionState]
    progress: Mapping[str, Progress] = field(default_factory=dict)
    fixed_ends: Mapping[str, int] | None = None
    limit: int | None = None
    fail_on_data_loss: bool = True
    #: A batch has ended since the last plan, and the hub was not asked for newer events yet.
    batch_ended: bool = False
    #: The states are newer than the holdings.
    refreshed: bool = False
    #: The lease's epoch and the connection to the hub with which each partition's event before its position was found
    #: to be there, in a geo-replicated hub. A promotion ends all connections.
    verified: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    connection: float = 0.0
    #: Where the hub goes on after the `doubtful_positions`, by partition, as far as that was found out.
    located: Mapping[str, int | Unlocated] | None = None
    #: Partitions whose position is lost and where nothing had come since, with that position and the hub's end at that
    #: time: they are left out until it has more, without failOnDataLoss.
    awaited: Mapping[str, tuple[Position, int]] = field(default_factory=dict)

    def after(self, answered: Request, states: Mapping[str, PartitionState]) -> PlanInputs:
        """The inputs once the hub has answered that request with `states`."""
        if answered is Request.REFRESH:
            return replace(self, states=states, refreshed=True)
        return replace(self, states=states, batch_ended=False)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The range of every owned partition whose state is known, with or without events.

    `resets` are positions that were moved to retained events (failOnDataLoss=false), one warning for each.
    """

    ranges: Mapping[str, Range]
    resets: Mapping[str, Progress] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def plan_batch(inputs: PlanInputs) -> BatchPlan | Request:
    """The next batch, or what has to be asked first. Raises `DataLossError` where events are lost and that is an
    error."""
    known, (doubtful, lost) = _positions(inputs), doubts(inputs)
    if not inputs.refreshed and (
        lost or any(not inputs.states[p].begin <= each.next <= inputs.states[p].end for p, each in known.items())
    ):
        return Request.REFRESH
    if doubtful and inputs.located is None:
        return Request.LOCATE
    gone = _gone(inputs, doubtful)
    resets, warnings = dict[str, Progress](), list[str]()
    positions = dict[str, int]()
    for partition, position in known.items():
        if partition in gone:
            positions[partition], warning = gone[partition].goes_on, gone[partition].warning
        elif partition in lost or (partition in doubtful and not _is_there(inputs, partition, position)):
            continue  # until it is known, or an event has come
        else:
            state = inputs.states[partition]
            positions[partition], warning = retained_start(partition, position.next, state, inputs.fail_on_data_loss)
        if warning:
            warnings.append(warning)
            resets[partition] = Progress(inputs.holdings[partition].epoch, Position.before(positions[partition]))
    backlogs = _backlogs(inputs, positions)
    enough = EVENTS_PER_TASK if inputs.limit is None else min(inputs.limit, EVENTS_PER_TASK)
    if inputs.batch_ended and inputs.fixed_ends is None and sum(backlogs.values()) < enough:
        return Request.CATCH_UP
    counts = limit_by_backlog(backlogs, inputs.limit)
    ranges = {
        partition: _with_offsets(
            _range(partition, inputs.holdings[partition], start, start + counts.get(partition, 0)),
            known[partition],
            inputs.states[partition],
        )
        for partition, start in positions.items()
    }
    return BatchPlan(ranges, resets, tuple(warnings))


def left_out(
    ranges: Mapping[str, Range],
    owned: Iterable[str],
    states: Mapping[str, PartitionState],
    fixed_ends: Mapping[str, int] | None,
) -> dict[str, str]:
    """Why `owned` partitions are left out of a batch of these `ranges`, although there may be something to read: the
    hub has not told its `state`; its `position` is not found there; `late`: it came after the run of
    Trigger.AvailableNow had begun; or the `limit` is smaller than what is unread."""
    out = {}
    for partition in owned:
        state, planned = states.get(partition), ranges.get(partition)
        if state is None or planned is None:
            out[partition] = "state" if state is None else "position"
        elif not len(planned) and planned.start < state.end:
            if fixed_ends is None:
                out[partition] = "limit"
            elif partition not in fixed_ends:
                out[partition] = "late"
    return out


def doubts(inputs: PlanInputs) -> tuple[dict[str, Position], dict[str, Position]]:
    """The positions to `LOCATE`, and those of them whose event a geo-replicated hub does not have any more, as its
    states tell: another event has its number, or none has."""
    known = _positions(inputs)
    lost = _lost(inputs, known)
    return lost | _unverified(inputs, known), lost


def _lost(inputs: PlanInputs, known: Mapping[str, Position]) -> dict[str, Position]:
    lost = {}
    for partition, position in known.items():
        state = inputs.states[partition]
        if not names_event(position.offset) or not names_event(state.last_offset):
            continue
        if position.next > state.end or (position.next == state.end and position.offset != state.last_offset):
            lost[partition] = position
    return lost


def _unverified(inputs: PlanInputs, known: Mapping[str, Position]) -> dict[str, Position]:
    """The positions of which it is not known whether the hub still has their event: it may have been promoted before
    the partition was taken, or while the connection was lost."""
    return {
        partition: position
        for partition, position in known.items()
        if names_event(position.offset)
        and inputs.states[partition].begin < position.next
        and inputs.verified.get(partition) != (inputs.holdings[partition].epoch, inputs.connection)
    }


def _is_there(inputs: PlanInputs, partition: str, position: Position) -> bool:
    return (inputs.located or {}).get(partition) == position.next


def _gone(inputs: PlanInputs, doubtful: Mapping[str, Position]) -> dict[str, PromotionLoss]:
    """What a promotion has taken of the partitions with doubtful positions. Raises `DataLossError` for all of them
    together, if that is an error."""
    located = inputs.located or {}
    gone = {
        partition: promotion_loss(partition, position.next, located[partition], inputs.states[partition])
        for partition, position in doubtful.items()
        if partition in located
        and located[partition] != position.next
        and (located[partition] is not Unlocated.NOTHING_YET or inputs.fail_on_data_loss)
    }
    if gone and inputs.fail_on_data_loss:
        raise DataLossError(f"{'; '.join(each.what for each in gone.values())}. {PROMOTION_HELP}")
    return gone


def _with_offsets(planned: Range, before: Position, state: PartitionState) -> Range:
    """The range with the offsets that are known of the events before its ends."""
    start = before.offset if names_event(before.offset) and before.next == planned.start else None
    end = state.last_offset if planned.end == state.end and names_event(state.last_offset) else None
    return replace(planned, start_offset=start, end_offset=end if len(planned) else start) if start or end else planned


def _range(partition: str, holding: Holding, start: int, end: int) -> Range:
    return Range(partition, holding.epoch, start, end, holding.since_ms)


def progress_of(ranges: Mapping[str, Range]) -> dict[str, Progress]:
    """The progress of a query whose sink has finished `ranges`."""
    return {p: Progress(each.epoch, Position(each.end - 1, each.end_offset)) for p, each in ranges.items()}


def _positions(inputs: PlanInputs) -> dict[str, Position]:
    """The position in each owned partition whose state is known. Progress counts only under its epoch:
    under another one the checkpoint knows better."""
    positions = {}
    for partition, holding in inputs.holdings.items():
        if partition in inputs.states:
            own = inputs.progress.get(partition)
            known = own.position if own is not None and own.epoch == holding.epoch else holding.checkpoint
            if inputs.awaited.get(partition) != (known, inputs.states[partition].end):
                positions[partition] = known
    return positions


def _backlogs(inputs: PlanInputs, positions: Mapping[str, int]) -> dict[str, int]:
    """The number of events to read of each partition that has any."""
    ends = {partition: inputs.states[partition].end for partition in positions}
    if inputs.fixed_ends is not None:
        ends = {partition: min(end, inputs.fixed_ends.get(partition, 0)) for partition, end in ends.items()}
    return {p: ends[p] - position for p, position in positions.items() if ends[p] > position}
