"""Decides which partitions' states to request, and when. Pure. Times are seconds on a monotonic clock.

Event Hubs answers 50 such requests per second (quotas page: GetRuntimeInformation) from all readers together. So
requests become less frequent while no events arrive, and are rare while a batch runs. After a batch,
`HubWatcher.catch_up` requests states at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

#: Maximum requests per second of a group, and also of a starting query. It is just under half of the service's limit,
#: so that a group, a starting query and their requests for the list of partitions together stay within that limit.
MAX_REQUESTS = 24.0

#: Maximum number of partitions in the first request: two seconds' worth, so that a query can start reading some of its
#: many partitions before the states of the others are known.
MAX_NEW = 48

#: Length of the rate limit's window in seconds: slightly over one, because requests may arrive closer together than
#: they were sent.
_SECOND = 1.1

#: Growth of the poll interval, in seconds per second without a change.
_GROWTH = 0.05


class PollIntervals(NamedTuple):
    """Seconds between two requests.

    While the query waits: min(max(`shortest`, _GROWTH * seconds without a change), `longest`), where `longest` is about
    the duration of a batch with one event. While a batch runs: `resting`, because only metrics and measured loads need
    the states. For the list of partitions, and for the states of unwatched partitions: `listing`. While the hub does
    not answer: `retry`."""

    shortest: float = 0.1
    longest: float = 0.5
    resting: float = 1.0
    listing: float = 5.0
    retry: float = 1.0


INTERVALS = PollIntervals()


class RateLimiter:
    """Limits requests to `most` in any second."""

    def __init__(self, most: float) -> None:
        self._most = max(1, int(most))
        self._made: deque[tuple[float, int]] = deque()  # times and numbers of recent requests

    def room(self, now: float) -> int:
        """Number of requests that are allowed now."""
        while self._made and self._made[0][0] <= now - _SECOND:
            self._made.popleft()
        return self._most - sum(count for _, count in self._made)

    def take(self, count: int, now: float) -> None:
        """Record that `count` requests are made now."""
        self._made.append((now, count))

    def wait(self, now: float) -> float:
        """Seconds until more requests are allowed."""
        return max(0.001, self._made[0][0] + _SECOND - now) if self._made else 0.0


@dataclass(frozen=True, slots=True)
class PollSchedule:
    """Which partitions' states to request, and when. Immutable: methods return a changed copy.

    A group's `members` share `most_requests` per second; a member that has not joined yet assumes two. `stale` maps
    each partition to refresh to the time after which its state must be requested. `known_at` contains the time of the
    request for each known state. `unknown` is the number of partitions that were never requested. `is_urgent` means
    that a request is due as soon as the limit allows, at `not_before`. `requested_at` is the time of the last answered
    request, and `changed_at` the time of the last one whose response differed from the previous response."""

    intervals: PollIntervals = INTERVALS
    most_requests: float = MAX_REQUESTS
    members: int = 2
    watched: frozenset[str] = frozenset()
    stale: Mapping[str, float] = field(default_factory=dict)
    known_at: Mapping[str, float] = field(default_factory=dict)
    unknown: int = 0
    resting: bool = False
    is_urgent: bool = False
    not_before: float = 0.0
    requested_at: float = 0.0
    changed_at: float = 0.0

    def watch(self, partitions: Iterable[str], members: int) -> tuple[PollSchedule, bool]:
        """Poll `partitions` for events, and share the limit with `members`. Also returns whether a request is due at
        once because a partition is new."""
        watched = frozenset(partitions)
        added = watched - self.watched
        urgent = self.is_urgent or bool(added)
        after = replace(self, watched=watched, members=max(1, members), resting=False, is_urgent=urgent)
        if any(self.known_at.get(partition, 0.0) < self.requested_at for partition in added):
            after = replace(
                after, not_before=0.0
            )  # the limit does not apply to a newly claimed partition, because claims are rare
        return after, bool(added)

    def rest(self) -> PollSchedule:
        """Poll rarely until the next `watch`, because a batch is running."""
        return replace(self, resting=True)

    def refresh(self, partitions: Iterable[str], now: float) -> PollSchedule:
        """Request the states of `partitions` again after `now`, as soon as the limit allows, in addition to watched
        ones."""
        return replace(self, stale={**self.stale, **dict.fromkeys(partitions, now)})

    def due(self) -> float:
        """When the next request is due."""
        shortest, longest, resting, *_ = self.intervals
        waiting = min(max(shortest, _GROWTH * (self.requested_at - self.changed_at)), longest)
        pause = 0.0 if self.is_urgent or self.stale or self.unknown else resting if self.resting else waiting
        return max(self.not_before, self.requested_at + pause)

    def choose(self, partitions: Sequence[str], *, also_others: bool) -> tuple[PollSchedule, list[str]]:
        """Choose the `partitions` to request now: at most `MAX_NEW` new ones, and as many stale and watched ones as the
        limit allows in a second, those with the oldest states first. With `also_others`, all partitions count as
        watched."""
        most = max(1, int(self.most_requests / self.members))
        unknown = [partition for partition in partitions if partition not in self.known_at]
        new = unknown[:MAX_NEW]
        watched = self.known_at.keys() & (partitions if also_others else self.watched)
        oldest = sorted(watched, key=self.known_at.__getitem__)[:most]
        stale = {partition: self.stale[partition] for partition in partitions if partition in self.stale}
        refreshed = sorted(stale.keys() - {*new}, key=lambda partition: self.known_at.get(partition, 0.0))
        # watched partitions get up to half of the requests
        known = dict.fromkeys(refreshed[: max((most + 1) // 2, most - len(oldest))] + oldest)
        return replace(self, is_urgent=False, unknown=len(unknown) - len(new), stale=stale), new + list(known)[:most]

    def answered(
        self, requested: Sequence[str], began: float, *, changed: bool, others: int = 0, ended: float | None = None
    ) -> PollSchedule:
        """Record that the partitions `requested` at `began` were answered. `changed` means that a state differs from
        before. `others` is the number of other requests, and `ended` the time of the last request if the requests took
        a while."""
        rate = self.most_requests / self.members
        if self.unknown:  # `HubMetadata` limits the rate per connection only
            not_before = began if ended is None else ended + _SECOND
        else:  # urgent requests beyond the limit delay the next request by at most a second
            count = min(len(requested) + others, max(1.0, rate))
            not_before = (began if ended is None else ended) + count / rate
        known_at = {**self.known_at, **dict.fromkeys(requested, began)}
        stale = {partition: since for partition, since in self.stale.items() if since >= known_at.get(partition, 0.0)}
        changed_at = began if changed else self.changed_at
        after = replace(self, stale=stale, known_at=known_at, not_before=not_before)
        return replace(after, requested_at=began, changed_at=changed_at)
