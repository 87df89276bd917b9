"""Which partitions' states are requested when, as rules without a clock. Times are seconds on a monotonic clock.

Event Hubs answers 50 such requests a second (its quotas page: GetRuntimeInformation) for all readers together. So they
are made when they matter: at once when a batch has ended, often while the query waits for events, less often the longer
nothing comes, and rarely while a batch runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: Requests a second of a whole group: half of what Event Hubs answers, as others may read the hub as well.
MOST_REQUESTS = 25.0

#: Seconds by which the time between two requests grows for each second without a change.
_GROWTH = 0.05


class PollIntervals(NamedTuple):
    """Seconds between two requests.

    While the query waits: min(max(`shortest`, _GROWTH * seconds without a change), `longest`). The longest is about
    what the batch takes that the first event has to itself. While a batch runs: `resting`, for metrics and loads.
    """

    shortest: float = 0.1
    longest: float = 0.5
    resting: float = 1.0


INTERVALS = PollIntervals()


class PollSchedule:
    """Which partitions to request, and when. For one thread at a time.

    The members of a group make `most_requests` a second together.
    """

    def __init__(self, intervals: PollIntervals = INTERVALS, *, most_requests: float = MOST_REQUESTS) -> None:
        self.requested_at = 0.0  # time of the last request that was answered
        self._intervals = intervals
        self._most_requests = most_requests
        self._watched: frozenset[str] = frozenset()
        self._rate = most_requests  # requests a second of this member
        self._resting = False
        self._wanted = False  # request now, as far as the limit allows
        self._known_at: dict[str, float] = {}  # time of the request for each partition's known state
        self._changed_at = 0.0  # time of the last request whose response differed from the one before
        self._not_before = 0.0  # the next request is not due sooner, because of the limit

    def watch(self, partitions: Iterable[str], members: int) -> bool:
        """The query waits for events of `partitions`, and shares the limit with `members`.

        Returns whether a request is due at once: a partition is new, or a batch has just ended.
        """
        watched, self._rate = frozenset(partitions), self._most_requests / max(1, members)
        added, waits = bool(watched - self._watched), self._resting
        if added:
            self._not_before = 0.0  # a partition from another member does not wait for the limit; that is rare
        self._watched, self._resting, self._wanted = watched, False, self._wanted or added or waits
        return added or waits

    def rest(self) -> None:
        """The query runs a batch."""
        self._resting = True

    def want(self) -> None:
        """A request is due now, as far as the limit allows."""
        self._wanted = True

    def due(self) -> float:
        """When the next request is due, as things are."""
        shortest, longest, resting = self._intervals
        waiting = min(max(shortest, _GROWTH * (self.requested_at - self._changed_at)), longest)
        pause = 0.0 if self._wanted else resting if self._resting else waiting
        return max(self._not_before, self.requested_at + pause)

    def round_time(self) -> float:
        """Seconds in which each watched partition is requested once, by the limit."""
        return len(self._watched) / self._rate

    def told(self, partitions: Iterable[str], at: float) -> None:
        """The states of `partitions` have become known at the time `at` without a request: others come first."""
        self._known_at.update({each: at for each in partitions if each in self._known_at})

    def known_at(self, partition: str) -> float:
        """The time of the request for the known state of `partition`; 0 if there was none."""
        return self._known_at.get(partition, 0.0)

    def choose(self, partitions: Sequence[str], *, everything: bool, also_others: bool) -> list[str]:
        """Which of the hub's `partitions` to request now: all with `everything`; else the new ones, and of the watched
        ones (with `also_others` of all) as many as a second allows, those with the oldest state first."""
        self._wanted = False
        if everything:
            return list(partitions)
        new = [partition for partition in partitions if partition not in self._known_at]
        wanted = self._known_at.keys() & (partitions if also_others else self._watched)
        return new + sorted(wanted, key=self.known_at)[: max(1, int(self._rate))]

    def answered(self, requested: Sequence[str], began: float, *, changed: bool) -> None:
        """The states of the partitions `requested` at `began` have come; `changed`: one differs from before."""
        self._known_at.update(dict.fromkeys(requested, began))
        self.requested_at = began
        self._changed_at = began if changed else self._changed_at
        # Requests beyond the rate, made because they were urgent, delay the next one by a second at the most.
        self._not_before = began + min(len(requested), max(1.0, self._rate)) / self._rate
