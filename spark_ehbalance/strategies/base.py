"""What a strategy is given and what it gives back. Strategies do no I/O and read no clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spark_ehbalance.leases.expiry import Sightings
from spark_ehbalance.leases.model import Author, Snapshot
from spark_ehbalance.leases.transitions import CancelHandover, Claim, RequestHandover, Steal, Transition


@dataclass(frozen=True, slots=True)
class View:
    """A group as one member sees it in one cycle.

    `expired` are the partitions whose owner has shown no sign of life for the lease duration; `live` the ids of the
    members that have, oneself included. `overdue` are the partitions whose pending handover has passed its deadline,
    `tenured` those that have not changed hands for the minimum tenure. `max_owned` is the most partitions that this
    member may own; None: no limit. A handover asked for now may take `handover_timeout_ms`.

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
    tenured: frozenset[str] = frozenset()
    handover_timeout_ms: int = 30_000
    pinned: frozenset[str] = frozenset()
    now: float = 0.0
    sightings: Sightings = field(default_factory=Sightings)
    lease_duration: float = 30.0
    memory: Any = None

    def claim(self, partition: str) -> Claim:
        """The transition that takes a lease which is free, expired, or promised by an overdue handover."""
        lease = self.snapshot.leases[partition]
        still = lease.counter if partition in self.expired else None
        overdue = lease.handover if partition in self.overdue else None
        return Claim(by=self.me, at_ms=self.at_ms, partition=partition, epoch=lease.epoch, still=still, overdue=overdue)

    def request(self, partition: str) -> RequestHandover:
        """The transition that asks the owner of a lease to hand it over to oneself."""
        return RequestHandover(
            by=self.me,
            at_ms=self.at_ms,
            partition=partition,
            epoch=self.snapshot.leases[partition].epoch,
            to=self.me.id,
            timeout_ms=self.handover_timeout_ms,
        )

    def cancel(self, partition: str) -> CancelHandover:
        """The transition that calls a pending handover off."""
        epoch = self.snapshot.leases[partition].epoch
        return CancelHandover(by=self.me, at_ms=self.at_ms, partition=partition, epoch=epoch)

    def steal(self, partition: str) -> Steal:
        """The transition that takes a live lease from its owner."""
        epoch = self.snapshot.leases[partition].epoch
        return Steal(by=self.me, at_ms=self.at_ms, partition=partition, epoch=epoch)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do in this cycle and why; doing nothing has a reason as well.

    `again`: decide anew at once, without waiting for the next cycle; `after`: in so many seconds at the latest.
    `memory` is given back with the next view of this member: an immutable value, as everything here.
    """

    reason: str
    transitions: tuple[Transition, ...] = ()
    again: bool = False
    after: float | None = None
    memory: Any = None


#: A strategy is a pure function. Its parameters, if any, are bound when it is chosen by name.
Strategy = Callable[[View], Decision]


@dataclass(slots=True)
class Layout:
    """Who owns what among the living. Not frozen: a strategy plays its own moves through on its own copy."""

    unclaimed: list[str] = field(default_factory=list)
    owned: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, view: View) -> Layout:
        """The layout of `view`. As with the Event Processor an owner is known by what it owns; oneself always."""
        layout = cls(owned={view.me.id: []})
        for partition, lease in view.snapshot.leases.items():
            if lease.owner is None or partition in view.expired:
                layout.unclaimed.append(partition)
            else:
                layout.owned.setdefault(lease.owner, []).append(partition)
        return layout

    def give(self, partition: str, to: str) -> None:
        """Play a claim or a steal through."""
        if partition in self.unclaimed:
            self.unclaimed.remove(partition)
        for partitions in self.owned.values():
            if partition in partitions:
                partitions.remove(partition)
        self.owned[to].append(partition)
