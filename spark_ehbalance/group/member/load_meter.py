"""Loads, as moving averages: arrival rate and backlog of each partition, measured where it is planned; and of the
member the sums, the time of a batch, and how busy its host is. All readings are passed in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spark_ehbalance.group.model import Load, MemberLoad

#: Time constant of the moving averages in seconds. Long against a batch, so that a burst moves no partition.
_MEMORY = 60.0

#: Seconds between two measurements: more would only measure the hub watcher's own interval.
_INTERVAL = 1.0

#: Seconds until a partition's measurements are reported: until then the last owner's stay.
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


class LoadMeter:
    """Turns repeated readings of partitions' ends and positions into loads."""

    def __init__(self) -> None:
        self._measured: dict[str, _Measured] = {}
        self._next = 0.0

    def update(self, now: float, ends: Mapping[str, int], positions: Mapping[str, int]) -> dict[str, Load] | None:
        """The loads of the partitions in `positions` at monotonic time `now`; None if it is too early for a new one.

        `ends` are the sequence numbers after the last event, `positions` those at which reading goes on.
        """
        if now < self._next:
            return None
        self._next = now + _INTERVAL
        self._measured = {p: self._measure(p, now, ends[p], positions[p]) for p in positions if p in ends}
        return {p: each.load for p, each in self._measured.items() if now - each.rate.since >= _WARM_UP}

    def total(self) -> Load:
        """The load of all partitions together, including those measured for a moment only."""
        loads = [each.load for each in self._measured.values()]
        return Load(sum(load.rate for load in loads), sum(load.backlog for load in loads))

    def _measure(self, partition: str, now: float, end: int, position: int) -> _Measured:
        backlog = max(0, end - position)
        before = self._measured.get(partition)
        if before is None:
            return _Measured(end, _Average(now, now, 0.0), _Average(now, now, backlog))
        arrived = max(0, end - before.end) / (now - before.rate.at)
        return _Measured(end, before.rate.after(now, arrived), before.backlog.after(now, backlog))


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Seconds that the host's cores have been `busy`, and in `total`, since it was started."""

    busy: float
    total: float


class MemberMeter:
    """How long the member's batches take, and how busy its host is. Times are monotonic seconds."""

    def __init__(self) -> None:
        #: Sequence numbers in batches that have ended.
        self.events = 0
        self._began: float | None = None
        self._batch: _Average | None = None
        self._last_reading: tuple[float, CpuTime] | None = None
        self._cpu: _Average | None = None

    def batch_begins(self, now: float) -> None:
        """A batch of the query begins."""
        self._began = now

    def batch_ends(self, now: float, events: int = 0) -> None:
        """The sink has finished the batch, with so many sequence numbers; may be called repeatedly."""
        if self._began is not None:
            seconds, self._began = now - self._began, None
            self.events += events
            self._batch = self._batch.after(now, seconds) if self._batch else _Average(now - seconds, now, seconds)

    def host(self, now: float, reading: CpuTime | None) -> None:
        """Take a reading of the host's cores; None where the host has none."""
        if reading is None:
            self._last_reading = self._cpu = None
            return
        if self._last_reading is not None and reading.total > self._last_reading[1].total:
            since, before = self._last_reading
            part = min(1.0, max(0.0, (reading.busy - before.busy) / (reading.total - before.total)))
            self._cpu = self._cpu.after(now, part) if self._cpu else _Average(since, now, part)
        self._last_reading = now, reading

    def load(self, partitions: Load) -> MemberLoad:
        """The load of the member, whose partitions together have the load `partitions`."""
        batch_seconds = self._batch.value if self._batch else 0.0
        return MemberLoad(partitions.rate, partitions.backlog, batch_seconds, self._cpu.value if self._cpu else None)


def _weight(since: float, before: float, now: float) -> float:
    """The weight of what was measured from `before` to `now` in a moving average that began at `since`.

    At first that gives the plain mean since the beginning.
    """
    passed = now - before
    return max(1 - math.exp(-passed / _MEMORY), passed / (now - since)) if passed > 0 else 0.0
