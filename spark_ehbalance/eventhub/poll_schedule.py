"""Which partitions' states are requested when, as rules without a clock. Times are seconds on a monotonic clock.

Event Hubs answers 50 such requests a second (its quotas page: GetRuntimeInformation) for all readers together. So they
are made at once when a batch has ended, less often the longer nothing comes, and rarely while a batch runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: Requests a second of a whole group, and of a query that starts: not quite half of what Event Hubs answers, so that
#: both stay within the limit together, lists of partitions included.
MOST_REQUESTS = 24.0

#: Partitions that are requested for the first time in one go: two seconds' worth, so that a query with many begins to
#: read those that it knows.
MOST_NEW = 48

#: Seconds in which requests are counted: a little more than one, because they may come closer together than they went.
_SECOND = 1.1

#: Seconds by which the time between two requests grows for each second without a change.
_GROWTH = 0.05


class PollIntervals(NamedTuple):
    """Seconds between two requests.

    While the query waits: min(max(`shortest`, _GROWTH * seconds without a change), `longest`). The longest is about
    what the batch takes that the first event has to itself. While a batch runs: `resting`, for metrics and loads. Of
    the list of partitions, to which people add some now and then, with the states of those that are not watched:
    `listing`. While the hub does not answer: `retry`.
    """

    shortest: float = 0.1
    longest: float = 0.5
    resting: float = 1.0
    listing: float = 5.0
    retry: float = 1.0


INTERVALS = PollIntervals()


class Pace:
    """Spreads requests over time: at most `most` in any second."""

    def __init__(self, most: float) -> None:
        self._most = max(1, int(most))
        self._made: deque[tuple[float, int]] = deque()  # times of requests that still count, and how many

    def room(self, now: float) -> int:
        """How many requests may be made now."""
        while self._made and self._made[0][0] <= now - _SECOND:
            self._made.popleft()
        return self._most - sum(count for _, count in self._made)

    def take(self, count: int, now: float) -> None:
        """Count `count` requests made now."""
        self._made.append((now, count))

    def wait(self, now: float) -> float:
        """Seconds until there is more room than now."""
        return max(0.001, self._made[0][0] + _SECOND - now) if self._made else 0.0


class PollSchedule:
    """Which partitions to request, and when; the members of a group make `most_requests` a second together. For one
    thread at a time."""

    def __init__(self, intervals: PollIntervals = INTERVALS, *, most_requests: float = MOST_REQUESTS) -> None:
        self.requested_at = 0.0  # time of the last request that was answered
        self.intervals = intervals
        self._most_requests = most_requests
        self._watched: frozenset[str] = frozenset()
        # Requests a second of this member. Before it knows the group: as if another one started at the same time.
        self._rate = most_requests / 2
        self._resting = False
        self.wanted = False  # a request is due now, as far as the limit allows
        self._stale: dict[str, float] = {}  # partitions to be renewed, by a request after this time
        self._known_at: dict[str, float] = {}  # time of the request for each partition's known state
        self._unknown = 0  # partitions that were never requested
        self._changed_at = 0.0  # time of the last request whose response differed from the one before
        self.not_before = 0.0  # the next request is not due sooner, because of the limit

    def watch(self, partitions: Iterable[str], members: int) -> bool:
        """The query waits for events of `partitions`, and shares the limit with `members`. Returns whether a request is
        due at once: a partition is new, or a batch has just ended."""
        watched, self._rate = frozenset(partitions), self._most_requests / max(1, members)
        added, waits = watched - self._watched, self._resting
        if any(self.known_at(each) < self.requested_at for each in added):
            self.not_before = 0.0  # a partition from another member does not wait for the limit; that is rare
        self._watched, self._resting, self.wanted = watched, False, self.wanted or bool(added) or waits
        return bool(added) or waits

    def rest(self) -> None:
        """The query runs a batch."""
        self._resting = True

    def renew(self, partitions: Iterable[str], now: float) -> None:
        """The states of `partitions` are wanted as of requests after `now`, as soon as the limit allows, beside those
        that the query waits for."""
        self._stale.update(dict.fromkeys(partitions, now))

    def renewed(self, partition: str) -> bool:
        """Whether the last `renew` of `partition`, if there was one, was answered."""
        return partition not in self._stale

    def due(self) -> float:
        """When the next request is due, as things are."""
        shortest, longest, resting, *_ = self.intervals
        waiting = min(max(shortest, _GROWTH * (self.requested_at - self._changed_at)), longest)
        pause = 0.0 if self.wanted or self._stale or self._unknown else resting if self._resting else waiting
        return max(self.not_before, self.requested_at + pause)

    def known_at(self, partition: str) -> float:
        """The time of the request for the known state of `partition`; 0 if there was none."""
        return self._known_at.get(partition, 0.0)

    def choose(self, partitions: Sequence[str], *, also_others: bool) -> list[str]:
        """Which of the hub's `partitions` to request now: at most `MOST_NEW` new ones; and of those to be renewed and
        the watched ones (with `also_others` of all) together as many as a second allows, those with the oldest state
        first."""
        self.wanted = False
        most = max(1, int(self._rate))
        unknown = [partition for partition in partitions if partition not in self._known_at]
        new, self._unknown = unknown[:MOST_NEW], len(unknown[MOST_NEW:])
        wanted = self._known_at.keys() & (partitions if also_others else self._watched)
        oldest = sorted(wanted, key=self.known_at)[:most]
        for gone in self._stale.keys() - {*partitions}:
            del self._stale[gone]
        # those that the query waits for have half of the requests, if they need so many
        stale = sorted(self._stale.keys() - {*new}, key=self.known_at)[: max((most + 1) // 2, most - len(oldest))]
        return new + list(dict.fromkeys(stale + oldest))[:most]

    def answered(
        self, requested: Sequence[str], began: float, *, changed: bool, others: int = 0, ended: float | None = None
    ) -> None:
        """The states of the partitions `requested` at `began` have come; `changed`: one differs from before. `others`
        are requests that were made besides; `ended` is when the last one was made, if that took a while."""
        for each in requested:
            if self._stale.get(each, began) < began:
                del self._stale[each]
        self._known_at.update(dict.fromkeys(requested, began))
        self.requested_at = began
        self._changed_at = began if changed else self._changed_at
        if self._unknown:  # `HubMetadata` keeps to the rate, from connection to connection not
            self.not_before = began if ended is None else ended + _SECOND
            return
        # Requests beyond the rate, made because they were urgent, delay the next one by a second at the most.
        self.not_before = (began if ended is None else ended) + min(
            len(requested) + others, max(1.0, self._rate)
        ) / self._rate
