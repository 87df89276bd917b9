"""Which leases and members have expired, decided without comparing clocks of two machines.

An observer notes when, on its own monotonic clock, it first saw each counter at its present value. A lease has expired
when its counter has not changed for the lease duration, which is the one that its owner's row says (`durations`). A
third of the lease duration is enough if the observer has seen no change since its first look and the stored time is
older than lease duration + clock skew allowance: that shortens a cold start. It is not zero, because the table itself
may have been unreachable for long: live owners renew within a third of the lease duration after its return.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import takewhile

from spark_ehbalance.leases.durations import needed, said
from spark_ehbalance.leases.last_changed import LastChanged
from spark_ehbalance.leases.model import Change, Lease, Member
from spark_ehbalance.leases.snapshot import Snapshot

#: How far apart wall clocks may be, in seconds. Azure's tokens allow five minutes as well.
CLOCK_SKEW_ALLOWANCE = 300.0


@dataclass(frozen=True, slots=True)
class Observation:
    """When the observer first saw a value that has not changed since: `since`, in seconds of its monotonic clock."""

    since: float
    #: The value has not changed since the observer's first look: only then does its stored time count.
    cold: bool = False


class _ByKey(Mapping[str, Observation]):
    """The observations of one kind of value by key, each computed when it is read."""

    def __init__(self, versions: Mapping[str, int], observations: Observations) -> None:
        self._versions = versions
        self._observations = observations

    def __getitem__(self, key: str) -> Observation:
        return self._observations.of(self._versions[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._versions)

    def __len__(self) -> int:
        return len(self._versions)


@dataclass(frozen=True, slots=True)
class Observations:
    """What one observer has seen of a group's leases and members.

    `last_changed` has the version in which each row last changed. `versions` and `times`, of equal length, tell when
    this observer first saw which version. A row has not changed since the first look at its version or a later one.
    If the snapshots carry a last-changed index, the cost of a look does not depend on the number of changed rows;
    snapshots that are read from a table do not, and each is compared with the one before.
    """

    last_changed: LastChanged = field(default_factory=LastChanged)
    versions: tuple[int, ...] = ()
    times: tuple[float, ...] = ()
    now: float = 0.0
    #: The version of the observer's first look; -1 after a break in which it did not look.
    first: int = -1
    begun: bool = False
    #: Seconds that any caller looks back at most: of older looks only the newest is needed.
    horizon: float = float("inf")
    _last: Snapshot | None = None

    @property
    def leases(self) -> Mapping[str, Observation]:
        """By partition, for the lease's counter."""
        return _ByKey(self.last_changed.versions.leases, self)

    @property
    def members(self) -> Mapping[str, Observation]:
        """By member, for its heartbeat."""
        return _ByKey(self.last_changed.versions.members, self)

    @property
    def handovers(self) -> Mapping[str, Observation]:
        """By partition, for its pending handover."""
        return _ByKey(self.last_changed.versions.handovers, self)

    def of(self, version: int) -> Observation:
        """The observation of a value that last changed in `version`."""
        index = bisect_left(self.versions, version)
        return Observation(self.times[index] if index < len(self.times) else self.now, version <= self.first)

    def seen_before(self, now: float, seconds: float) -> int:
        """The newest version that was seen at least `seconds` before `now`; -1: none. A value that last changed in it
        or earlier has not changed for `seconds`."""
        count = bisect_right(self.times, -seconds, key=lambda time: time - now)
        return self.versions[count - 1] if count else -1

    def updated(self, snapshot: Snapshot, now: float) -> Observations:
        """The observations after a look at `snapshot` at monotonic time `now`, in seconds."""
        last_changed = snapshot.last_changed or _compared(self.last_changed, self._last, snapshot)
        version = last_changed.version
        versions, times = self.versions, self.times
        if versions and version < versions[-1]:  # the table was recreated
            versions, times = (), ()
        if not versions or version > versions[-1]:
            versions, times = (*versions, version), (*times, now)
            if len(times) > 2 * _FORGOTTEN_LOOKS and now - times[_FORGOTTEN_LOOKS] > self.horizon:
                versions, times = versions[_FORGOTTEN_LOOKS:], times[_FORGOTTEN_LOOKS:]
        first = self.first if self.begun else version
        last = None if snapshot.last_changed else snapshot
        return Observations(last_changed, versions, times, now, first, True, self.horizon, last)

    def afresh(self) -> Observations:
        """The observations after a break so long that earlier looks prove nothing."""
        return Observations(begun=self.begun, horizon=self.horizon)


#: Looks beyond the horizon that are dropped at a time.
_FORGOTTEN_LOOKS = 64


