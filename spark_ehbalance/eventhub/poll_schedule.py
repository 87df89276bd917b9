"""Which partitions' states are requested when, as rules without a clock. Times are seconds on a monotonic clock.

Event Hubs answers 50 such requests a second (its quotas page: GetRuntimeInformation) for all readers together. So they
are made less often the longer nothing comes, and rarely while a batch runs. When it has ended, `catch_up`
requests them at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True, slots=True)
class PollSchedule:
    """Which partitions to request, and when. Each method that changes it returns the next one.

    The `members` of a group make `most_requests` a second together; before it knows its group, a member is one of two.
    `stale`: partitions to be renewed, by a request after this time. `known_at`: the time of the request for each known
    state. `unknown`: the number of partitions that were never requested. `wanted`: a request is due now, as far as the
    limit allows, which means not before `not_before`. `requested_at`: the time of the last request that was answered;
    `changed_at`: of the last one whose response differed from the one before.
    """

    intervals: PollIntervals = INTERVALS
    most_requests: float = MOST_REQUESTS
    members: int = 2
    watched: frozenset[str] = frozenset()
    stale: Mapping[str, float] = field(default_factory=dict)
    known_at: Mapping[str, float] = field(default_factory=dict)
    unknown: int = 0
    resting: bool = False
    wanted: bool = False
    not_before: float = 0.0
    requested_at: float = 0.0
    changed_at: float = 0.0

    def watch(self, partitions: Iterable[str], members: int) -> tuple[PollSchedule, bool]:
        """The query waits for events of `partitions`, and shares the limit with `members`. The second value: whether a
        request is due at once, because a partition is new."""
        watched = frozenset(partitions)
        added = watched - self.watched
        at_once = bool(added)
        after = replace(self, watched=watched, members=max(1, members), resting=False, wanted=self.wanted or at_once)
        if any(self.known_at.get(partition, 0.0) < self.requested_at for partition in added):
            after = replace(after, not_before=0.0)  # one from another member does not wait for the limit; that is rare
        return after, at_once

    def rest(self) -> PollSchedule:
        """The query runs a batch."""
        return replace(self, resting=True)

    def renew(self, partitions: Iterable[str], now: float) -> PollSchedule:
        """The states of `partitions` are wanted as of requests after `now`, as soon as the limit allows, beside those
        that the query waits for."""
        return replace(self, stale={**self.stale, **dict.fromkeys(partitions, now)})

    def due(self) -> float:
        """When the next request is due, as things are."""
        shortest, longest, resting, *_ = self.intervals
        waiting = min(max(shortest, _GROWTH * (self.requested_at - self.changed_at)), longest)
        pause = 0.0 if self.wanted or self.stale or self.unknown else resting if self.resting else waiting
        return max(self.not_before, self.requested_at + pause)

    def choose(self, partitions: Sequence[str], *, also_others: bool) -> tuple[PollSchedule, list[str]]:
        """Which of the hub's `partitions` to request now: at most `MOST_NEW` new ones; and of those to be renewed and
        the watched ones (with `also_others` of all) together as many as a second allows, those with the oldest state
        first."""
        most = max(1, int(self.most_requests / self.members))
        unknown = [partition for partition in partitions if partition not in self.known_at]
        new = unknown[:MOST_NEW]
        watched = self.known_at.keys() & (partitions if also_others else self.watched)
        oldest = sorted(watched, key=self.known_at.__getitem__)[:most]
        stale = {partition: self.stale[partition] for partition in partitions if partition in self.stale}
        renewed = sorted(stale.keys() - {*new}, key=lambda partition: self.known_at.get(partition, 0.0))
        # those that the query waits for have half of the requests, if they need so many
        known = dict.fromkeys(renewed[: max((most + 1) // 2, most - len(oldest))] + oldest)
        return replace(self, wanted=False, unknown=len(unknown) - len(new), stale=stale), new + list(known)[:most]

    def answered(
        self, requested: Sequence[str], began: float, *, changed: bool, others: int = 0, ended: float | None = None
    ) -> PollSchedule:
        """The states of the partitions `requested` at `began` have come; `changed`: one differs from before. `others`
        are requests that were made besides; `ended` is when the last one was made, if that took a while."""
        rate = self.most_requests / self.members
        if self.unknown:  # `HubMetadata` keeps to the rate, from connection to connection not
            not_before = began if ended is None else ended + _SECOND
        else:  # requests beyond the rate, made because they were urgent, delay the next one by a second at the most
            count = min(len(requested) + others, max(1.0, rate))
            not_before = (began if ended is None else ended) + count / rate
        known_at = {**self.known_at, **dict.fromkeys(requested, began)}
        stale = {partition: since for partition, since in self.stale.items() if since >= known_at.get(partition, 0.0)}
        changed_at = began if changed else self.changed_at
        after = replace(self, stale=stale, known_at=known_at, not_before=not_before)
        return replace(after, requested_at=began, changed_at=changed_at)
