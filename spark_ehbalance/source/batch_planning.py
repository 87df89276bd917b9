"""What the next batch of a streaming query reads. Pure: values in, a value out; `Planner` carries it out.

`plan_batch` returns a `BatchPlan`, or a `Request` where the hub's states are too old to plan with. The planner then
asks the hub and plans again; each request is returned once at most.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.member.membership import Holding
from spark_ehbalance.member.query import Progress
from spark_ehbalance.source.ranges import Range, limit_by_backlog, retained_start
from spark_ehbalance.source.tasks import EVENTS_PER_TASK
from spark_ehbalance.values.position import Position


class Request(enum.Enum):
    """What to ask the hub before planning again."""

    #: The states of the owned partitions. A position lies outside the retained events as last known: another member may
    #: have set it after the hub was asked.
    REFRESH = enum.auto()
    #: The newest events of the owned partitions, if the hub answers soon. A batch has ended, and the events that
    #: arrived meanwhile are to be in the next one, which with a long trigger does not come soon.
    CATCH_UP = enum.auto()


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
    positions = _positions(inputs)
    if not inputs.refreshed and any(
        not inputs.states[p].begin <= position <= inputs.states[p].end for p, position in positions.items()
    ):
        return Request.REFRESH
    resets, warnings = dict[str, Progress](), list[str]()
    for partition, position in positions.items():
        state = inputs.states[partition]
        positions[partition], warning = retained_start(partition, position, state, inputs.fail_on_data_loss)
        if warning:
            warnings.append(warning)
            resets[partition] = Progress(inputs.holdings[partition].epoch, Position.before(positions[partition]))
    backlogs = _backlogs(inputs, positions)
    enough = EVENTS_PER_TASK if inputs.limit is None else min(inputs.limit, EVENTS_PER_TASK)
    if inputs.batch_ended and inputs.fixed_ends is None and sum(backlogs.values()) < enough:
        return Request.CATCH_UP
    counts = limit_by_backlog(backlogs, inputs.limit)
    ranges = {
        partition: _range(partition, inputs.holdings[partition], start, start + counts.get(partition, 0))
        for partition, start in positions.items()
    }
    return BatchPlan(ranges, resets, tuple(warnings))


def plan_replay(ranges: Mapping[str, Range], holdings: Mapping[str, Holding]) -> dict[str, Range]:
    """What to read again of a batch that an earlier process of the query has logged, with the new epochs.

    That is each partition whose checkpoint is still at the start of its range, and that the query has owned without a
    break since it was logged. Whoever owns or has owned one of the others reads or has read it. If nobody has read it
    meanwhile, the next batch does: the earlier process may have read and written a part of the range only, and a sink
    that has written a batch of this number skips this one.
    """
    return {
        partition: _range(partition, holdings[partition], each.start, each.end)
        for partition, each in ranges.items()
        if partition in holdings
        and holdings[partition].checkpoint.next == each.start
        and _owned_without_break(each, holdings[partition])
    }


def _owned_without_break(logged: Range, holding: Holding) -> bool:
    """Whether nobody else can have owned the partition since the range was logged: the query's new process made the
    only claim since then, or none of the claims since then was another member's."""
    return holding.epoch <= logged.epoch + 1 or 0 < logged.since_ms == holding.since_ms


def _range(partition: str, holding: Holding, start: int, end: int) -> Range:
    return Range(partition, holding.epoch, start, end, holding.since_ms)


def progress_of(ranges: Mapping[str, Range]) -> dict[str, Progress]:
    """The progress of a query whose sink has finished `ranges`."""
    return {partition: Progress(each.epoch, Position.before(each.end)) for partition, each in ranges.items()}


def _positions(inputs: PlanInputs) -> dict[str, int]:
    """The next sequence number of each owned partition whose state is known. Progress counts only under its epoch:
    under another one the checkpoint knows better."""
    positions = {}
    for partition, holding in inputs.holdings.items():
        if partition in inputs.states:
            own = inputs.progress.get(partition)
            known = own.position if own is not None and own.epoch == holding.epoch else holding.checkpoint
            positions[partition] = known.next
    return positions


def _backlogs(inputs: PlanInputs, positions: Mapping[str, int]) -> dict[str, int]:
    """The number of events to read of each partition that has any."""
    ends = {partition: inputs.states[partition].end for partition in positions}
    if inputs.fixed_ends is not None:
        ends = {partition: min(end, inputs.fixed_ends.get(partition, 0)) for partition, end in ends.items()}
    return {p: ends[p] - position for p, position in positions.items() if ends[p] > position}
