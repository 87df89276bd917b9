"""What a query tells its member, as one immutable value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from spark_ehbalance.leases.model import Load, MemberLoad
from spark_ehbalance.leases.transitions import Checkpoint, Reset, Transition
from spark_ehbalance.values.position import Position


@dataclass(frozen=True, slots=True)
class Progress:
    """The position up to which the sink has finished a partition under `epoch`."""

    epoch: int
    position: Position


@dataclass(frozen=True, slots=True)
class QueryState:
    """The state of a query as far as its member must know it. Methods return the next state.

    `progress` and `resets` are by partition, and stay until they are committed. `in_flight` are the partitions of the
    current batch, which began at monotonic time `batch_began`. `loads` are by partition, `load` is the member's in all.
    `leaving`: the query takes no new partitions and gives its own back.
    """

    progress: Mapping[str, Progress] = field(default_factory=dict)
    resets: Mapping[str, Progress] = field(default_factory=dict)
    in_flight: frozenset[str] = frozenset()
    batch_began: float = 0.0
    loads: Mapping[str, Load] = field(default_factory=dict)
    load: MemberLoad | None = None
    leaving: bool = False

    def batch_reserved(self, partitions: frozenset[str], now: float) -> QueryState:
        """A batch with `partitions` begins."""
        return replace(self, in_flight=partitions, batch_began=now)

    def batch_finished(self, progress: Mapping[str, Progress]) -> QueryState:
        """No batch is in flight, and the sink has finished `progress`."""
        return replace(self, progress={**self.progress, **progress}, in_flight=frozenset())

    def reset(self, resets: Mapping[str, Progress]) -> QueryState:
        """Reading goes on at `resets`, whatever was finished before."""
        progress = {p: each for p, each in self.progress.items() if p not in resets}
        return replace(self, progress=progress, resets={**self.resets, **resets})

    def restored(self, progress: Mapping[str, Progress]) -> QueryState:
        """`progress` must be committed again, except where there is newer progress or a reset."""
        again = {p: each for p, each in progress.items() if p not in self.resets}
        return replace(self, progress={**again, **self.progress})

    def committed(self, transitions: Iterable[Transition]) -> QueryState:
        """`transitions` were committed or refused: in both cases they need not be written again."""
        progress, resets = dict(self.progress), dict(self.resets)
        for each in transitions:
            if isinstance(each, Checkpoint) and progress.get(each.partition) == Progress(each.epoch, each.position):
                del progress[each.partition]
            elif isinstance(each, Reset) and resets.get(each.partition) == Progress(each.epoch, each.position):
                del resets[each.partition]
        return replace(self, progress=progress, resets=resets)
