"""What each partition brings in, measured where it is planned: arrival rate and backlog; and what that makes its member
carry: the sums, the time of a batch, and how busy the host is. All are moving averages, and functions of readings that
others take.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spark_ehbalance.leases.model import Load, MemberLoad

#: Seconds of the past that count most. Long against a batch, so that a burst moves no partition.
_MEMORY = 60.0

#: Seconds between two measurements: shorter ones would only measure the watcher's own interval.
_INTERVAL = 1.0

#: Seconds until a partition's first measurements are worth telling: until then what its last owner has told stands.
_WARM_UP = 10.0


@dataclass(frozen=True, slots=True)
class _Measured:
    since: float
    at: float
    end: int
    load: Load


class LoadMeter:
    """Turns the ends and positions of partitions, seen again and again, into loads."""

    def __init__(self) -> None:
        self._measured: dict[str, _Measured] = {}
        self._next = 0.0

    def update(self, now: float, ends: Mapping[str, int], positions: Mapping[str, int]) -> dict[str, Load] | None:
        """The loads of the partitions in `positions` at monotonic time `now`; None if it is too early to tell anew.

        `ends` are the sequence numbers after the last event, `positions` those at which reading goes on.
        """
        if now < self._next:
            return None
        self._next = now + _INTERVAL
        self._measured = {p: self._measure(p, now, ends[p], positions[p]) for p in positions if p in ends}
        return {p: each.load for p, each in self._measured.items() if now - each.since >= _WARM_UP}

    def total(self) -> Load:
        """What all partitions bring in together, those included that were measured for a moment only."""
        loads = [each.load for each in self._measured.values()]
        return Load(sum(load.rate for load in loads), sum(load.backlog for load in loads))

    def _measure(self, partition: str, now: float, end: int, position: int) -> _Measured:
        backlog = max(0, end - position)
        before = self._measured.get(partition)
        if before is None:
            return _Measured(now, now, end, Load(0.0, backlog))
        passed = now - before.at
        new = _weight(before.since, before.at, now)
        rate = before.load.rate + new * (max(0, end - before.end) / passed - before.load.rate)
        return _Measured(
            before.since, now, end, Load(rate, before.load.backlog + new * (backlog - before.load.backlog))
        )


@dataclass(frozen=True, slots=True)
class CpuTime:
    """How long the host's cores have been `busy`, of how long they have been there in all, since it was started."""

    busy: float
    total: float


@dataclass(frozen=True, slots=True)
class _Average:
    since: float
    at: float
    value: float

    def after(self, now: float, value: float) -> _Average:
        return _Average(self.since, now, self.value + _weight(self.since, self.at, now) * (value - self.value))


class MemberMeter:
    """How long the member's batches take, and how busy its host is. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._batch: _Average | None = None
        self._told: tuple[float, CpuTime] | None = None
        self._cpu: _Average | None = None

    def batch_begins(self, now: float) -> None:
        """The query has been given a batch."""
        self._began = now

    def batch_ends(self, now: float) -> None:
        """It is known that the sink has finished the batch; may be said again."""
        if self._began is not None:
            seconds, self._began = now - self._began, None
            self._batch = self._batch.after(now, seconds) if self._batch else _Average(now - seconds, now, seconds)

    def host(self, now: float, reading: CpuTime | None) -> None:
        """What the host says of its cores now; None where it does not tell."""
        if reading is None:
            self._told = self._cpu = None
            return
        if self._told is not None and reading.total > self._told[1].total:
            since, before = self._told
            part = min(1.0, max(0.0, (reading.busy - before.busy) / (reading.total - before.total)))
            self._cpu = self._cpu.after(now, part) if self._cpu else _Average(since, now, part)
        self._told = now, reading

    def load(self, partitions: Load) -> MemberLoad:
        """All that the member carries; its `partitions` bring in what is given."""
        batch_seconds = self._batch.value if self._batch else 0.0
        return MemberLoad(partitions.rate, partitions.backlog, batch_seconds, self._cpu.value if self._cpu else None)


def _weight(since: float, before: float, now: float) -> float:
    """The weight of what was measured from `before` to `now` in a moving average that began at `since`.

    At first that gives the plain mean since the beginning, as there is nothing before that to remember.
    """
    passed = now - before
    return max(1 - math.exp(-passed / _MEMORY), passed / (now - since)) if passed > 0 else 0.0
