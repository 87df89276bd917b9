"""The simulated event hub: retained events by sequence number, receivers with owner levels, silence and outages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.group.position import Position
from spark_ehbalance.query.offsets import HubReference


@dataclass(slots=True)
class Partition:
    """A partition that retains the events `begin` to `end - 1`, and delivers none until `silent_until`. `readers` maps
    each process with an open receiver to the receiver's owner level."""

    rate: float
    begin: int = 0
    appended: float = 0.0
    silent_until: float = 0.0
    readers: dict[object, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return int(self.appended)


@dataclass(slots=True)
class StormHub:
    partitions: dict[str, Partition] = field(default_factory=dict)
    unreachable_until: float = 0.0
    reference: HubReference = field(default_factory=lambda: HubReference("hub", "namespace", 1))

    def grow(self, count: int, rate: float) -> None:
        for _ in range(count):
            self.partitions[str(len(self.partitions))] = Partition(rate)

    def recreate(self) -> None:
        """Delete the hub and create it again, so that sequence numbers restart."""
        assert self.reference.created_ms is not None
        self.reference = replace(self.reference, created_ms=self.reference.created_ms + 1)
        self.partitions = {p: Partition(partition.rate) for p, partition in self.partitions.items()}

    def append(self, seconds: float) -> None:
        """Append the events that arrive in `seconds`."""
        for partition in self.partitions.values():
            partition.appended += partition.rate * seconds

    def states(self) -> dict[str, PartitionState]:
        return {
            p: PartitionState(partition.begin, partition.end, None, None) for p, partition in self.partitions.items()
        }

    def starting_positions(self, partitions: Iterable[str]) -> dict[str, Position]:
        """Positions of the first retained events."""
        return {p: Position.before(self.partitions[p].begin) for p in partitions}

    def connect(self, process: object, partition: str, level: int) -> bool:
        """Open or keep a receiver, and disconnect receivers with lower levels. Returns False if another receiver has a
        higher level. A level counts only while its receiver is connected."""
        readers = self.partitions[partition].readers
        if max(readers.values(), default=level) > level:
            readers.pop(process, None)
            return False
        readers[process] = level
        return True

    def disconnect(self, process: object) -> None:
        for partition in self.partitions.values():
            partition.readers.pop(process, None)
