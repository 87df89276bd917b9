"""Who is still alive, decided without comparing two machines' clocks.

An observer notes when, on its own monotonic clock, it first saw a lease's counter at its present value. A counter
that has stood still for the lease duration means that the owner is gone. Only where the table's stored time is older
than the lease duration by a large allowance for skew is a third of it enough, which spares a cold start most of the
wait.
Not all, as the table itself may have been away for long: who is alive renews within a third after its return.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_ehbalance.leases.model import Lease, Member, Snapshot

#: How far wall clocks may be apart, in seconds. Azure's own tokens allow five minutes.
CLOCK_SKEW_ALLOWANCE = 300.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """A counter (or whatever else may change) and the observer's monotonic time, in seconds, at which it was first
    seen at this value."""

    counter: object
    since: float
    #: It was there at the observer's first look and has not moved since: only then is its stored time of any use.
    cold: bool = False


@dataclass(frozen=True, slots=True)
class Sightings:
    """What one observer has seen of a group's leases and members."""

    leases: Mapping[str, Sighting] = field(default_factory=dict)
    members: Mapping[str, Sighting] = field(default_factory=dict)
    epochs: Mapping[str, Sighting] = field(default_factory=dict)
    handovers: Mapping[str, Sighting] = field(default_factory=dict)
    begun: bool = False

    def updated(self, snapshot: Snapshot, now: float) -> Sightings:
        """The sightings after seeing `snapshot` at monotonic time `now`, in seconds."""
        cold, leases = not self.begun, snapshot.leases
        return Sightings(
            leases=_updated(self.leases, {p: lease.counter for p, lease in leases.items()}, now, cold),
            members=_updated(self.members, {id: member.counter for id, member in snapshot.members.items()}, now, cold),
            epochs=_updated(self.epochs, {p: lease.epoch for p, lease in leases.items()}, now, cold),
            handovers=_updated(
                self.handovers, {p: each.handover for p, each in leases.items() if each.handover}, now, cold
            ),
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


def overdue_handovers(sightings: Sightings, snapshot: Snapshot, now: float) -> frozenset[str]:
    """The partitions of `snapshot` whose pending handover was seen longer ago than its timeout."""
    return frozenset(
        partition
        for partition, lease in snapshot.leases.items()
        if lease.handover and now - sightings.handovers[partition].since >= lease.handover.timeout_ms / 1000
    )


def tenured_leases(sightings: Sightings, snapshot: Snapshot, now: float, minimum: float) -> frozenset[str]:
    """The partitions of `snapshot` that have not changed hands for `minimum` seconds, as far as this observer knows:
    what it found at its first look counts, or a new member would be given nothing for as long."""
    epochs = sightings.epochs
    return frozenset(p for p in snapshot.leases if epochs[p].cold or now - epochs[p].since >= minimum)


def _updated(
    seen: Mapping[str, Sighting], counters: Mapping[str, object], now: float, cold: bool
) -> dict[str, Sighting]:
    updated = {}
    for key, counter in counters.items():
        sighting = seen.get(key)
        updated[key] = sighting if sighting and sighting.counter == counter else Sighting(counter, now, cold)
    return updated


def _stale(sighting: Sighting, row: Lease | Member, now: float, wall_ms: int, lease_duration: float) -> bool:
    if now - sighting.since >= lease_duration:
        return True
    old = wall_ms - row.renewed_at_ms >= (lease_duration + CLOCK_SKEW_ALLOWANCE) * 1000
    return sighting.cold and old and now - sighting.since >= lease_duration / 3
