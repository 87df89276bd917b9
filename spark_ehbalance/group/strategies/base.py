"""What a strategy takes and returns. Strategies do no I/O and read no clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_ehbalance.group.changes import CancelHandover, Claim, Defend, RequestHandover, Steal, Transition
from spark_ehbalance.group.defaults import HANDOVER_TIMEOUT, LEASE_DURATION
from spark_ehbalance.group.durations import minimum_tenure
from spark_ehbalance.group.expiry import Observations, untenured_leases
from spark_ehbalance.group.model import Author, MemberState
from spark_ehbalance.group.snapshot import Snapshot

#: handover timeout = max(handoverTimeout, 3 × average batch time), at most 10 × handoverTimeout. The batches of a query
#: that falls behind grow longer and longer; a query that hangs is not waited for longer than the maximum.
_BATCHES, _MAXIMUM_TIMEOUTS = 3, 10


@dataclass(frozen=True, slots=True)
class View:
    """A group as one member sees it in one cycle.

    `expired` are the partitions whose owner has shown no sign of life for the lease duration; `live` the ids of the
    members that have, `me` included. `overdue` are the partitions whose pending handover has passed its deadline.
    `max_owned` is the most partitions that this member may own; None: no limit. `handover_timeout_ms` is the option
    `handoverTimeout`; `request` says how long a handover may take.

    `pinned` are the partitions that an operator has decided about: a strategy neither takes nor gives them. `now` is
    the observer's monotonic clock in seconds; `observations` tell since when, by that clock, each row has not changed,
    for strategies with waiting times of their own. `lease_duration` is in seconds. `memory` is what the same strategy
    left in this member's last `Decision`, None at first.
    """

    me: Author
    at_ms: int
    snapshot: Snapshot
    expired: frozenset[str]
    live: frozenset[str]
    rng: random.Random
    max_owned: int | None = None
    overdue: frozenset[str] = frozenset()
    handover_timeout_ms: int = round(HANDOVER_TIMEOUT * 1000)
    pinned: frozenset[str] = frozenset()
    now: float = 0.0
    observations: Observations = field(default_factory=Observations)
    lease_duration: float = LEASE_DURATION
    memory: Any = None

    @property
    def active(self) -> tuple[str, ...]:
        """The live members that may be given partitions, oldest first."""
        rows = map(self.snapshot.members.__getitem__, self.live)
        return tuple(
            [id for _, id in sorted([(row.joined, row.id) for row in rows if row.state is MemberState.ACTIVE])]
        )

    @property
    def untenured(self) -> frozenset[str]:
        """The partitions that have changed hands within the minimum tenure."""
        return untenured_leases(self.observations, self.now, minimum_tenure(self.lease_duration))

    def limit(self, id: str) -> int | None:
        """The most partitions that the member `id` may own; None: no limit, as for an owner that is no member."""
        if id == self.me.id:
            return self.max_owned
        member = self.snapshot.members.get(id)
        return None if member is None else member.max_owned

    def upcoming_owners(self) -> Mapping[str, str]:
        """Partition → the active member that a pending handover or an operator's order gives it to."""
        ownership = self.snapshot.ownership
        if not ownership.pending and not self.pinned:
            return {}
        active = frozenset(self.active)
        pending = {partition: handover.to for partition, handover in ownership.pending.items() if handover.to in active}
        return pending | {partition: pin.to for partition, pin in ownership.pins.items() if partition in self.pinned}

    def claim(self, partition: str) -> Claim:
        """The transition that takes a lease which is unowned, expired, or to come here by an overdue handover."""
        lease = self.snapshot.leases[partition]
        still = lease.counter if partition in self.expired else None
        overdue = lease.handover if partition in self.overdue else None
        return Claim(
            by=self.me,
            at_ms=self.at_ms,
            partition=partition,
            epoch=lease.epoch,
            unchanged_counter=still,
            overdue_handover=overdue,
        )

    def request(self, partition: str, *, to: str | None = None, timeout_ms: int | None = None) -> RequestHandover:
        """The transition that asks a lease's owner to hand it over to `to`, by default this member.

        Unless given, timeout = max(handoverTimeout, 3 × the owner's average batch time), at most 10 × handoverTimeout:
        a partition that is claimed before its batch has ended is read twice.
        """
        return RequestHandover(
            by=self.me,
            at_ms=self.at_ms,
            partition=partition,
            epoch=self.snapshot.leases[partition].epoch,
            to=to or self.me.id,
            timeout_ms=self._timeout_ms(partition) if timeout_ms is None else timeout_ms,
        )

    def _timeout_ms(self, partition: str) -> int:
        owner = self.snapshot.members.get(self.snapshot.leases[partition].owner or "")
        batch_seconds = owner.load.batch_seconds if owner and owner.load else 0.0
        wanted = max(self.handover_timeout_ms, round(_BATCHES * batch_seconds * 1000))
        return min(wanted, self.longest_timeout_ms)

    @property
    def longest_timeout_ms(self) -> int:
        """The longest that an owner may take."""
        return _MAXIMUM_TIMEOUTS * self.handover_timeout_ms

    def cancel(self, partition: str) -> CancelHandover:
        """The transition that cancels a pending handover."""
        epoch = self.snapshot.leases[partition].epoch
        return CancelHandover(by=self.me, at_ms=self.at_ms, partition=partition, epoch=epoch)

    def defend(self, partition: str) -> Defend:
        """The transition by which an owner defends its lease in a race."""
        epoch = self.snapshot.leases[partition].epoch
        return Defend(by=self.me, at_ms=self.at_ms, partition=partition, epoch=epoch)

    def steal(self, partition: str) -> Steal:
        """The transition that takes a live lease from its owner."""
        epoch = self.snapshot.leases[partition].epoch
        return Steal(by=self.me, at_ms=self.at_ms, partition=partition, epoch=epoch)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do in this cycle, and why; doing nothing has a reason as well.

    `rebalance_now`: decide again at once, in the same cycle. `rebalance_after`: seconds until it decides again,
    at the latest in the next cycle; it precedes `rebalance_now`. `memory` comes back with this member's next view: an
    immutable value.
    """

    reason: str
    transitions: tuple[Transition, ...] = ()
    rebalance_now: bool = False
    rebalance_after: float | None = None
    memory: Any = field(default=None, repr=False)


#: A pure function. Its parameters, if any, are bound when the strategy is chosen by name.
Strategy = Callable[[View], Decision]
