"""An assignment in the making, computed in the same way by all members that see the same group."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from spark_ehbalance.strategies.base import View
from spark_ehbalance.values.position import partition_order

#: Sums of weights are not exact; a gap must be larger than a weight by this.
_ROUNDING = 1e-9


def projected(view: View) -> Mapping[str, tuple[str, ...]]:
    """The partitions of each active member, with pending handovers and operators' orders counted as done."""
    owned: dict[str, list[str]] = {id: [] for id in view.active}
    upcoming = view.upcoming_owners()
    elsewhere = view.expired.union(upcoming)
    for owner, partitions in view.snapshot.ownership.owned.items():
        if elsewhere.isdisjoint(partitions):  # of all owners in most cases
            if owner in owned:
                owned[owner].extend(partitions)
            continue
        for partition in partitions:
            to = upcoming.get(partition, owner)
            if to in owned and (partition in upcoming or partition not in view.expired):
                owned[to].append(partition)
    return {id: tuple(partitions) for id, partitions in owned.items()}


def initial_plan(view: View, weights: Mapping[str, float]) -> tuple[Plan, list[str]]:
    """The plan that has `projected` ownership, and the partitions without a member to stay with: unowned, expired, or a
    leaving member's. Pinned partitions are never among the latter."""
    members, leases, upcoming = view.snapshot.members, view.snapshot.leases, view.upcoming_owners()
    plan = Plan({id: members[id].max_owned for id in view.active}, weights)
    unassigned = []
    for partition, lease in leases.items():
        owner = upcoming.get(partition, None if partition in view.expired else lease.owner)
        if owner is not None and owner in plan:
            plan.give(partition, owner)
        elif (owner is None or owner in members) and partition not in view.pinned:
            unassigned.append(partition)
        # else: the owner is no member any more and has not released the lease, which will expire
    return plan, unassigned


class Plan:
    """An assignment in the making. The order of the members decides between equals."""

    def __init__(self, limits: Mapping[str, int | None], weights: Mapping[str, float]) -> None:
        self._limits = limits
        self._weights = weights
        self._owned: dict[str, set[str]] = {id: set() for id in limits}
        self._loads = dict.fromkeys(limits, 0.0)  # every member adds up in the same order, for the same rounding

    def __contains__(self, id: str) -> bool:
        return id in self._owned

    @property
    def target(self) -> dict[str, str]:
        """Partition → member."""
        return {partition: id for id, partitions in self._owned.items() for partition in partitions}

    def give(self, partition: str, to: str) -> None:
        self._owned[to].add(partition)
        self._loads[to] += self._weights[partition]

    def take(self, partition: str, source: str) -> None:
        self._owned[source].remove(partition)
        self._loads[source] -= self._weights[partition]

    def least_loaded(self) -> str | None:
        """The member with the smallest load that may take one more."""
        return min((id for id in self._owned if self._has_room(id)), key=self._loads.__getitem__, default=None)

    def give_to_least_loaded(self, unassigned: Iterable[str]) -> None:
        """Give each to the member that is least loaded by then, the heaviest first; to none where none has room."""
        able = [(self._loads[id], index, id) for index, id in enumerate(self._owned) if self._has_room(id)]
        heapq.heapify(able)
        for partition in sorted(unassigned, key=lambda p: (-self._weights[p], partition_order(p))):
            if not able:
                break
            _, index, least_loaded = heapq.heappop(able)
            self.give(partition, least_loaded)
            if self._has_room(least_loaded):
                heapq.heappush(able, (self._loads[least_loaded], index, least_loaded))

    def excess(self, pinned: AbstractSet[str]) -> list[tuple[str, str]]:
        """The partitions over the members' limits that are not pinned, as (partition, member)."""
        excess = []
        for id, partitions in self._owned.items():
            limit = self._limits[id]
            if limit is not None and len(partitions) > limit:
                movable = sorted(partitions - pinned, key=partition_order)
                excess += [(p, id) for p in movable[limit - len(partitions) :]]
        return excess

    def improvement(self, tolerance: float, fixed: AbstractSet[str]) -> tuple[str, str, str] | None:
        """The best move to the least loaded member, as (partition, source, destination); None if no move helps.

            gap = load(source) - load(destination)
            load(source) > (1 + tolerance) × mean load    and    (1 + tolerance) × weight < gap

        The source is the most loaded member with such a partition; its weight is the nearest to gap / 2.
        """
        to = self.least_loaded()
        if to is None:
            return None
        most_allowed = (1 + tolerance) * sum(self._loads.values()) / len(self._loads)
        for source in sorted(self._loads, key=lambda id: -self._loads[id]):
            gap = self._loads[source] - self._loads[to]
            if self._loads[source] <= most_allowed or gap <= 0:
                return None
            # A move of weight w leaves the two at w and gap - w above the smaller load: the larger of them must shrink,
            # and in a skewed group by more than weights change from one measurement to the next.
            movable = [p for p in self._owned[source] - fixed if (1 + tolerance) * self._weights[p] < gap - _ROUNDING]
            if movable:
                best = min(movable, key=lambda p: (abs(gap / 2 - self._weights[p]), partition_order(p)))
                return best, source, to
        return None

    def _has_room(self, id: str) -> bool:
        limit = self._limits[id]
        return limit is None or len(self._owned[id]) < limit
