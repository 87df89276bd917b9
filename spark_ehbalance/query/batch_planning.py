"""Plans the next batch of a streaming query. Does no I/O; `QueryEngine` applies the plan.

`plan_batch` returns a `BatchPlan`, or a `Request` if the hub's states are too old for a plan. The engine then
carries out the request and plans again; each request is returned at most once.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.eventhub.ranges import OffsetRange, limit_by_backlog, retained_start
from spark_ehbalance.group.member.membership import OwnedLease
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.position import Position, names_event
from spark_ehbalance.query.tasks import EVENTS_PER_TASK

_Checkpoint = TypeVar("_Checkpoint", Position, "Position | None")


class Request(enum.Enum):
    """What to request from the hub before planning again."""

    #: The states of the owned partitions, because a position is outside the last known range of retained events.
    #: Another member may have set the position since then.
    REFRESH = enum.auto()
    #: The newest events of the owned partitions, if the hub answers soon, so that the next batch includes the events
    #: that arrived during the last one.
    CATCH_UP = enum.auto()


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """The inputs of a batch plan.

    `progress` is the sink's progress, which may be ahead of the checkpoints in `owned`. `fixed_ends` are the ends at
    which reading stops (`Trigger.AvailableNow`), and `limit` is the maximum number of events.
    """

    owned: Mapping[str, OwnedLease]
    states: Mapping[str, PartitionState]
    progress: Mapping[str, Progress] = field(default_factory=dict)
    fixed_ends: Mapping[str, int] | None = None
    limit: int | None = None
    fail_on_data_loss: bool = True
    #: A batch has ended since the last plan, and newer events have not been requested yet.
    batch_ended: bool = False
    #: The states are newer than `owned`.
    refreshed: bool = False
    #: Partitions to omit, because it is unknown whether a geo-replicated hub has the event before their position.
    unverified: Collection[str] = ()
    #: Sequence numbers at which reading of stalled partitions stops.
    readable: Mapping[str, int] = field(default_factory=dict)

    def after(self, answered: Request, states: Mapping[str, PartitionState]) -> PlanInputs:
        """The inputs after the hub has responded to the request `answered` with `states`."""
        if answered is Request.REFRESH:
            return replace(self, states=states, refreshed=True)
        return replace(self, states=states, batch_ended=False)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The range of every owned partition whose state is known, with or without events.

    `resets` are positions moved to retained events (failOnDataLoss=false), each with a warning.
    """

    ranges: Mapping[str, OffsetRange]
    resets: Mapping[str, Progress] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def plan_batch(inputs: PlanInputs) -> BatchPlan | Request:
    """The next batch, or a request to send to the hub first. With `fail_on_data_loss`, raises `DataLossError` if events
    are lost."""
    known = {p: position for p, position in positions_of(inputs).items() if p not in inputs.unverified}
    if not inputs.refreshed and any(
        not inputs.states[p].begin <= position.next <= inputs.states[p].end for p, position in known.items()
    ):
        return Request.REFRESH
    resets, warnings = dict[str, Progress](), list[str]()
    positions = dict[str, int]()
    for partition, position in known.items():
        state = inputs.states[partition]
        positions[partition], warning = retained_start(partition, position.next, state, inputs.fail_on_data_loss)
        if warning:
            warnings.append(warning)
            resets[partition] = Progress(inputs.owned[partition].epoch, Position.before(positions[partition]))
    backlogs = _backlogs(inputs, positions)
    enough = EVENTS_PER_TASK if inputs.limit is None else min(inputs.limit, EVENTS_PER_TASK)
    if inputs.batch_ended and inputs.fixed_ends is None and sum(backlogs.values()) < enough:
        return Request.CATCH_UP
    counts = limit_by_backlog(backlogs, inputs.limit)
    ranges = {
        partition: _with_offsets(
            _range(partition, inputs.owned[partition], start, start + counts.get(partition, 0)),
            known[partition],
            inputs.states[partition],
        )
        for partition, start in positions.items()
    }
    return BatchPlan(ranges, resets, tuple(warnings))


def omitted_partitions(
    ranges: Mapping[str, OffsetRange],
    owned: Iterable[str],
    states: Mapping[str, PartitionState],
    *,
    available_now: bool,
) -> dict[str, str]:
    """The `owned` partitions that may have a backlog but are not in a batch of these `ranges`, each with the reason:
    `state` (it is unknown), `position` (the hub may no longer have its event) or `limit` (it is reached). `limit` does
    not occur with Trigger.AvailableNow, which leaves later events to the next run."""
    out = {}
    for partition in owned:
        state, planned = states.get(partition), ranges.get(partition)
        if state is None or planned is None:
            out[partition] = "state" if state is None else "position"
        elif not len(planned) and planned.start < state.end and not available_now:
            out[partition] = "limit"
    return out


def _with_offsets(planned: OffsetRange, before: Position, state: PartitionState) -> OffsetRange:
    """The range with the known offsets of the events before its start and its end."""
    start = before.offset if names_event(before.offset) and before.next == planned.start else None
    end = state.last_offset if planned.end == state.end and names_event(state.last_offset) else None
    return replace(planned, start_offset=start, end_offset=end if len(planned) else start) if start or end else planned


def _range(partition: str, holding: OwnedLease, start: int, end: int) -> OffsetRange:
    return OffsetRange(partition, holding.epoch, start, end, holding.since_ms)


def progress_of(ranges: Mapping[str, OffsetRange]) -> dict[str, Progress]:
    """The progress of a query whose sink has finished `ranges`."""
    return {p: Progress(range_.epoch, Position(range_.end - 1, range_.end_offset)) for p, range_ in ranges.items()}


def positions_of(inputs: PlanInputs) -> dict[str, Position]:
    """The position at which to continue reading each owned partition whose state is known."""
    return {
        partition: position_in_epoch(holding.epoch, inputs.progress.get(partition), holding.checkpoint)
        for partition, holding in inputs.owned.items()
        if partition in inputs.states
    }


def position_in_epoch(epoch: int, progress: Progress | None, checkpoint: _Checkpoint) -> Position | _Checkpoint:
    """Where reading continues under a lease with this `epoch`: after the progress made in that epoch, or else at the
    checkpoint."""
    return progress.position if progress is not None and progress.epoch == epoch else checkpoint


def _backlogs(inputs: PlanInputs, positions: Mapping[str, int]) -> dict[str, int]:
    """The number of events to read from each partition that has any."""
    ends = {p: min(inputs.states[p].end, inputs.readable.get(p, inputs.states[p].end)) for p in positions}
    if inputs.fixed_ends is not None:
        ends = {partition: min(end, inputs.fixed_ends.get(partition, 0)) for partition, end in ends.items()}
    return {p: ends[p] - position for p, position in positions.items() if ends[p] > position}
