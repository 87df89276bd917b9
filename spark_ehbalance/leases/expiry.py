"""Who is still alive, decided without comparing two machines' clocks.

An observer notes when, on its own monotonic clock, it first saw a lease's counter at its present value. A counter
that has stood still for the lease duration means that the owner is gone. Only where the table's stored time is older
than the lease duration by a large allowance for skew is a third of it enough, which spares a cold start most of the
wait.
Not all, as the table itself may have been away for long: who is alive renews within a third after its return.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import takewhile

from spark_ehbalance.leases.last_changed import LastChanged
from spark_ehbalance.leases.model import Change, Lease, Member
from spark_ehbalance.leases.snapshot import Snapshot

#: How far wall clocks may be apart, in seconds. Azure's own tokens allow five minutes.
CLOCK_SKEW_ALLOWANCE = 300.0


@dataclass(frozen=True, slots=True)
class Observation:
    """Since when, by the observer's monotonic clock in seconds, something has been seen as it is."""

    since: float
    #: It was there at the observer's first look and has not moved since: only then is its stored time of any use.
    cold: bool = False


class Seen(Mapping[str, Observation]):
    """The sightings of rows of one kind, worked out when they are asked for."""

    def __init__(self, stamps: Mapping[str, int], observations: Observations) -> None:
        self._stamps = stamps
        self._observations = observations

    def __getitem__(self, key: str) -> Observation:
        return self._observations.of(self._stamps[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._stamps)

    def __len__(self) -> int:
        return len(self._stamps)


@dataclass(frozen=True, slots=True)
class Observations:
    """What one observer has seen of a group's leases and members.

    A row's trail tells in which version it last changed, and `versions` and `times`, side by side, when this observer
    first saw which version: the first look at that version or a later one is since when the row has stood still. So a
    look costs the same however many rows have changed, where `apply` follows the trail. Where it does not, as the
    snapshot was read from a table, the snapshot is compared with the one before.
    """

    last_changed: LastChanged = field(default_factory=LastChanged)
    versions: tuple[int, ...] = ()
    times: tuple[float, ...] = ()
    now: float = 0.0
    #: The version of the observer's very first look, if it has been looking without a break since.
    first: int = -1
    begun: bool = False
    #: What was seen more seconds ago than this may count as seen that long ago.
    horizon: float = float("inf")
    _last: Snapshot | None = None

    @property
    def leases(self) -> Mapping[str, Observation]:
        """Each lease's counter."""
        return Seen(self.last_changed.leases, self)

    @property
    def members(self) -> Mapping[str, Observation]:
        """Each member's heartbeat."""
        return Seen(self.last_changed.members, self)

    @property
    def epochs(self) -> Mapping[str, Observation]:
        """Each lease's epoch."""
        return Seen(self.last_changed.epochs, self)

    @property
    def handovers(self) -> Mapping[str, Observation]:
        """Each pending handover."""
        return Seen(self.last_changed.handovers, self)

    def of(self, version: int) -> Observation:
        """The sighting of what has not changed since `version`."""
        place = bisect_left(self.versions, version)
        return Observation(self.times[place] if place < len(self.times) else self.now, version <= self.first)

    def seen_before(self, now: float, seconds: float) -> int:
        """The newest version that was seen `seconds` before `now` or earlier; -1: none. What has not changed since that
        version has been seen to stand still for as long."""
        place = bisect_right(self.times, -seconds, key=lambda time: time - now)
        return self.versions[place - 1] if place else -1

    def updated(self, snapshot: Snapshot, now: float) -> Observations:
        """The sightings after seeing `snapshot` at monotonic time `now`, in seconds."""
        last_changed = snapshot.last_changed or _followed(self.last_changed, self._last, snapshot)
        version = last_changed.version
        versions, times = self.versions, self.times
        if versions and version < versions[-1]:  # the table was made anew
            versions, times = (), ()
        if not versions or version > versions[-1]:
            versions, times = (*versions, version), (*times, now)
            if len(times) > 2 * _SPARE_LOOKS and now - times[_SPARE_LOOKS] > self.horizon:
                versions, times = versions[_SPARE_LOOKS:], times[_SPARE_LOOKS:]
        first = self.first if self.begun else version
        last = None if snapshot.last_changed else snapshot
        return Observations(last_changed, versions, times, now, first, True, self.horizon, last)

    def afresh(self) -> Observations:
        """Those of an observer who has not looked for so long that what it has seen before proves nothing."""
        return Observations(begun=self.begun, horizon=self.horizon)


#: Looks beyond the horizon that are forgotten at a time.
_SPARE_LOOKS = 64


def _followed(last_changed: LastChanged, last: Snapshot | None, snapshot: Snapshot) -> LastChanged:
    """The trail of `snapshot`, whose predecessor was `last`."""
    if last is None or last.leases.keys() - snapshot.leases.keys():
        last, last_changed = (
            Snapshot(snapshot.group),
            LastChanged(last_changed.version),
        )  # the first one, or of a table made anew
    before = {
        partition: old
        for partition, lease in snapshot.leases.items()
        if (old := last.leases.get(partition)) is None or (old is not lease and old != lease)
    }
    ids = {*last.members, *snapshot.members}
    members_before = {id: was for id in ids if (was := last.members.get(id)) != snapshot.members.get(id)}
    if not before and not members_before:
        return last_changed
    return last_changed.after(Change(snapshot.leases, before, snapshot.members, members_before))


def expired_leases(
    observations: Observations, snapshot: Snapshot, now: float, wall_ms: int, lease_duration: float
) -> frozenset[str]:
    """The partitions of `snapshot` whose owner has shown no sign of life for `lease_duration` seconds.

    `sightings` must have been updated with `snapshot`; `now` is the monotonic clock in seconds, `wall_ms` the wall
    clock in milliseconds.
    """
    stale = _stale(observations, observations.last_changed.leases, snapshot.leases, now, wall_ms, lease_duration)
    return frozenset(partition for partition in stale if snapshot.leases[partition].owner is not None)


def expired_members(
    observations: Observations, snapshot: Snapshot, now: float, wall_ms: int, lease_duration: float
) -> frozenset[str]:
    """The ids of the members of `snapshot` without a heartbeat for `lease_duration` seconds."""
    return frozenset(
        _stale(observations, observations.last_changed.members, snapshot.members, now, wall_ms, lease_duration)
    )


def overdue_handovers(observations: Observations, snapshot: Snapshot, now: float) -> frozenset[str]:
    """The partitions of `snapshot` whose pending handover was seen longer ago than its timeout."""
    handovers = observations.handovers
    return frozenset(
        partition
        for partition, handover in snapshot.ownership.pending.items()
        if now - handovers[partition].since >= handover.timeout_ms / 1000
    )


def tenured_leases(observations: Observations, snapshot: Snapshot, now: float, minimum: float) -> Set[str]:
    """The partitions of `snapshot` that have not changed hands for `minimum` seconds, as far as this observer knows:
    what it found at its first look counts, or a new member would be given nothing for as long."""
    return _Unchanged(observations.last_changed.epochs, max(observations.seen_before(now, minimum), observations.first))


class _Unchanged(Set[str]):
    """The keys whose version is not after a given one; few ask for them, so they are not gathered before."""

    def __init__(self, versions: Mapping[str, int], until: int) -> None:
        self._versions = versions
        self._until = until

    def __contains__(self, key: object) -> bool:
        version = self._versions.get(key) if isinstance(key, str) else None
        return version is not None and version <= self._until

    def __iter__(self) -> Iterator[str]:
        # The oldest come first.
        return takewhile(self.__contains__, self._versions)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _stale(
    observations: Observations,
    stamps: Mapping[str, int],
    rows: Mapping[str, Lease] | Mapping[str, Member],
    now: float,
    wall_ms: int,
    lease_duration: float,
) -> list[str]:
    stale = []
    until = observations.seen_before(now, lease_duration)
    cold = observations.first if observations.seen_before(now, lease_duration / 3) >= observations.first else -1
    for key, version in stamps.items():
        if version > until and version > cold:
            break
        age_ms = wall_ms - rows[key].renewed_at_ms
        if version <= until or age_ms >= (lease_duration + CLOCK_SKEW_ALLOWANCE) * 1000:
            stale.append(key)
    return stale
