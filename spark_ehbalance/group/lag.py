"""The lag behind a partition's newest event. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lag:
    """A partition's unread events at `at_ms` (ms since 1970): the sequence numbers from `next`, the first event that
    the sink has not finished, to `end` (exclusive). `unread_since_ms` is when the event `next` was enqueued; None if
    there is no such event or the time is unknown."""

    next: int
    end: int
    unread_since_ms: int | None
    at_ms: int

    @property
    def events(self) -> int:
        """The number of unread events."""
        return max(0, self.end - self.next)

    def seconds(self, now_ms: int) -> float | None:
        """The age of the oldest unread event in seconds: 0 if all are read, None if unknown."""
        if not self.events:
            return 0.0
        return None if self.unread_since_ms is None else max(0, now_ms - self.unread_since_ms) / 1000

    def read_up_to(self, next: int) -> Lag:
        """The lag if reading continues at `next`, forward or back."""
        if next == self.next:
            return self
        return Lag(next, max(self.end, next), None, self.at_ms)

    def with_wait_from(self, other: Lag | None) -> Lag:
        """This lag, with the later `unread_since_ms` of this measurement and an earlier one (`other`), because each is
        a lower bound. `other` is ignored if the hub was recreated since."""
        if not self.events or other is None or other.unread_since_ms is None:
            return self
        if other.next != self.next or other.end > self.end:
            return self
        return Lag(self.next, self.end, max(self.unread_since_ms or 0, other.unread_since_ms), self.at_ms)


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """A query's lag in one partition. For `seconds`, see `Lag.seconds`."""

    hub: str
    partition: str
    next: int
    end: int
    seconds: float | None

    @property
    def events(self) -> int:
        """The number of unread events."""
        return self.end - self.next


@dataclass(frozen=True, slots=True)
class QueryLag:
    """A query's lag in its owned partitions."""

    partitions: tuple[PartitionLag, ...]

    @property
    def events(self) -> int:
        """The number of unread events."""
        return sum(partition.events for partition in self.partitions)

    @property
    def seconds(self) -> float | None:
        """The age of the oldest unread event in seconds; None if unknown for some partition."""
        known = [partition.seconds for partition in self.partitions if partition.seconds is not None]
        return max(known, default=0.0) if len(known) == len(self.partitions) else None
