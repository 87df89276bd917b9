"""The simulated event hub, which only counts events and records which ranges were read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_ehbalance.group.position import Position
from spark_ehbalance.simulation.scenario import HubSettings


class LostEvents(AssertionError):
    """Events were skipped because of a bug in the lease code."""


@dataclass(slots=True)
class _Partition:
    """A partition that had `count` events at the time `since` and has received `rate` events per second since then.

    Events before `read` were delivered at least once or arrived before the group's `start`. The latest receiver was
    opened at `opened` with `epoch`.
    """

    rate: float
    since: float = 0.0
    count: float = 0.0
    start: int = 0
    read: int = 0
    epoch: int = 0
    opened: float = 0.0


@dataclass(slots=True)
class SimulatedHub:
    """Partitions with piecewise constant rates."""

    partitions: dict[str, _Partition] = field(default_factory=dict)
    ids: tuple[str, ...] = ()
    delivered: int = 0
    duplicates: int = 0
    #: Start time of the group's first query; None if no query has started.
    started: float | None = None
    _rates: dict[str, float] = field(default_factory=dict)

    @classmethod
    def create(cls, settings: HubSettings, partitions: int, rng: random.Random) -> SimulatedHub:
        """A hub with this number of partitions, whose rates follow `settings`."""
        weights = [(rank + 1) ** -settings.skew for rank in range(partitions)]
        rng.shuffle(weights)
        mean = sum(weights) / partitions
        hub = cls()
        hub.add([settings.rate * weight / mean for weight in weights], 0.0)
        return hub

    def add(self, rates: Iterable[float], now: float) -> None:
        """Add one partition per rate."""
        for rate in rates:
            self.partitions[str(len(self.partitions))] = _Partition(rate, since=now)
        self.ids = tuple(self.partitions)
        self._rates = {}

    def multiply(self, partitions: Iterable[str], factor: float, now: float) -> None:
        """Multiply the rates of `partitions` by `factor` from `now` on."""
        for id in partitions:
            partition = self.partitions[id]
            partition.count += partition.rate * (now - partition.since)
            partition.since, partition.rate = now, partition.rate * factor
        self._rates = {}

    def start(self, now: float) -> None:
        """Start a query. The group reads the events that arrive after its first query started."""
        if self.started is None:
            self.started = now
            for id, partition in self.partitions.items():
                partition.start = partition.read = self.end(id, now)

    def end(self, partition: str, now: float) -> int:
        """The sequence number after the last event of `partition`."""
        row = self.partitions[partition]
        return int(row.count + row.rate * (now - row.since))

    def rates(self) -> dict[str, float]:
        """Events per second by partition."""
        if not self._rates:
            self._rates = {id: partition.rate for id, partition in self.partitions.items()}
        return self._rates

    def plan(
        self, starts: Mapping[str, tuple[int, int]], limit: int, now: float
    ) -> tuple[dict[str, tuple[int, int, int]], int]:
        """The ranges of a new batch, as partition → (epoch, first, end), and the number of events in them.

        `starts` maps partition → (epoch, next sequence number). The batch reads at most `limit` events per partition.
        Its receivers disconnect receivers with lower epochs.
        """
        ranges, events, rows = {}, 0, self.partitions
        for partition, (epoch, first) in starts.items():
            row = rows[partition]
            count = int(row.count + row.rate * (now - row.since)) - first
            if count <= 0:
                continue
            if count > limit:
                count = limit
            if epoch > row.epoch:
                row.epoch, row.opened = epoch, now
            ranges[partition] = (epoch, first, first + count)
            events += count
        return ranges, events

    def deliver(
        self, ranges: Mapping[str, tuple[int, int, int]], part: Callable[[float], float]
    ) -> dict[str, tuple[int, int]]:
        """Record that a sink finished `ranges`. If a higher epoch disconnected a receiver, only the events that
        were read before the disconnection are counted. `part` returns the fraction of the batch that was read by a
        given time. Returns partition → (epoch, end).

        Raises `LostEvents` if earlier events were never delivered.
        """
        ends, rows = {}, self.partitions
        for partition, (epoch, first, end) in ranges.items():
            row = rows[partition]
            if row.epoch > epoch:
                end = first + int(part(row.opened) * (end - first))
            read = row.read
            if first > read:
                raise LostEvents(f"partition {partition}: events {read} to {first - 1} were skipped")
            self.delivered += end - first
            if first < read:
                self.duplicates += min(end, read) - first
            if end > read:
                row.read = end
            ends[partition] = (epoch, end)
        return ends

    def starting_positions(self, partitions: Sequence[str], latest: float) -> Mapping[str, Position]:
        """Positions of the first events after the time `latest`, which must not be before the group's first start."""
        assert self.started is not None
        late, rows = latest - self.started, self.partitions
        return {id: Position.before(rows[id].start + int(rows[id].rate * late)) for id in partitions}
