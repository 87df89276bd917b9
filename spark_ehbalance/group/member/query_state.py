"""State reported by the query to its group member."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from spark_ehbalance.group.changes import Checkpoint, Outcome, Reset
from spark_ehbalance.group.model import Load, MemberLoad
from spark_ehbalance.group.position import Position


@dataclass(frozen=True, slots=True)
class Progress:
    """The position up to which the sink finished a partition under `epoch`."""

    epoch: int
    position: Position


@dataclass(frozen=True, slots=True)
class QueryState:
    """State reported by a query; methods return the next state.

    `progress` and `resets` map partitions to positions that are not committed yet; `progress_before_read` is the
    `progress` when the last read of the table began. `in_flight` are the partitions of the current batch, which began
    at monotonic time `batch_began`. `to_replay` are those of the batch that an earlier process logged but did not
    finish, until Spark requests it again. `loads` are the loads of the partitions, and `load` is the member's.
    `leaving`: the query takes no new partitions and releases its own. `batch` is the last batch that the sink finished,
    `begun` is the last batch given to the sink, and `planner` is the run that planned `begun`.
    For `asked_ms` and `left_out`, see `Member`.
    """

    progress: Mapping[str, Progress] = field(default_factory=dict)
    progress_before_read: Mapping[str, Progress] = field(default_factory=dict)
    resets: Mapping[str, Progress] = field(default_factory=dict)
    in_flight: frozenset[str] = frozenset()
    batch_began: float = 0.0
    to_replay: frozenset[str] = frozenset()
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
        """The state after the batch ended and the sink finished `progress`."""
        return replace(
            self,
            batch=batch,
            progress={**self.progress, **progress},
            in_flight=frozenset(),
            to_replay=frozenset(),
            progress_since_read=self.progress_since_read or bool(progress),
        )

    def reset(self, resets: Mapping[str, Progress]) -> QueryState:
        """The state after a reset of positions, which discards earlier progress."""
        return replace(
            self,
            progress={p: progress for p, progress in self.progress.items() if p not in resets},
            progress_before_read={p: progress for p, progress in self.progress_before_read.items() if p not in resets},
            resets={**self.resets, **resets},
            reset_since_read=self.reset_since_read or bool(resets),
        )

    def before_read(self) -> QueryState:
        """The state when the member's read begins."""
        return replace(self, progress_before_read=self.progress)

    @property
    def progress_during_read(self) -> frozenset[str]:
        """The partitions with progress since the member's last read began."""
        return frozenset(p for p, progress in self.progress.items() if self.progress_before_read.get(p) != progress)

    def after_read(self, unread: Collection[str] = ()) -> QueryState:
        """The state after the member's read. The checkpoints of the partitions `unread` wait for the next one."""
        return replace(self, progress_since_read=bool(unread), reset_since_read=False)

    def after_commit(self, outcome: Outcome) -> QueryState:
        """The state without the progress and resets that `outcome` accepted or rejected."""
        if not (self.progress or self.resets):
            return self
        progress, resets = dict(self.progress), dict(self.resets)
        for transition in (*outcome.accepted, *(rejection.transition for rejection in outcome.rejected)):
            if isinstance(transition, (Checkpoint, Reset)):
                waiting = progress if isinstance(transition, Checkpoint) else resets
                if waiting.get(transition.partition) == Progress(transition.epoch, transition.position):
                    del waiting[transition.partition]
        return replace(self, progress=progress, resets=resets)
