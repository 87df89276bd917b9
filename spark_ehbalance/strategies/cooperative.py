"""Our own strategy: known before owning, free partitions at once, only the surplus moves, and by handover.

Every member computes the same target from the same snapshot and acts only on what is to be its own, so no two want
the same partition. The target starts from who owns what, a pending handover counting as done, and changes as little
as possible: what is free goes to whoever has least, then single partitions go from whoever has most, if that is over
the mean by more than a band, to whoever has least, as long as that makes the larger of the two smaller.

A partition weighs 1, or by its share of the load where the load is skewed. In a skewed group a partition that has
changed hands within the minimum tenure stays where it is, so that nothing swings.

Sources of the ideas: Kafka's cooperative assignor (members known by heartbeat, only the surplus moves), the Kinesis
client 3 (moving averages, a band of 10 %, minimum tenure), brokers' transfer shedder (destination named in advance).
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_ehbalance.leases.model import MemberState, Snapshot, partition_order
from spark_ehbalance.leases.transitions import Transition
from spark_ehbalance.strategies.base import Decision, View

#: In a skewed group a member gives nothing away before its load is over the mean by this part: Kinesis client 3's band.
BAND = 0.1

#: How many times the mean the heaviest partition's load is where weighing by load begins, and where it is in full.
#: Keys hashed evenly onto partitions stay under the first: ten thousand keys on 32 partitions give 1.2.
SKEW_BEGINS, SKEW_FULL = 1.5, 3.0

#: Events per second and partition below which load is noise that is not worth a move.
LEAST_RATE = 1.0

#: Seconds in which a backlog should be gone: a backlog counts as its events spread over them.
CATCH_UP = 60.0

#: What a partition weighs at least, however idle: its connection and its tasks cost something as well.
LEAST_WEIGHT = 0.1


def cooperative(view: View) -> Decision:
    """Claim what is free and should be one's own, ask for what others own and should be; call off what is moot."""
    me, leases = view.me.id, view.snapshot.leases
    target = assignment(view)
    transitions: list[Transition] = []
    claims = requests = 0
    for partition, lease in leases.items():
        handover, mine = lease.handover, target.get(partition) == me
        owner = None if partition in view.expired else lease.owner
        if mine and (owner is None or (handover and handover.to == me and partition in view.overdue)):
            transitions.append(view.claim(partition))
            claims += 1
        elif mine and owner != me and handover is None:
            transitions.append(view.request(partition))
            requests += 1
        elif handover and handover.to != target.get(partition) and me in (handover.to, owner, view.snapshot.leader):
            transitions.append(view.cancel(partition))
    own = sum(owner == me for owner in target.values())
    what = f"{own} of {len(leases)} are to be this owner's among {len(view.live)}"
    if transitions:
        cancels = len(transitions) - claims - requests
        return Decision(f"claim {claims}, ask for {requests}, call off {cancels}, because {what}", tuple(transitions))
    return Decision(f"nothing, because {what}, and all is under way or done")


def assignment(view: View) -> dict[str, str]:
    """Partition → the active member that should own it; without an entry where nobody may take it.

    Everybody who sees the same snapshot, and the same members alive, gets the same answer.
    """
    members = view.snapshot.members
    active = [id for id in view.live if members[id].state is MemberState.ACTIVE]
    if not active:
        return {}
    weights, band = _weights(view.snapshot)
    able = {id: members[id].max_owned for id in sorted(active, key=lambda id: (members[id].joined, id))}
    plan = _Plan(able, weights)
    homeless, fixed = [], set()
    for partition, lease in view.snapshot.leases.items():
        handover = lease.handover
        owner = None if partition in view.expired else lease.owner
        if handover is not None and handover.to in able:
            owner = handover.to
        if owner in able:
            plan.give(partition, owner)
            if band and partition not in view.tenured:
                fixed.add(partition)
        elif owner is None or owner in members:
            homeless.append(partition)
        # else: owned by somebody who is no member any more and has left no word; the lease will expire
    for partition, id in plan.excess():
        plan.take(partition, id)
        homeless.append(partition)
    for partition in sorted(homeless, key=lambda p: (-weights[p], partition_order(p))):
        if (least := plan.least()) is not None:
            plan.give(partition, least)
    while (move := plan.improvement(band, fixed)) is not None:
        partition, source, to = move
        plan.take(partition, source)
        plan.give(partition, to)
    return plan.target


class _Plan:
    """An assignment in the making. Members come in their order, which decides between equals."""

    def __init__(self, limits: Mapping[str, int | None], weights: Mapping[str, float]) -> None:
        self._limits = limits
        self._weights = weights
        self._owned: dict[str, set[str]] = {id: set() for id in limits}
        self._loads = dict.fromkeys(limits, 0.0)  # summed up in the same order by everybody, for the same rounding

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

    def excess(self) -> list[tuple[str, str]]:
        """What is over the members' limits, as (partition, member)."""
        excess = []
        for id, partitions in self._owned.items():
            limit = self._limits[id]
            if limit is not None and len(partitions) > limit:
                excess += [(p, id) for p in sorted(partitions, key=partition_order)[limit:]]
        return excess

    def improvement(self, band: float, fixed: set[str]) -> tuple[str, str, str] | None:
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


#: Sums of weights are not exact; a gap must be larger than a weight by this.
_ROUNDING = 1e-9


def _weights(snapshot: Snapshot) -> tuple[dict[str, float], float]:
    """What each partition weighs, 1 on the average, and the band: 0 where weights are just counts."""
    loads = {p: lease.load.rate + lease.load.backlog / CATCH_UP for p, lease in snapshot.leases.items() if lease.load}
    even = dict.fromkeys(snapshot.leases, 1.0)
    if not loads:
        return even, 0.0
    mean = sum(loads.values()) / len(loads)
    if mean < LEAST_RATE:
        return even, 0.0
    skew = (max(loads.values()) / mean - SKEW_BEGINS) / (SKEW_FULL - SKEW_BEGINS)
    part = min(1.0, max(0.0, skew))
    if part == 0:
        return even, 0.0
    return {p: max(LEAST_WEIGHT, 1 + part * (loads.get(p, mean) / mean - 1)) for p in even}, BAND