def _compared(last_changed: LastChanged, last: Snapshot | None, snapshot: Snapshot) -> LastChanged:
    """The last-changed index of `snapshot`, compared with `last`, whose index was `last_changed`."""
    if last is None or last.leases.keys() - snapshot.leases.keys():  # the first look, or the table was recreated
        last, last_changed = Snapshot(snapshot.group), LastChanged(last_changed.version)
    leases_before = {
        partition: old
        for partition, lease in snapshot.leases.items()
        if (old := last.leases.get(partition)) is None or (old is not lease and old != lease)
    }
    ids = {*last.members, *snapshot.members}
    members_before = {id: row for id in ids if (row := last.members.get(id)) != snapshot.members.get(id)}
    if not leases_before and not members_before:
        return last_changed
    return last_changed.after(Change(snapshot.leases, leases_before, snapshot.members, members_before))


def expired_leases(
    observations: Observations, snapshot: Snapshot, now: float, wall_ms: int, unsaid: float, commit_ms: float = 0.0
) -> frozenset[str]:
    """The partitions of `snapshot` whose owner has shown no sign of life for the lease duration that its row says, or
    for `unsaid` seconds if it says none; and for the seconds that the group needs, where that is longer (`durations`).
    A commit counts as `commit_ms` while no member says what it takes.

    `observations` must include a look at `snapshot`. `now` is the monotonic clock in seconds, `wall_ms` the wall clock
    in milliseconds since 1970.
    """
    leases, durations = snapshot.leases, said(snapshot, unsaid)
    by_member, versions = durations.by_member, observations.last_changed.versions.leases

    def duration(partition: str) -> float:
        return by_member.get(leases[partition].owner or "", unsaid)

    shortest = min(durations.shortest, unsaid)  # of an owner that is no member any more
    shortest = max(shortest, needed(snapshot, commit_ms))
    unchanged = _unchanged_rows(observations, versions, leases, now, wall_ms, shortest, duration)
    return frozenset(partition for partition in unchanged if leases[partition].owner is not None)


def expired_members(
    observations: Observations, snapshot: Snapshot, now: float, wall_ms: int, unsaid: float, commit_ms: float = 0.0
) -> frozenset[str]:
    """The ids of the members of `snapshot` that have had no heartbeat for that duration; see `expired_leases`."""
    members, durations = snapshot.members, said(snapshot, unsaid)
    by_member, versions = durations.by_member, observations.last_changed.versions.members

    def duration(id: str) -> float:
        return by_member.get(id, unsaid)

    shortest = max(durations.shortest, needed(snapshot, commit_ms))
    return frozenset(_unchanged_rows(observations, versions, members, now, wall_ms, shortest, duration))


def overdue_handovers(observations: Observations, snapshot: Snapshot, now: float) -> frozenset[str]:
    """The partitions of `snapshot` whose pending handover the observer has seen for longer than its timeout."""
    handovers = observations.handovers
    return frozenset(
        partition
        for partition, handover in snapshot.ownership.pending.items()
        if now - handovers[partition].since >= handover.timeout_ms / 1000
    )


def tenured_leases(observations: Observations, snapshot: Snapshot, now: float, minimum: float) -> Set[str]:
    """The partitions of `snapshot` that have had the same owner for `minimum` seconds, as far as this observer knows.

    Those that it found at its first look count as well, or a new member would get nothing for `minimum` seconds.
    """
    return _Unchanged(
        observations.last_changed.versions.epochs, max(observations.seen_before(now, minimum), observations.first)
    )


class _Unchanged(Set[str]):
    """The keys whose version is at most `until`. Computed when read, as few strategies read it."""

    def __init__(self, versions: Mapping[str, int], until: int) -> None:
        self._versions = versions
        self._until = until

    def __contains__(self, key: object) -> bool:
        version = self._versions.get(key) if isinstance(key, str) else None
        return version is not None and version <= self._until

    def __iter__(self) -> Iterator[str]:
        # The versions rise: see `LastChanged`.
        return takewhile(self.__contains__, self._versions)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _unchanged_rows(
    observations: Observations,
    versions: Mapping[str, int],
    rows: Mapping[str, Lease] | Mapping[str, Member],
    now: float,
    wall_ms: int,
    shortest: float,
    duration: Callable[[str], float],
) -> list[str]:
    """The keys of the `rows` that have not changed for their `duration`, nor for the `shortest` time that all have."""
    unchanged: list[str] = []
    until, cold = _bounds(observations, now, shortest)
    bounds = {shortest: (until, cold)}
    for key, version in versions.items():
        if version > until and version > cold:
            break
        seconds = max(shortest, duration(key))
        if seconds not in bounds:
            bounds[seconds] = _bounds(observations, now, seconds)
        until_then, cold_then = bounds[seconds]
        if version <= until_then:
            unchanged.append(key)
        elif version <= cold_then:
            age_ms = wall_ms - rows[key].renewed_at_ms
            if age_ms >= (seconds + CLOCK_SKEW_ALLOWANCE) * 1000:
                unchanged.append(key)
    return unchanged


def _bounds(observations: Observations, now: float, seconds: float) -> tuple[int, int]:
    """The newest versions that count as unchanged for so many `seconds`: by this observer's clock alone, and together
    with the stored time."""
    cold = observations.seen_before(now, seconds / 3) >= observations.first
    return observations.seen_before(now, seconds), observations.first if cold else -1
