"""The distribution of partitions among owners, for the Event Processor's strategies."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from spark_ehbalance.group.position import partition_order
from spark_ehbalance.group.strategies.base import View
from spark_ehbalance.group.strategies.shares import whole_share


@dataclass(slots=True)
class Distribution:
    """The live owners' partitions. Mutable, so that a strategy can simulate its moves.

    A `pinned` partition counts as its owner's, and is neither `unclaimed` nor `movable`. `limits` contains the limits
    of the owners that have one, minus the partitions that they will get through handovers and operators' commands.
    """

    unclaimed: list[str] = field(default_factory=list)
    owned: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pinned: frozenset[str] = frozenset()
    limits: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_view(cls, view: View) -> Distribution:
        """The distribution in `view`. As in the Event Processor, only `me` is listed even if it owns no partitions."""
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
    def total(self) -> int:
        """The number of partitions."""
        return len(self.unclaimed) + sum(map(len, self.owned.values()))

    def share(self) -> tuple[int, int]:
        """The number of partitions that every owner should own within its limit, and the number of owners that should
        own one more."""
        return whole_share(self.total, [self.limits.get(owner, self.total) for owner in self.owned])

    def is_full(self, owner: str) -> bool:
        """Whether `owner` has reached its limit."""
        return len(self.owned[owner]) >= self.limits.get(owner, math.inf)

    def movable(self, owner: str) -> list[str]:
        """The partitions that may be taken from `owner`."""
        return [partition for partition in self.owned[owner] if partition not in self.pinned]

    def move(self, partition: str, to: str) -> None:
        """Simulate a claim or a steal."""
        if partition in self.unclaimed:
            self.unclaimed.remove(partition)
        else:
            owner = next(owner for owner, theirs in self.owned.items() if partition in theirs)
            self.owned[owner] = tuple(p for p in self.owned[owner] if p != partition)
        self.owned[to] = (*self.owned[to], partition)
