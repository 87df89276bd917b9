"""How far reading is behind a partition's newest event. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lag:
    """What was unread of a partition at `at_ms` (ms since 1970): the events from the sequence number `next`, the first
    that the sink has not finished, to before `end`. `unread_since_ms` is when the event `next` was enqueued; None where
    there is no such event, or where that is not known."""

    next: int
    end: int
    unread_since_ms: int | None
    at_ms: int

    @property
    def events(self) -> int:
        """How many events are unread."""
        return max(0, self.end - self.next)

    def seconds(self, now_ms: int) -> float | None:
        """For how long the oldest unread event has waited: 0 where all are read, None where that is not known."""
        if not self.events:
            return 0.0
        return None if self.unread_since_ms is None else max(0, now_ms - self.unread_since_ms) / 1000

    def read_up_to(self, next: int) -> Lag:
        """The same when reading has gone on to `next`, or was set back to it."""
        if next == self.next:
            return self
        return Lag(next, max(self.end, next), None, self.at_ms)

    def with_wait_from(self, other: Lag | None) -> Lag:
        """The same with what `other`, measured before, says of when the event `next` was enqueued. Neither says a time
        that is too late. Of a hub that was recreated the other says nothing."""
        if not self.events or other is None or other.unread_since_ms is None:
            return self
        if other.next != self.next or other.end > self.end:
            return self
        return Lag(self.next, self.end, max(self.unread_since_ms or 0, other.unread_since_ms), self.at_ms)


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a query is behind in one partition; `seconds` as `Lag.seconds`."""

    hub: str
    partition: str
    next: int
    end: int
    seconds: float | None

    @property
    def events(self) -> int:
        """How many events are unread."""
        return self.end - self.next


@dataclass(frozen=True, slots=True)
class QueryLag:
    """How far a query is behind in the partitions that it holds."""

    partitions: tuple[PartitionLag, ...]

    @property
    def events(self) -> int:
        """How many events are unread in all."""
        return sum(partition.events for partition in self.partitions)

    @property
    def seconds(self) -> float | None:
        """For how long the oldest unread event has waited; None where that is not known of a partition."""
        known = [partition.seconds for partition in self.partitions if partition.seconds is not None]
        return max(known, default=0.0) if len(known) == len(self.partitions) else None
