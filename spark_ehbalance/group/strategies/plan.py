"""A target assignment, which is the same for all members that compute it from the same snapshot."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from spark_ehbalance.group.position import partition_order
from spark_ehbalance.group.strategies.base import View
from spark_ehbalance.group.strategies.weights import ROUNDING


def projected(view: View) -> Mapping[str, tuple[str, ...]]:
    """The partitions of each active member, with pending handovers and operators' commands counted as done."""
    owned: dict[str, list[str]] = {id: [] for id in view.active}
    upcoming = view.upcoming_owners()
    elsewhere = view.expired.union(upcoming)
    for owner, partitions in view.snapshot.ownership.owned.items():
        if elsewhere.isdisjoint(partitions):  # the usual case for all owners
            if owner in owned:
                owned[owner].extend(partitions)
            continue
        for partition in partitions:
            to = upcoming.get(partition, owner)
            if to in owned and (partition in upcoming or partition not in view.expired):
                owned[to].append(partition)
    return {id: tuple(partitions) for id, partitions in owned.items()}


def is_even(view: View) -> bool:
    """Whether the assignment needs no change if all partitions weigh the same: every partition has an active owner,
    nothing is pending or pinned, no limit is exceeded, and no move helps."""
    ownership, members = view.snapshot.ownership, view.snapshot.members
    owned, active = ownership.owned, view.active
    if view.expired or view.pinned or ownership.pending or not owned.keys() <= set(active):
        return False
    most, least = 0, None
    for id in active:
        count, limit = len(owned.get(id, ())), members[id].max_owned
        if limit is not None and count > limit:
            return False
        most = max(most, count)
        if (limit is None or count < limit) and (least is None or count < least):
            least = count
    return least is None or most - least <= 1


def initial_plan(view: View, weights: Mapping[str, float]) -> tuple[Plan, set[str]]:
    """The plan with `projected` ownership, and the unassigned partitions. Unpinned partitions are unassigned if they
    are unowned, expired, or owned by a leaving member."""
    members, upcoming = view.snapshot.members, view.upcoming_owners()
    plan = Plan({id: members[id].max_owned for id in view.active}, weights)
    unassigned, elsewhere = set(view.expired - upcoming.keys()), view.expired.union(upcoming)
    for owner, partitions in view.snapshot.ownership.owned.items():
        staying = partitions if elsewhere.isdisjoint(partitions) else [p for p in partitions if p not in elsewhere]
        if owner is not None and owner in plan:
            plan.give(staying, owner)
        elif owner is None or owner in members:
            unassigned.update(staying)
        # otherwise, the owner has left without a release, and the lease will expire
    for partition, to in upcoming.items():
        plan.give((partition,), to)
    return plan, unassigned - view.pinned


class Plan:
    """A mutable assignment. The order of the members breaks ties.

    `weights` are in partition order, so that every member adds them up with the same rounding errors.
    """

    def __init__(self, limits: Mapping[str, int | None], weights: Mapping[str, float]) -> None:
        self._limits = limits
        self._weights = weights
        self._lightest, self._heaviest = min(weights.values(), default=0.0), max(weights.values(), default=0.0)
        self._limited = any(limit is not None for limit in limits.values())
        self._owned: dict[str, set[str]] = {id: set() for id in limits}
        self._loads = dict.fromkeys(limits, 0.0)

    def __contains__(self, id: str) -> bool:
        return id in self._owned

    @property
    def target(self) -> dict[str, str]:
        """Partition → member."""
        return {partition: id for id, partitions in self._owned.items() for partition in partitions}

    def partitions(self, id: str) -> AbstractSet[str]:
        """The partitions of the member `id`."""
        return self._owned.get(id, frozenset())

    def give(self, partitions: Iterable[str], to: str) -> None:
        self._owned[to].update(partitions)
        self._loads[to] += sum(map(self._weights.__getitem__, partitions))

    def take(self, partition: str, source: str) -> None:
        self._owned[source].remove(partition)
        self._loads[source] -= self._weights[partition]

    def give_to_least_loaded(self, unassigned: AbstractSet[str]) -> None:
        """Give each partition to the least loaded member with room, starting with the heaviest partition."""
        weights, owned = self._weights, self._owned
        able = [(self._loads[id], index, id) for index, id in enumerate(self._with_room())]
        heapq.heapify(able)
        ordered = [partition for partition in weights if partition in unassigned] if unassigned else []
        for partition in sorted(ordered, key=weights.__getitem__, reverse=True):
            if not able:
                break
            load, index, id = able[0]
            owned[id].add(partition)
            load += weights[partition]
            self._loads[id] = load
            if not self._limited or self._has_room(id):
                heapq.heapreplace(able, (load, index, id))
            else:
                heapq.heappop(able)

    def excess(self, pinned: AbstractSet[str]) -> list[tuple[str, str]]:
        """The unpinned partitions beyond the members' limits, as (partition, member)."""
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

        The source is the most loaded member with such a partition. The partition is the one whose weight is nearest to
        gap / 2.
        """
        to = min(self._with_room(), key=self._loads.__getitem__, default=None)
        if to is None:
            return None
        most_allowed = (1 + tolerance) * sum(self._loads.values()) / len(self._loads)
        for source in sorted(self._loads, key=self._loads.__getitem__, reverse=True):
            gap = self._loads[source] - self._loads[to]
            if self._loads[source] <= most_allowed or (1 + tolerance) * self._lightest >= gap - ROUNDING:
                return None
            # After a move of weight w, the two members are at w and gap - w above the smaller load. Both must be less
            # than gap; in a skewed group, with a margin, because weights fluctuate.
            movable: Collection[str] = self._owned[source] - fixed
            if self._lightest < self._heaviest:
                movable = [p for p in movable if (1 + tolerance) * self._weights[p] < gap - ROUNDING]
                nearest = min((abs(gap / 2 - self._weights[p]) for p in movable), default=0.0)
                movable = [p for p in movable if abs(gap / 2 - self._weights[p]) == nearest]
            if movable:
                return min(movable, key=partition_order), source, to
        return None

    def _with_room(self) -> Collection[str]:
        return [id for id in self._owned if self._has_room(id)] if self._limited else self._owned

    def _has_room(self, id: str) -> bool:
        limit = self._limits[id]
        return limit is None or len(self._owned[id]) < limit
