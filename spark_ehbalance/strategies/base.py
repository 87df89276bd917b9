"""What a strategy is given and what it gives back. Strategies do no I/O and read no clock."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spark_ehbalance.leases.expiry import Observations
from spark_ehbalance.leases.model import Author, MemberState
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import CancelHandover, Claim, Defend, RequestHandover, Steal, Transition
from spark_ehbalance.strategies.shares import level
from spark_ehbalance.values.position import partition_order

_T = TypeVar("_T")

#: So many times as long as its batches take, as far as it has told, has an owner to hand a partition over, if that is
#: more than the time-out: the batches of one that falls behind grow longer and longer. A query that hangs is not waited
#: for longer than so many time-outs.
_BATCHES, _MOST_TIMEOUTS = 3, 10


@dataclass(frozen=True, slots=True)
class View:
    """A group as one member sees it in one cycle.

    `expired` are the partitions whose owner has shown no sign of life for the lease duration; `live` the ids of the
    members that have, oneself included. `overdue` are the partitions whose pending handover has passed its deadline,
    `tenured` those that have not changed hands for the minimum tenure. `max_owned` is the most partitions that this
    member may own; None: no limit. A handover asked for now may take `handover_timeout_ms`, or longer where the
    owner's batches do.

    `pinned` are the partitions that an operator has decided about: a strategy neither takes nor gives them. `now` is
    the observer's monotonic clock in seconds and `sightings` since when, by it, everything has been as it is, for
    strategies with waiting times of their own; `lease_duration` is in seconds. `memory` is what the same strategy has
    left in its last `Decision` of this member, None at first.
    """

    me: Author
    at_ms: int
    snapshot: Snapshot
    expired: frozenset[str]
    live: frozenset[str]
    rng: random.Random
    max_owned: int | None = None
    overdue: frozenset[str] = frozenset()
    tenured: Set[str] = frozenset()
    handover_timeout_ms: int = 30_000
    pinned: frozenset[str] = frozenset()
    now: float = 0.0
    observations: Observations = field(default_factory=Observations)
    lease_duration: float = 30.0
    memory: Any = None

    @property
    def active(self) -> tuple[str, ...]:
        """The live members that may be given partitions, oldest first."""
        return self.shared("active", self._active)

    def _active(self) -> tuple[str, ...]:
        members = self.snapshot.members
        active = [id for id in self.live if members[id].state is MemberState.ACTIVE]
        return tuple(sorted(active, key=lambda id: (members[id].joined, id)))

    def limit(self, id: str) -> int | None:
        """The most partitions that the member `id` may own; None: no limit, as for one that has left no word."""
        if id == self.me.id:
            return self.max_owned
        member = self.snapshot.members.get(id)
        return None if member is None else member.max_owned

    def upcoming_owners(self) -> Mapping[str, str]:
        """The partitions that are to come to an active member, by a handover, or that an operator wants there, with the
        members."""
        active, ownership = frozenset(self.active), self.snapshot.ownership
        promised = {partition: each.to for partition, each in ownership.pending.items() if each.to in active}
        return promised | {partition: pin.to for partition, pin in ownership.pins.items() if partition in self.pinned}

    def shared(self, name: str, compute: Callable[[], _T], *more: Hashable) -> _T:
        """The result of `compute`, which is called once for all members that see the same.

        It may depend on who owns what, on members, pins and loads, on who lives and what has expired, and on `more`;
        not on who asks, nor on signs of life and times.
        """
        key = (self.snapshot.load_version, self.live, self.expired, self.pinned, more)
        return self.snapshot.derived.by_ownership.get(name, compute, key)

    def claim(self, partition: str) -> Claim:
        """The transition that takes a lease which is free, expired, or promised by an overdue handover."""
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
        """The transition that asks the owner of a lease to hand it over to `to`, oneself unless said otherwise."""
        return RequestHandover(
            by=self.me,
            at_ms=self.at_ms,
            partition=partition,
            epoch=self.snapshot.leases[partition].epoch,
            to=to or self.me.id,
            timeout_ms=self._patience_ms(partition) if timeout_ms is None else timeout_ms,
        )

    def _patience_ms(self, partition: str) -> int:
        """How long the owner may take: what is claimed before its batch has ended is read twice."""
        owner = self.snapshot.members.get(self.snapshot.leases[partition].owner or "")
        batch_seconds = owner.load.batch_seconds if owner and owner.load else 0.0
        least = self.handover_timeout_ms
        return min(max(least, round(_BATCHES * batch_seconds * 1000)), self.longest_timeout_ms)

    @property
    def longest_timeout_ms(self) -> int:
        """How long an owner may take where there is no hurry."""
        return _MOST_TIMEOUTS * self.handover_timeout_ms

    def cancel(self, partition: str) -> CancelHandover:
        """The transition that calls a pending handover off."""
        epoch = self.snapshot.leases[partition].epoch
        return CancelHandover(by=self.me, at_ms=self.at_ms, partition=partition, epoch=epoch)

    def defend(self, partition: str) -> Defend:
        """The transition by which an owner says that it has stood its ground."""
        epoch = self.snapshot.leases[partition].epoch
        return Defend(by=self.me, at_ms=self.at_ms, partition=partition, epoch=epoch)

    def steal(self, partition: str) -> Steal:
        """The transition that takes a live lease from its owner."""
        epoch = self.snapshot.leases[partition].epoch
        return Steal(by=self.me, at_ms=self.at_ms, partition=partition, epoch=epoch)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do in this cycle and why; doing nothing has a reason as well.

    `rebalance_now`: this cycle is not over: decide anew at once. `rebalance_after`: decide anew after so many seconds,
    at the latest in the next cycle; it goes before `rebalance_now`.
    `memory` is given back with the next view of this member: an immutable value, as everything here.
    `would`: (partition, next owner) of what a dry run would move; it is told and not done.
    """

    reason: str
    transitions: tuple[Transition, ...] = ()
    rebalance_now: bool = False
    rebalance_after: float | None = None
    memory: Any = None
    would: tuple[tuple[str, str], ...] = ()


