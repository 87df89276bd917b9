"""An assignment in the making, computed in the same way by everybody who sees the same group."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from spark_ehbalance.strategies.base import View
from spark_ehbalance.values.position import partition_order

#: Sums of weights are not exact; a gap must be larger than a weight by this.
_ROUNDING = 1e-9


def held(view: View) -> Mapping[str, tuple[str, ...]]:
    """What each active member has, a pending handover or an operator's order counting as done."""
    owned: dict[str, list[str]] = {id: [] for id in view.active}
    promised = view.upcoming_owners()
    for owner, partitions in view.snapshot.ownership.owned.items():
        for partition in partitions:
            to = promised.get(partition, owner)
            if to in owned and (partition in promised or partition not in view.expired):
                owned[to].append(partition)
    return {id: tuple(partitions) for id, partitions in owned.items()}


def initial_plan(view: View, weights: Mapping[str, float]) -> tuple[Plan, list[str]]:
    """The plan in which everybody has what it has, a pending handover or an operator's order counting as done, and what
    is nobody's, or the partition of a member that leaves. What is pinned is never among the latter."""
    members, leases, promised = view.snapshot.members, view.snapshot.leases, view.upcoming_owners()
    plan = Plan({id: members[id].max_owned for id in view.active}, weights)
    unassigned = []
    for partition, lease in leases.items():
        owner = promised.get(partition, None if partition in view.expired else lease.owner)
        if owner is not None and owner in plan:
            plan.give(partition, owner)
        elif (owner is None or owner in members) and partition not in view.pinned:
            unassigned.append(partition)
        # else: owned by somebody who is no member any more and has left no word; the lease will expire
    return plan, unassigned


class Plan:
    """An assignment in the making. Members come in their order, which decides between equals."""

    def __init__(self, limits: Mapping[str, int | None], weights: Mapping[str, float]) -> None:
        self._limits = limits
        self._weights = weights
        self._owned: dict[str, set[str]] = {id: set() for id in limits}
        self._loads = dict.fromkeys(limits, 0.0)  # summed up in the same order by everybody, for the same rounding

    def __contains__(self, id: str) -> bool:
        return id in self._owned

    @property
    def target(self) -> dict[str, str]:
        return {partition: id for id, partitions in self._owned.items() for partition in partitions}

    def give(self, partition: str, to: str) -> None:
        self._owned[to].add(partition)
        self._loads[to] += self._weights[partition]

    def take(self, partition: str, source: str) -> None:
        self._owned[source].remove(partition)
        self._loads[source] -= self._weights[partition]

    def least(self) -> str | None:
        """The member with the smallest load that may take one more."""
        return min((id for id in self._owned if self._has_room(id)), key=self._loads.__getitem__, default=None)

    def settle(self, unassigned: Iterable[str]) -> None:
        """Give each to whoever has least by then, the heaviest first; to nobody where nobody has room."""
        able = [(self._loads[id], place, id) for place, id in enumerate(self._owned) if self._has_room(id)]
        heapq.heapify(able)
        for partition in sorted(unassigned, key=lambda p: (-self._weights[p], partition_order(p))):
            if not able:
                break
            _, place, least = heapq.heappop(able)
            self.give(partition, least)
            if self._has_room(least):
                heapq.heappush(able, (self._loads[least], place, least))

    def excess(self, pinned: AbstractSet[str]) -> list[tuple[str, str]]:
        """What is over the members' limits and not pinned, as (partition, member)."""
        excess = []
        for id, partitions in self._owned.items():
            limit = self._limits[id]
            if limit is not None and len(partitions) > limit:
                movable = sorted(partitions - pinned, key=partition_order)
                excess += [(p, id) for p in movable[limit - len(partitions) :]]
        return excess

    def improvement(self, band: float, fixed: AbstractSet[str]) -> tuple[str, str, str] | None:
        """The best move from a member with much to the one with least, as (partition, source, destination)."""
        to = self.least()
        if to is None:
            return None
        bar = (1 + band) * sum(self._loads.values()) / len(self._loads)
        for source in sorted(self._loads, key=lambda id: -self._loads[id]):
            gap = self._loads[source] - self._loads[to]
            if self._loads[source] <= bar or gap <= 0:
                return None
            # Moving a weight w leaves the two w and gap - w above the smaller one: the larger of them must shrink, and
            # in a skewed group by more than weights change from one measurement to the next.
            movable = [p for p in self._owned[source] - fixed if (1 + band) * self._weights[p] < gap - _ROUNDING]
            if movable:
                best = min(movable, key=lambda p: (abs(gap / 2 - self._weights[p]), partition_order(p)))
                return best, source, to
        return None

    def _has_room(self, id: str) -> bool:
        limit = self._limits[id]
        return limit is None or len(self._owned[id]) < limit
