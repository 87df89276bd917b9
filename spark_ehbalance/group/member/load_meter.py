"""Moving averages of a member's load: arrival rate and backlog of each partition, batch duration, CPU.

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
class CpuTime:
    """`busy` and `total` seconds of the host's cores since the host started."""

    busy: float
    total: float


@dataclass(frozen=True, slots=True)
class LoadMeter:
    """The moving averages of one member; methods return the next state. Times are monotonic seconds. `events` counts
    the sequence numbers in finished batches."""

    events: int = 0
    _partitions: Mapping[str, _Measured] = field(default_factory=dict)
    _due: float = 0.0
    _began: float | None = None
    _batch: _Average | None = None
    _reading: tuple[float, CpuTime] | None = None
    _cpu: _Average | None = None

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

    def measured(
        self, now: float, ends: Mapping[str, int], positions: Mapping[str, int], cpu: CpuTime | None = None
    ) -> LoadMeter:
        """The state after a measurement; unchanged if none is due.

        `ends` are the sequence numbers after the partitions' last events, and `positions` are the sequence numbers at
        which reading continues. `cpu` is None if the host does not report it.
        """
        if not self.is_due(now):
            return self
        partitions = {p: self._measure(p, now, ends[p], positions[p]) for p in positions if p in ends}
        return replace(
            self,
            _partitions=partitions,
            _due=now + _INTERVAL,
            _reading=None if cpu is None else (now, cpu),
            _cpu=self._cpu_after(now, cpu),
        )

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
        return MemberLoad(rate, backlog, batch_seconds, self._cpu.value if self._cpu else None)

    def _measure(self, partition: str, now: float, end: int, position: int) -> _Measured:
        backlog = max(0, end - position)
        before = self._partitions.get(partition)
        if before is None:
            return _Measured(end, _Average(now, now, 0.0), _Average(now, now, backlog))
        arrived = max(0, end - before.end) / (now - before.rate.at)
        return _Measured(end, before.rate.after(now, arrived), before.backlog.after(now, backlog))

    def _cpu_after(self, now: float, reading: CpuTime | None) -> _Average | None:
        if reading is None or self._reading is None or reading.total <= self._reading[1].total:
            return None if reading is None else self._cpu
        since, before = self._reading
        part = min(1.0, max(0.0, (reading.busy - before.busy) / (reading.total - before.total)))
        return self._cpu.after(now, part) if self._cpu else _Average(since, now, part)


def _weight(since: float, before: float, now: float) -> float:
    """The weight of a measurement from `before` to `now` in a moving average that began at `since`. The first weights
    make the average equal to the mean of all measurements so far."""
    passed = now - before
    return max(1 - math.exp(-passed / _MEMORY), passed / (now - since)) if passed > 0 else 0.0
