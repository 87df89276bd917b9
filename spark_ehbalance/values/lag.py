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
