"""What an explanation is made from: lease table, history, event hub, and the time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from spark_ehbalance.cli.reasons.findings import listed, span, them
from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.leases.durations import Durations
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.leases.model import Lease, Member, MemberState, QueryRecord
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.values.defaults import BALANCE_INTERVAL, LEASE_DURATION, PROCESSOR_LEASE_DURATION

#: Milliseconds for which events may be unread without a reason: a batch, and a trigger interval that is not long.
_PATIENCE_MS = 60_000

#: A batch is long if it takes so many times as long as the query's batches do on average.
_LONG_FACTOR = 3


@dataclass(frozen=True)
class HubFacts:
    """The event hub, asked after the table was read: the states of its partitions, and when it was created (None: not
    known). `levels`: the owner levels of those who read a partition, as far as that was tried. `problem`: why it could
    not be asked."""

    states: Mapping[str, PartitionState] = field(default_factory=dict)
    created_ms: int | None = None
    levels: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class Facts:
    """All that is known at `now_ms` (ms since 1970, by the clock of who asks). `alive` are the members that have been
    seen to renew while they were watched; of others the times in the table tell. `hub` is None if nobody named it. A
    store without `keeps_all` is a container of the Azure SDKs, where every owner is a member."""

    snapshot: Snapshot
    now_ms: int
    history: Sequence[OwnershipChange] = ()
    hub: HubFacts | None = None
    alive: frozenset[str] = frozenset()
    keeps_all: bool = True

    # --- members -----------------------------------------------------------------------------------------------

    @cached_property
    def durations(self) -> Durations:
        """After which silence each member is taken for dead."""
        default = LEASE_DURATION if self.keeps_all else PROCESSOR_LEASE_DURATION
        return Durations.of(self.snapshot, (self.snapshot.lease_duration_ms or 1000 * default) / 1000)

    @cached_property
    def last_seen_ms(self) -> Mapping[str, int]:
        """The last sign of life of each member and owner, by its clock."""
        seen = {each.id: each.renewed_at_ms for each in self.snapshot.members.values()}
        for lease in self.snapshot.leases.values():
            if lease.owner is not None:
                seen[lease.owner] = max(lease.renewed_at_ms, seen.get(lease.owner, 0))
        return seen

    def silence_ms(self, member: str) -> int:
        """For how long it has shown no sign of life."""
        return 0 if member in self.alive else max(0, self.now_ms - self.last_seen_ms.get(member, 0))

    def duration_ms(self, member: str | None) -> float:
        """After which silence others may take its leases."""
        return 1000 * self.durations.judged_by(member)

    def late(self, member: str) -> bool:
        """Whether it should have shown a sign of life by now: it renews after a third of the lease duration."""
        return self.silence_ms(member) > self.duration_ms(member) / 2

    def live(self, member: str) -> bool:
        """Whether it has shown a sign of life within its lease duration."""
        return member in self.last_seen_ms and self.silence_ms(member) <= self.duration_ms(member)

    @cached_property
    def anybody_lives(self) -> bool:
        """Whether there is a live member, or a live owner in a store that keeps no members."""
        return any(map(self.live, self.last_seen_ms))

    @cached_property
    def active(self) -> list[Member]:
        """The live members that take partitions, the oldest first."""
        members = sorted(self.snapshot.members.values(), key=lambda each: each.joined)
        return [each for each in members if each.state is MemberState.ACTIVE and self.live(each.id)]

    def name(self, member: str) -> str:
        """The member with its host."""
        row = self.snapshot.members.get(member)
        records = (each for each in self.snapshot.queries.values() if each.owner == member and each.host)
        host = row.host if row else next((each.host for each in records), "")
        return f"{member} (on {host})" if host else member

    def log(self, member: str) -> str:
        """Where its log is."""
        row = self.snapshot.members.get(member)
        host = f" on {row.host}" if row and row.host else ""
        return f"the log of {member}{host}" if self.record(member) is None else f"the driver's log of {member}{host}"

    def record(self, member: str) -> QueryRecord | None:
        """What the table knows of the query that runs as this member; None of a plain consumer."""
        row = self.snapshot.members.get(member)
        return None if row is None else self.snapshot.query_of(row)

    def batch_ms(self, member: str) -> float:
        """What its batches take on average; 0: not known."""
        row = self.snapshot.members.get(member)
        return 1000 * row.load.batch_seconds if row is not None and row.load is not None else 0.0

    def in_batch_ms(self, member: str) -> int | None:
        """For how long its batch has been running, as far as the table knows; None: there is none."""
        row = self.snapshot.members.get(member)
        since_ms = None if row is None else self.snapshot.in_batch_since_ms(row)
        return None if since_ms is None else max(0, self.now_ms - since_ms)

    def patience_ms(self, member: str) -> float:
        """For how long events may be unread, or a batch run, without a reason."""
        return max(_PATIENCE_MS, _LONG_FACTOR * self.batch_ms(member))

    # --- partitions --------------------------------------------------------------------------------------------

    def unread(self, lease: Lease) -> tuple[int, float | None]:
        """How many of the partition's events are unread, as the hub says or was last measured, and for how many ms the
        oldest has waited; None: not known."""
        lag, state = lease.behind, self.hub.states.get(lease.partition) if self.hub else None
        waited = lag.seconds(self.now_ms) if lag else None
        events = lag.events if lag else 0
        if state is not None and lease.checkpoint is not None:
            events = max(0, state.end - max(lease.checkpoint.next, state.begin))
            if events and not waited:
                waited = None
                newest = state.last_enqueued
                if newest is not None:  # the oldest has waited for longer
                    waited = max(0.0, self.now_ms / 1000 - newest.timestamp())
        return events, None if waited is None else 1000 * waited

    def exact(self, lease: Lease) -> bool:
        """Whether it was measured for how long the oldest unread event has waited: else it is at least so long."""
        return bool((lag := lease.behind) and lag.events and lag.unread_since_ms is not None)

    def _since_rest(self, lease: Lease) -> float:
        """The most that an event may have waited for: since all was read. Infinite, if that was not measured."""
        return self.now_ms - lag.at_ms if (lag := lease.behind) and not lag.events else math.inf

    def unread_text(self, leases: Iterable[Lease]) -> str:
        """What is unread of them together, as a clause."""
        found = [(each, *self.unread(each)) for each in leases]
        events, longest = sum(each for _, each, _ in found), max((w for *_, w in found if w is not None), default=0.0)
        text = f"{events:,} events are unread"
        if events and longest >= 500:
            exact = all(self.exact(lease) or self._since_rest(lease) <= longest for lease, each, _ in found if each)
            text += f", the oldest for {'' if exact else 'at least '}{span(longest)}"
        return text

    def stands(self, lease: Lease) -> bool:
        """Whether the owner has left events unread for so long that there is a reason."""
        events, waited = self.unread(lease)
        return events > 0 and waited is not None and waited > self.patience_ms(lease.owner or "")

    def takers(self, lease: Lease) -> list[str]:
        """Who may take the partition if its owner does not keep it: whom it is pinned to, or who has room."""
        counts = {each.id: len(self.snapshot.owned_by(each.id)) for each in self.active if each.id != lease.owner}
        limits = {each.id: each.max_owned for each in self.active}
        room = [id for id, count in counts.items() if (limit := limits[id]) is None or count < limit]
        pinned = [id for id in room if lease.pin is not None and id == lease.pin.to]
        return pinned or sorted(room, key=lambda id: counts[id])

    def taken_by(self, leases: Sequence[Lease], when: str = "") -> str:
        """The sentence that says who takes these partitions, if somebody can, and when: by default, as soon as it
        decides."""
        if not (takers := self.takers(leases[0])):
            others = any(each.id != leases[0].owner for each in self.active)
            why = "all others have maxPartitionsOwned partitions" if others else "nobody else is in the group"
            return f"Nobody takes {them(leases)}: {why}."
        when = when or f"within a balanceInterval ({BALANCE_INTERVAL:g} s by default)"
        return f"{listed([self.name(each) for each in takers], 'or', 4)} takes {them(leases)} {when}."
