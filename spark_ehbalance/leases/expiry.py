"""Who is still alive, decided without comparing two machines' clocks.

An observer notes when, on its own monotonic clock, it first saw a lease's counter at its present value. A counter
that has stood still for the lease duration means that the owner is gone. Only where the table's stored time is older
than the lease duration by a large allowance for skew is it believed at once: that spares a cold start the wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_ehbalance.leases.model import Lease, Member, Snapshot

#: How far wall clocks may be apart, in seconds. Azure's own tokens allow five minutes.
CLOCK_SKEW_ALLOWANCE = 300.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """A counter and the observer's monotonic time, in seconds, at which it was first seen at this value."""

    counter: tuple[int, int] | tuple[str, int]
    since: float
    #: It was there at the observer's first look and has not moved since: only then is its stored time of any use.
    cold: bool = False


@dataclass(frozen=True, slots=True)
class Sightings:
    """What one observer has seen of a group's leases and members."""

    leases: Mapping[str, Sighting] = field(default_factory=dict)
    members: Mapping[str, Sighting] = field(default_factory=dict)
    begun: bool = False

    def updated(self, snapshot: Snapshot, now: float) -> Sightings:
        """The sightings after seeing `snapshot` at monotonic time `now`, in seconds."""
        return Sightings(
            leases=_updated(self.leases, snapshot.leases, now, cold=not self.begun),
            members=_updated(self.members, snapshot.members, now, cold=not self.begun),
            begun=True,
        )


def expired_leases(
    sightings: Sightings, snapshot: Snapshot, now: float, wall_ms: int, lease_duration: float
) -> frozenset[str]:
    """The partitions of `snapshot` whose owner has shown no sign of life for `lease_duration` seconds.

    `sightings` must have been updated with `snapshot`; `now` is the monotonic clock in seconds, `wall_ms` the wall
    clock in milliseconds.
    """
    return frozenset(
        partition
        for partition, lease in snapshot.leases.items()
        if lease.owner is not None and _stale(sightings.leases[partition], lease, now, wall_ms, lease_duration)
    )


def expired_members(
    sightings: Sightings, snapshot: Snapshot, now: float, wall_ms: int, lease_duration: float
) -> frozenset[str]:
    """The ids of the members of `snapshot` without a heartbeat for `lease_duration` seconds."""
    return frozenset(
        id
        for id, member in snapshot.members.items()
        if _stale(sightings.members[id], member, now, wall_ms, lease_duration)
    )


def _updated(
    seen: Mapping[str, Sighting], rows: Mapping[str, Lease] | Mapping[str, Member], now: float, *, cold: bool
) -> dict[str, Sighting]:
    updated = {}
    for key, row in rows.items():
        sighting = seen.get(key)
        updated[key] = sighting if sighting and sighting.counter == row.counter else Sighting(row.counter, now, cold)
    return updated


def _stale(sighting: Sighting, row: Lease | Member, now: float, wall_ms: int, lease_duration: float) -> bool:
    if now - sighting.since >= lease_duration:
        return True
    return sighting.cold and wall_ms - row.renewed_at_ms >= (lease_duration + CLOCK_SKEW_ALLOWANCE) * 1000
