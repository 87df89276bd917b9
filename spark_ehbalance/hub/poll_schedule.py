"""When a hub is asked about which partitions, as rules without a clock. Times are seconds on a monotonic clock.

Event Hubs answers 50 of these questions a second (its quotas page: GetRuntimeInformation), and all who read share
them. So they are put when they are worth most: at once when a batch has ended, in steps while the query waits for
events, seldom when it has waited for long, and hardly while a batch runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: Questions a second of a whole group: half of what Event Hubs answers, as others may read the hub as well.
_MOST_QUESTIONS = 25.0

#: Seconds between two looks while the query waits for events; they grow to the longest by this part of the seconds
#: without any. Half a second is about what the batch takes that the first event has to itself.
_INTERVAL, _LONGEST_INTERVAL, _GROWTH = 0.1, 0.5, 0.05

#: Seconds between two looks while the query is at a batch, which serve the metrics and the measured load.
_REST_INTERVAL = 1.0


class PollSchedule:
    """Which partitions to ask about, and when. For one thread at a time."""

    def __init__(self) -> None:
        self.looked_at = 0.0  # when the question was put that was answered last
        self._watched: frozenset[str] = frozenset()
        self._rate = _MOST_QUESTIONS
        self._resting = False
        self._wanted = False  # somebody would like to know now, as far as the limit allows
        self._known_at: dict[str, float] = {}  # when the question was put whose answer is known
        self._news_at = 0.0  # the last time that an answer was another than the one before
        self._next_look = 0.0  # not sooner, for the sake of the limit

    def watch(self, partitions: Iterable[str], members: int) -> bool:
        """The query waits for events of `partitions`, and has as many questions as are left to one of `members`.
        Whether there is something to ask at once: there are other partitions, or it has just come from a batch."""
        watched, self._rate = frozenset(partitions), _MOST_QUESTIONS / max(1, members)
        come, waits = bool(watched - self._watched), self._resting
        if come:
            self._next_look = 0.0  # what has just come from another member waits for nothing; that is seldom
        self._watched, self._resting, self._wanted = watched, False, self._wanted or come or waits
        return come or waits

    def rest(self) -> None:
        """The query is at a batch."""
        self._resting = True

    def want(self) -> None:
        """Somebody would like to know now."""
        self._wanted = True

    def due(self) -> float:
        """When to ask next, as things are."""
        waiting = min(max(_INTERVAL, _GROWTH * (self.looked_at - self._news_at)), _LONGEST_INTERVAL)
        pause = 0.0 if self._wanted else _REST_INTERVAL if self._resting else waiting
        return max(self._next_look, self.looked_at + pause)

    def known_at(self, partition: str) -> float:
        """When the question about `partition` was put whose answer is known; 0 if there was none."""
        return self._known_at.get(partition, 0.0)

    def choose(self, partitions: Sequence[str], *, everything: bool, also_others: bool) -> list[str]:
        """Which of the hub's `partitions` to ask about now: if not `everything`, those that are new, and about a
        second's worth of the watched ones, or `also_others`, whose answers are the oldest."""
        self._wanted = False
        if everything:
            return list(partitions)
        new = [partition for partition in partitions if partition not in self._known_at]
        wanted = self._known_at.keys() & (partitions if also_others else self._watched)
        return new + sorted(wanted, key=self.known_at)[: max(1, int(self._rate))]

    def answered(self, asked: Sequence[str], began: float, *, changed: bool) -> None:
        """What was asked at `began` is known; `changed`: it is something else than before."""
        self._known_at.update(dict.fromkeys(asked, began))
        self.looked_at = began
        self._news_at = began if changed else self._news_at
        # What has to be known at once is not waited for afterwards, by anybody, for longer than a usual look.
        self._next_look = began + min(len(asked), max(1.0, self._rate)) / self._rate
