"""Input and output of a strategy. Strategies do no I/O and read no clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_ehbalance.group.changes import CancelHandover, Claim, Defend, RequestHandover, Steal, Transition
from spark_ehbalance.group.defaults import HANDOVER_TIMEOUT, LEASE_DURATION
from spark_ehbalance.group.durations import minimum_tenure
from spark_ehbalance.group.expiry import Observations, recently_moved_leases
from spark_ehbalance.group.model import Author, MemberState
from spark_ehbalance.group.snapshot import Snapshot

#: handover timeout = max(handoverTimeout, 3 × average batch time), because a lagging query's batches grow; at most
#: 10 × handoverTimeout, because a query may hang.
_BATCHES, _MAXIMUM_TIMEOUTS = 3, 10


@dataclass(frozen=True, slots=True)
class View:
    """A group as one member sees it in one cycle.

    `expired` are the partitions whose lease expired, `live` are the ids of the live members including `me`, and
    `overdue` are the partitions whose pending handover is past its deadline. `max_owned` is the maximum number of
    partitions that this member may own; None means no limit. `handover_timeout_ms` is the option `handoverTimeout`.

    `pinned` are the partitions assigned by an operator, which a strategy does not move. `now` is the observer's
    monotonic time in seconds; `observations` contain the age of each row by the same clock, for strategies that wait.
    `lease_duration` is in seconds. `memory` is the memory of the member's last `Decision`, or None at first.
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
        """The live members that may get partitions, oldest first."""
        rows = map(self.snapshot.members.__getitem__, self.live)
        return tuple(
            [id for _, id in sorted([(row.joined, row.id) for row in rows if row.state is MemberState.ACTIVE])]
        )

    @property
    def recently_moved(self) -> frozenset[str]:
        """The partitions whose owner changed within the minimum tenure."""
        return recently_moved_leases(self.observations, self.now, minimum_tenure(self.lease_duration))

    def limit(self, id: str) -> int | None:
        """The maximum number of partitions that the member `id` may own; None if it has no limit or is not a member."""
        if id == self.me.id:
            return self.max_owned
        member = self.snapshot.members.get(id)
        return None if member is None else member.max_owned

    def upcoming_owners(self) -> Mapping[str, str]:
        """Partition → the active member that will get it through a pending handover or an operator's command."""
        ownership = self.snapshot.ownership
        if not ownership.pending and not self.pinned:
            return {}
        active = frozenset(self.active)
        pending = {partition: handover.to for partition, handover in ownership.pending.items() if handover.to in active}
        return pending | {partition: pin.to for partition, pin in ownership.pins.items() if partition in self.pinned}

    def claim(self, partition: str) -> Claim:
        """The claim of a lease that is unowned, expired, or overdue in a handover to this member."""
        lease = self.snapshot.leases[partition]
        unchanged = lease.counter if partition in self.expired else None
        overdue = lease.handover if partition in self.overdue else None
        return Claim(
            by=self.me,
            at_ms=self.at_ms,
            partition=partition,
            epoch=lease.epoch,
            unchanged_counter=unchanged,
            overdue_handover=overdue,
        )

    def request(self, partition: str, *, to: str | None = None, timeout_ms: int | None = None) -> RequestHandover:
        """The request to hand a lease over to `to`, by default to this member.

        The default timeout is max(handoverTimeout, 3 × the owner's average batch time), at most 10 × handoverTimeout.
        The timeout gives the batch time to end: if a partition is claimed earlier, its events are read twice.
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
        """The longest timeout of a handover."""
        return _MAXIMUM_TIMEOUTS * self.handover_timeout_ms

    def cancel(self, partition: str) -> CancelHandover:
        """The cancellation of a pending handover."""
        epoch = self.snapshot.leases[partition].epoch
        return CancelHandover(by=self.me, at_ms=self.at_ms, partition=partition, epoch=epoch)

    def defend(self, partition: str) -> Defend:
        """The defence of an owned lease in a race."""
        epoch = self.snapshot.leases[partition].epoch
        return Defend(by=self.me, at_ms=self.at_ms, partition=partition, epoch=epoch)

    def steal(self, partition: str) -> Steal:
        """The steal of a live lease from its owner."""
        epoch = self.snapshot.leases[partition].epoch
        return Steal(by=self.me, at_ms=self.at_ms, partition=partition, epoch=epoch)


@dataclass(frozen=True, slots=True)
class Decision:
    """The transitions of one cycle, with the reason for them or for having none.

    `rebalance_now`: decide again at once, in the same cycle. `rebalance_after`: decide again after this many seconds,
    or in the next cycle if that is earlier; it takes precedence over `rebalance_now`. `memory` is an immutable value
    that is part of this member's next view.
    """

    reason: str
    transitions: tuple[Transition, ...] = ()
    rebalance_now: bool = False
    rebalance_after: float | None = None
    memory: Any = field(default=None, repr=False)


#: A strategy's pure function, with its parameters bound.
Strategy = Callable[[View], Decision]
