"""What a query has told its member."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_ehbalance.group.changes import Checkpoint, Outcome, Reset
from spark_ehbalance.group.model import Load, MemberLoad
from spark_ehbalance.group.position import Position


@dataclass(frozen=True, slots=True)
class Progress:
    """The position up to which the sink has finished a partition under `epoch`."""

    epoch: int
    position: Position


@dataclass(slots=True)
class QueryState:
    """The state of a query as far as its member must know it.

    `progress` and `resets` are by partition, and stay until they are committed. `in_flight` are the partitions of
    the current batch, which began at monotonic time `batch_began`. `loads` are moving averages by partition, `load`
    is that of the member. `leaving`: the query takes no new partitions and gives its own back. `batch` is the
    number of the last batch that the sink has finished, `begun` of the last one that it was given, which the run
    `planner` has planned. `asked_ms` and `left_out` are those of `Member`.
    """

    progress: dict[str, Progress] = field(default_factory=dict)
    resets: dict[str, Progress] = field(default_factory=dict)
    in_flight: frozenset[str] = frozenset()
    batch_began: float = 0.0
    loads: Mapping[str, Load] = field(default_factory=dict)
    load: MemberLoad | None = None
    leaving: bool = False
    progress_since_look: bool = False
    reset_since_look: bool = False
    batch: int = 0
    begun: int = 0
    planner: str = ""
    asked_ms: int | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    def begin(self, batch: int, planner: str) -> None:
        """The sink is given the batch with this number, planned by that run."""
        self.begun, self.planner = batch, planner

    def finish(self, progress: Mapping[str, Progress], batch: int = 0) -> None:
        """The batch with this number has ended, and the sink has finished `progress`."""
        self.batch = batch
        self.progress |= progress
        self.in_flight = frozenset()
        self.progress_since_look |= bool(progress)

    def reset(self, resets: Mapping[str, Progress]) -> None:
        """Reading goes on at `resets`, which may be further back, whatever was finished before."""
        for partition in resets:
            self.progress.pop(partition, None)
        self.resets |= resets
        self.reset_since_look |= bool(resets)

    def on_committed(self, outcome: Outcome) -> None:
        """What was committed or refused need not be written again."""
        if not (self.progress or self.resets):
            return
        for each in (*outcome.accepted, *(refused.transition for refused in outcome.refused)):
            if isinstance(each, (Checkpoint, Reset)):
                waiting = self.progress if isinstance(each, Checkpoint) else self.resets
                if waiting.get(each.partition) == Progress(each.epoch, each.position):
                    del waiting[each.partition]
