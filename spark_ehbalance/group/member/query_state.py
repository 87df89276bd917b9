"""What a query has reported to its member."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spark_ehbalance.group.changes import Checkpoint, Outcome, Reset
from spark_ehbalance.group.model import Load, MemberLoad
from spark_ehbalance.group.position import Position


@dataclass(frozen=True, slots=True)
class Progress:
    """The position up to which the sink has finished a partition under `epoch`."""

    epoch: int
    position: Position


@dataclass(frozen=True, slots=True)
class QueryState:
    """The state of a query as far as its member must know it. Each method returns the state after what its name says.

    `progress` and `resets` are by partition, and stay until they are committed. `in_flight` are the partitions of
    the current batch, which began at monotonic time `batch_began`. `loads` are moving averages by partition, `load`
    is that of the member. `leaving`: the query takes no new partitions and gives its own back. `batch` is the
    number of the last batch that the sink has finished, `begun` of the last one that it was given, which the run
    `planner` has planned. `asked_ms` and `left_out` are those of `Member`.
    """

    progress: Mapping[str, Progress] = field(default_factory=dict)
    resets: Mapping[str, Progress] = field(default_factory=dict)
    in_flight: frozenset[str] = frozenset()
    batch_began: float = 0.0
    loads: Mapping[str, Load] = field(default_factory=dict)
    load: MemberLoad | None = None
    leaving: bool = False
    progress_since_read: bool = False
    reset_since_read: bool = False
    batch: int = 0
    begun: int = 0
    planner: str = ""
    asked_ms: int | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    def finished(self, progress: Mapping[str, Progress], batch: int) -> QueryState:
        """The batch with this number has ended, and the sink has finished `progress`."""
        return replace(
            self,
            batch=batch,
            progress={**self.progress, **progress},
            in_flight=frozenset(),
            progress_since_read=self.progress_since_read or bool(progress),
        )

    def reset(self, resets: Mapping[str, Progress]) -> QueryState:
        """Reading goes on at `resets`, which may be further back, whatever was finished before."""
        return replace(
            self,
            progress={p: progress for p, progress in self.progress.items() if p not in resets},
            resets={**self.resets, **resets},
            reset_since_read=self.reset_since_read or bool(resets),
        )

    def after_read(self) -> QueryState:
        """The member has taken in what was reported."""
        return replace(self, progress_since_read=False, reset_since_read=False)

    def after_commit(self, outcome: Outcome) -> QueryState:
        """What was committed or refused need not be written again."""
        if not (self.progress or self.resets):
            return self
        progress, resets = dict(self.progress), dict(self.resets)
        for transition in (*outcome.accepted, *(refused.transition for refused in outcome.rejected)):
            if isinstance(transition, (Checkpoint, Reset)):
                waiting = progress if isinstance(transition, Checkpoint) else resets
                if waiting.get(transition.partition) == Progress(transition.epoch, transition.position):
                    del waiting[transition.partition]
        return replace(self, progress=progress, resets=resets)
