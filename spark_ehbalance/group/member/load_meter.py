"""Moving averages of a member's load: arrival rate and backlog of each partition, batch duration.

Reads no clock: the caller passes the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spark_ehbalance.group.model import Load, MemberLoad

#: Time constant of the moving averages in seconds. It is longer than a batch, so that a burst of events does not cause
#: a move.
_MEMORY = 60.0

#: Seconds between two measurements. More frequent ones would only measure the hub watcher's own interval.
_INTERVAL = 1.0

#: Seconds for which a partition must be measured before the result replaces its previous owner's load.
_WARM_UP = 10.0


@dataclass(frozen=True, slots=True)
class _Average:
    since: float
    at: float
    value: float

    def after(self, now: float, value: float) -> _Average:
        return _Average(self.since, now, self.value + _weight(self.since, self.at, now) * (value - self.value))


@dataclass(frozen=True, slots=True)
class _Measured:
    end: int
    rate: _Average
    backlog: _Average

    @property
    def load(self) -> Load:
        return Load(self.rate.value, self.backlog.value)


@dataclass(frozen=True, slots=True)
class LoadMeter:
    """The moving averages of one member; methods return the next state. Times are monotonic seconds. `events` counts
    the sequence numbers in finished batches."""

    events: int = 0
    _partitions: Mapping[str, _Measured] = field(default_factory=dict)
    _due: float = 0.0
    _began: float | None = None
    _batch: _Average | None = None

    def is_due(self, now: float) -> bool:
        """Whether it is time for a new measurement."""
        return now >= self._due

    def batch_begun(self, now: float) -> LoadMeter:
        """The state after a batch was given to the query."""
        return replace(self, _began=now)

    def batch_ended(self, now: float, events: int = 0) -> LoadMeter:
        """The state after the sink finished the batch, which contained `events` sequence numbers. Idempotent."""
        if self._began is None:
            return self
        seconds = now - self._began
        batch = self._batch.after(now, seconds) if self._batch else _Average(now - seconds, now, seconds)
        return replace(self, events=self.events + events, _began=None, _batch=batch)

    def measured(self, now: float, ends: Mapping[str, int], positions: Mapping[str, int]) -> LoadMeter:
        """The state after a measurement; unchanged if none is due.

        `ends` are the sequence numbers after the partitions' last events, and `positions` are the sequence numbers at
        which reading continues.
        """
        if not self.is_due(now):
            return self
        partitions = {p: self._measure(p, now, ends[p], positions[p]) for p in positions if p in ends}
        return replace(self, _partitions=partitions, _due=now + _INTERVAL)

    def loads(self) -> dict[str, Load]:
        """The loads of the partitions that have been measured for long enough."""
        return {
            p: partition.load
            for p, partition in self._partitions.items()
            if partition.rate.at - partition.rate.since >= _WARM_UP
        }

    def member_load(self) -> MemberLoad:
        """The load of the member, including partitions measured only briefly."""
        loads = [partition.load for partition in self._partitions.values()]
        batch_seconds = self._batch.value if self._batch else 0.0
        rate, backlog = sum(load.rate for load in loads), sum(load.backlog for load in loads)
        return MemberLoad(rate, backlog, batch_seconds)

    def _measure(self, partition: str, now: float, end: int, position: int) -> _Measured:
        backlog = max(0, end - position)
        before = self._partitions.get(partition)
        if before is None:
            return _Measured(end, _Average(now, now, 0.0), _Average(now, now, backlog))
        arrived = max(0, end - before.end) / (now - before.rate.at)
        return _Measured(end, before.rate.after(now, arrived), before.backlog.after(now, backlog))


def _weight(since: float, before: float, now: float) -> float:
    """The weight of a measurement from `before` to `now` in a moving average that began at `since`. The first weights
    make the average equal to the mean of all measurements so far."""
    passed = now - before
    return max(1 - math.exp(-passed / _MEMORY), passed / (now - since)) if passed > 0 else 0.0
