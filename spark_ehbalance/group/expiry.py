"""Detects expired leases and members without comparing the clocks of two machines.

An observer records when, on its own monotonic clock, it first read each counter at its current value. A lease expires
when its counter has not changed for the duration in its owner's row (`durations`). To shorten a cold start, a third of
the duration is enough if the counter has not changed since the observer's first read and the stored time is older than
lease duration + clock skew allowance. The wait cannot be zero, because live owners need that third to renew after an
outage of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import compress
from operator import is_not
from typing import TypeVar

from spark_ehbalance.group.durations import Durations
from spark_ehbalance.group.model import Lease, Member
from spark_ehbalance.group.snapshot import Snapshot

_Row = TypeVar("_Row", Lease, Member)

#: Allowed difference between wall clocks, in seconds. Azure's tokens allow five minutes as well.
CLOCK_SKEW_ALLOWANCE = 300.0


@dataclass(frozen=True, slots=True)
class Observation:
    """`since`: when the observer first read the current value, in seconds on its monotonic clock."""

    since: float
    #: Unchanged since the observer's first read. Stored times count only for such values.
    cold: bool = False


@dataclass(frozen=True, slots=True)
class Observations:
    """One observer's observations of a group's leases and members. In each mapping, the oldest come first."""

    #: By partition, for the lease's counter.
    leases: dict[str, Observation] = field(default_factory=dict)
    #: By member, for its heartbeat.
    members: dict[str, Observation] = field(default_factory=dict)
    #: By partition, for the lease's epoch.
    epochs: dict[str, Observation] = field(default_factory=dict)
    #: By partition, for its pending handover.
    handovers: dict[str, Observation] = field(default_factory=dict)
    begun: bool = False
    _last: Snapshot | None = None

    def updated(self, snapshot: Snapshot, now: float) -> Observations:
        """The observations after reading `snapshot` at monotonic time `now`, in seconds."""
        last = self._last
        if last is snapshot:
            return self
        changed = changed_rows(last.leases if last else {}, snapshot.leases)
        leases, epochs, handovers, ended, new = list[str](), list[str](), list[str](), list[str](), 0
        for partition, before, lease in changed:
            new += before is None
            if before is None or before.epoch != lease.epoch:
                epochs.append(partition)
                leases.append(partition)
            elif before.renewal != lease.renewal:
                leases.append(partition)
            if lease.handover != (before and before.handover):
                (handovers if lease.handover else ended).append(partition)
        if last and len(last.leases) + new > len(snapshot.leases):  # partitions are gone: the table was recreated
            return self.restarted().updated(snapshot, now)
        rows = changed_rows(last.members if last else {}, snapshot.members)
        members = [id for id, before, member in rows if before is None or before.counter != member.counter]
        gone = last.members.keys() - snapshot.members.keys() if last else ()
        seen = Observation(now, cold=not self.begun)
        return Observations(
            _with_changes(self.leases, seen, leases),
            _with_changes(self.members, seen, members, gone),
            _with_changes(self.epochs, seen, epochs),
            _with_changes(self.handovers, seen, handovers, ended),
            begun=True,
            _last=snapshot,
        )

    def restarted(self) -> Observations:
        """Empty observations, for use after a break so long that earlier reads prove nothing."""
        return Observations(begun=self.begun)


def changed_rows(before: Mapping[str, _Row], after: Mapping[str, _Row]) -> list[tuple[str, _Row | None, _Row]]:
    """The rows of `after` that are not the same objects in `before`, as (key, earlier row or None, row)."""
    if before is after:
        return []
    if list(before) == list(after):  # the usual case, in a tenth of the time
        rows = zip(after, before.values(), after.values(), strict=True)
        return list(compress(rows, map(is_not, before.values(), after.values())))
    return [(key, old, row) for key, row in after.items() if (old := before.get(key)) is not row]


def _with_changes(
    observed: dict[str, Observation], seen: Observation, changed: list[str], gone: Iterable[str] = ()
) -> dict[str, Observation]:
    """`observed` with the new observation `seen` for the `changed` keys, and without the `gone` keys."""
    if not changed and not gone:
        return observed
    noted = dict(observed)
    for key in (*changed, *gone):
        noted.pop(key, None)
    noted.update(dict.fromkeys(changed, seen))
    return noted


def expired_leases(
    observations: Observations, snapshot: Snapshot, durations: Durations, now: float, wall_ms: int
) -> frozenset[str]:
    """The partitions of `snapshot` whose lease expired.

    `observations` must include `snapshot`, and `durations` are its durations. `now` is the monotonic clock in seconds,
    `wall_ms` the wall clock in milliseconds since 1970.
    """
    leases = snapshot.leases
    # The default duration applies to an owner that is no longer a member.
    shortest = max(min(durations.shortest, durations.default), durations.needs)
    silent = _silent(
        observations.leases, leases, now, wall_ms, shortest, lambda p: durations.allowed_silence(leases[p].owner)
    )
    return frozenset(partition for partition in silent if leases[partition].owner is not None)


def expired_members(
    observations: Observations, snapshot: Snapshot, durations: Durations, now: float, wall_ms: int
) -> frozenset[str]:
    """The ids of the members of `snapshot` whose heartbeat expired; see `expired_leases`."""
    shortest = max(durations.shortest, durations.needs)
    members = snapshot.members
    return frozenset(_silent(observations.members, members, now, wall_ms, shortest, durations.allowed_silence))


def overdue_handovers(observations: Observations, snapshot: Snapshot, now: float) -> frozenset[str]:
    """The partitions of `snapshot` whose pending handover has exceeded its timeout."""
    return frozenset(
        partition
        for partition, handover in snapshot.ownership.pending.items()
        if now - observations.handovers[partition].since >= handover.timeout_ms / 1000
    )


def recently_moved_leases(observations: Observations, now: float, minimum: float) -> frozenset[str]:
    """The partitions whose owner changed within the last `minimum` seconds.

    Owners as of the first read do not count as changed; otherwise, a new member would get nothing for `minimum`
    seconds.
    """
    recently_moved = []
    for partition, seen in reversed(observations.epochs.items()):
        if seen.cold or now - seen.since >= minimum:
            break  # the others changed earlier
        recently_moved.append(partition)
    return frozenset(recently_moved)


def _silent(
    observed: dict[str, Observation],
    rows: Mapping[str, Lease] | Mapping[str, Member],
    now: float,
    wall_ms: int,
    shortest: float,
    duration: Callable[[str], float],
) -> list[str]:
    """The keys of the `rows` that have not changed for their `duration`; `shortest` is the minimum of all durations."""
    silent = []
    for key, seen in observed.items():
        passed = now - seen.since
        if passed < shortest and not (seen.cold and passed >= shortest / 3):
            break  # the others changed later
        seconds = max(shortest, duration(key))
        if passed < seconds:
            if not seen.cold or passed < seconds / 3:
                continue
            if wall_ms - rows[key].renewed_at_ms < (seconds + CLOCK_SKEW_ALLOWANCE) * 1000:
                continue
        silent.append(key)
    return silent
