"""Where reading of a partition stands, and the order in which partitions are listed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """The last event that is done with: reading goes on at `next`.

    `sequence_number` is -1 before the first event of a partition. `offset` is Event Hubs' own opaque string for
    the same event, kept where it is known for readers other than this one, and never parsed.
    """

    sequence_number: int
    offset: str | None = None

    @property
    def next(self) -> int:
        """Sequence number of the first event that is not done."""
        return self.sequence_number + 1

    @classmethod
    def before(cls, sequence_number: int) -> Position:
        """The position from which reading goes on at `sequence_number`."""
        return cls(sequence_number - 1)


def partition_order(partition: str) -> tuple[int, int, str]:
    """Sort key: numeric partition ids by number, then any others by text."""
    return (0, int(partition), "") if partition.isdecimal() else (1, 0, partition)
