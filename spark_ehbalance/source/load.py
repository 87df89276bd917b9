"""What each partition brings in, measured where it is planned: arrival rate and backlog, as moving averages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spark_ehbalance.leases.model import Load

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

    def _measure(self, partition: str, now: float, end: int, position: int) -> _Measured:
        backlog = max(0, end - position)
        before = self._measured.get(partition)
        if before is None:
            return _Measured(now, now, end, Load(0.0, backlog))
        passed = now - before.at
        # At first the plain mean since the beginning, as there is nothing before that to remember.
        new = max(1 - math.exp(-passed / _MEMORY), passed / (now - before.since))
        rate = before.load.rate + new * (max(0, end - before.end) / passed - before.load.rate)
        return _Measured(
            before.since, now, end, Load(rate, before.load.backlog + new * (backlog - before.load.backlog))
        )