#: A strategy is a pure function. Its parameters, if any, are bound when it is chosen by name.
Strategy = Callable[[View], Decision]


@dataclass(slots=True)
class Layout:
    """Who owns what among the living. Not frozen: a strategy plays its own moves through on its own copy.

    What is `pinned` counts as its owner's, and is neither among the `unclaimed` nor `movable`. `limits` are those of
    the owners that have one, less what is still to come to them by a handover or an operator's order.
    """

    unclaimed: list[str] = field(default_factory=list)
    owned: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pinned: frozenset[str] = frozenset()
    limits: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, view: View) -> Layout:
        """The layout of `view`. As with the Event Processor an owner is known by what it owns; oneself always."""
        expired, leases = view.expired, view.snapshot.leases
        owned: dict[str, tuple[str, ...]] = {view.me.id: ()}
        free: list[str] = []
        for owner, partitions in view.snapshot.ownership.owned.items():
            if owner is None:
                free += partitions
            else:
                owned[owner] = partitions
        for owner in {owner for partition in expired if (owner := leases[partition].owner) is not None}:
            owned[owner] = tuple(p for p in owned[owner] if p not in expired)
            if not owned[owner] and owner != view.me.id:
                del owned[owner]
        if expired:
            free = sorted((*free, *expired), key=partition_order)
        unclaimed = [p for p in free if p not in view.pinned]
        coming = Counter(to for p, to in view.upcoming_owners().items() if p not in (*unclaimed, *owned.get(to, ())))
        limits = {id: max(0, limit - coming[id]) for id in owned if (limit := view.limit(id)) is not None}
        return cls(unclaimed, owned, view.pinned, limits)

    @property
    def partitions(self) -> int:
        """How many there are to share."""
        return len(self.unclaimed) + sum(map(len, self.owned.values()))

    def share(self) -> tuple[int, int]:
        """What every owner should have at least, as far as its limit allows, and how many should have one more."""
        limits = [self.limits.get(owner, self.partitions) for owner in self.owned]
        floor = int(min(level(self.partitions, limits), self.partitions))
        return floor, self.partitions - sum(min(limit, floor) for limit in limits)

    def full(self, owner: str) -> bool:
        """Whether `owner` may not have one more."""
        return len(self.owned[owner]) >= self.limits.get(owner, math.inf)

    def movable(self, owner: str) -> list[str]:
        """What may be taken from `owner`."""
        return [partition for partition in self.owned[owner] if partition not in self.pinned]

    def give(self, partition: str, to: str) -> None:
        """Play a claim or a steal through."""
        if partition in self.unclaimed:
            self.unclaimed.remove(partition)
        else:
            owner = next(owner for owner, theirs in self.owned.items() if partition in theirs)
            self.owned[owner] = tuple(p for p in self.owned[owner] if p != partition)
        self.owned[to] = (*self.owned[to], partition)
