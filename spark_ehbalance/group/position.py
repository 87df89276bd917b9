"""A position in a partition, and the order in which partitions are listed."""

from __future__ import annotations

from dataclasses import dataclass

#: The offset that stands for the position before the first retained event.
START_OFFSET = "-1"


def names_event(offset: str | None) -> bool:
    """Whether an offset identifies an event in all regions, as the non-numeric offsets of geo-replicated hubs do.

    A numeric offset is valid in only one region, and geo-replicated hubs reject old numeric offsets.
    """
    return offset is not None and not offset.removeprefix("-").isdecimal()


@dataclass(frozen=True, slots=True)
class Position:
    """The last finished event: reading continues at `next`.

    `sequence_number` is -1 before the first event of a partition. `offset` is Event Hubs' opaque string for the same
    event, if known. It is kept for other readers and never parsed.
    """

    sequence_number: int
    offset: str | None = None

    @property
    def next(self) -> int:
        """The sequence number of the first unfinished event."""
        return self.sequence_number + 1

    @classmethod
    def before(cls, sequence_number: int) -> Position:
        """The position whose `next` is `sequence_number`."""
        return cls(sequence_number - 1)


def partition_order(partition: str) -> tuple[int, int, str]:
    """A sort key: numeric ids by number, then all others as text."""
    return (0, int(partition), "") if partition.isdecimal() else (1, 0, partition)
