"""This product's own strategy: members register before they own partitions, and only surplus partitions move, by
handover.

Every member computes the same target from the same snapshot and takes only the partitions that the target assigns to
it, so that no two members claim the same partition. Ownership is projected, which means that pending handovers count as
done. The target changes the projected ownership as little as possible:

    1. unassigned partitions go to the least loaded member, the heaviest first
    2. partitions move from the most loaded member to the least loaded one as long as
           load(source) > (1 + tolerance) × mean load  and  (1 + tolerance) × weight < load(source) - load(destination)

    tolerance = 0.1 in a skewed group, else 0
    weight    = 1; in a skewed group, according to the partition's share of the load (see `weights`)

In a skewed group, a partition whose owner changed within the minimum tenure does not move, so that nothing oscillates.
A group in which no partition has a live owner waits for members that start at the same time:

    step = leaseDuration / 60 × (1 + live members / 20)
    wait = one step after the last join, at most 3 steps in total

The ideas come from Kafka's cooperative assignor (membership by heartbeat, only the surplus moves, initial rebalance
delay), the Kinesis Client Library 3 (moving averages, a tolerance of 10 %, minimum tenure), and Pulsar's transfer
shedder (the destination is named in advance).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_ehbalance.group.changes import Transition
from spark_ehbalance.group.position import partition_order
from spark_ehbalance.group.strategies.base import Decision, View
from spark_ehbalance.group.strategies.declaration import Declaration
from spark_ehbalance.group.strategies.plan import Plan, initial_plan, is_even
from spark_ehbalance.group.strategies.weights import TOLERANCE, weights

#: The fraction of the lease duration for which a new group waits for one more member (by default half a second, the
#: time of a few commits on a storage account); and the number of members that doubles the wait, because their joins
#: queue.
_DELAY, _MEMBERS_THAT_DOUBLE_IT = 1 / 60, 20

#: The longest wait, as a multiple of the wait for one more member.
_LONGEST_DELAY = 3


def cooperative(view: View) -> Decision:
    """Claim the unowned partitions of this member's target, request those that others own, and cancel handovers that do
    not match the target."""
    weight = weights(view.snapshot)
    if weight is None and is_even(view):
        return _nothing(_explained(view, len(view.snapshot.ownership.owned.get(view.me.id, ()))))
    plan = _target(view, weight)
    me, leases = view.me.id, view.snapshot.leases
    mine, pending = plan.partitions(me), view.snapshot.ownership.pending
    leader = view.snapshot.leader
    concerned = {p for p, to in pending.items() if me in (to.to, leases[p].owner, leader)}
    transitions: list[Transition] = []
    claims = requests = 0
    for partition in sorted((mine | concerned) - view.pinned, key=partition_order):
        lease = leases[partition]
        handover, owner = lease.handover, None if partition in view.expired else lease.owner
        if partition in mine and (owner is None or (handover and handover.to == me and partition in view.overdue)):
            transitions.append(view.claim(partition))
            claims += 1
        elif partition in mine and owner != me and handover is None:
            # In a skewed group, the owner's batches may be long, and after a forced claim they are read twice.
            timeout_ms = None if weight is None else view.longest_timeout_ms
            transitions.append(view.request(partition, timeout_ms=timeout_ms))
            requests += 1
        elif handover and partition not in plan.partitions(handover.to) and me in (handover.to, owner, leader):
            transitions.append(view.cancel(partition))
    what = _explained(view, len(mine))
    if claims and _has_no_live_owner(view):
        delay = _InitialDelay.from_view(view)
        if (wait := delay.left(view)) > 0:
            reason = f"nothing yet, because members may still be joining; so far {what}"
            return Decision(reason, rebalance_now=True, rebalance_after=wait, memory=delay)
    if transitions:
        cancels = len(transitions) - claims - requests
        return Decision(f"claim {claims}, request {requests}, cancel {cancels}, because {what}", tuple(transitions))
    return _nothing(what)


def assignment(view: View) -> Mapping[str, str]:
    """Partition → the active member that should own it. Partitions that no member may take have no entry.

    The result is the same for all members with the same snapshot and the same live members.
    """
    return _target(view, weights(view.snapshot)).target


def _nothing(what: str) -> Decision:
    return Decision(f"nothing, because {what}, and all moves are pending or done")


def _explained(view: View, mine: int) -> str:
    return f"this member's target is {mine} of {len(view.snapshot.leases)} among {len(view.live)} members"


def _has_no_live_owner(view: View) -> bool:
    """Whether no partition has a live owner, because the group is new or all leases have expired."""
    unowned = view.snapshot.ownership.owned.get(None, ())
    return len(unowned) + len(view.expired) == len(view.snapshot.leases)


@dataclass(frozen=True, slots=True)
class _InitialDelay:
    """The wait of a group in which no partition has a live owner, as observed since `began`. The last join, which has
    the number `joined`, was at `last_join`. Times are in seconds on this member's monotonic clock."""

    began: float
    joined: int
    last_join: float

    @classmethod
    def from_view(cls, view: View) -> _InitialDelay:
        joined = max(view.snapshot.members[id].joined for id in view.live)
        before: _InitialDelay | None = view.memory
        if before is None:
            return cls(view.now, joined, view.now)
        return before if before.joined == joined else cls(before.began, joined, view.now)

    def left(self, view: View) -> float:
        """Seconds to wait for other members, so that members that start together share partitions without moves."""
        one_more = view.lease_duration * _DELAY * (1 + len(view.live) / _MEMBERS_THAT_DOUBLE_IT)
        return min(self.last_join + one_more, self.began + _LONGEST_DELAY * one_more) - view.now


def _target(view: View, weight: Mapping[str, float] | None) -> Plan:
    """The assignment that all members compute; `weight` is None if the group is not skewed."""
    skewed = weight is not None
    plan, unassigned = initial_plan(view, dict.fromkeys(view.snapshot.leases, 1.0) if weight is None else weight)
    for partition, id in plan.excess(view.pinned):
        plan.take(partition, id)
        unassigned.add(partition)
    plan.give_to_least_loaded(unassigned)
    fixed = view.recently_moved - unassigned if skewed else frozenset[str]()
    while (move := plan.improvement(TOLERANCE if skewed else 0.0, fixed | view.pinned)) is not None:
        partition, source, to = move
        plan.take(partition, source)
        plan.give((partition,), to)
    return plan


STRATEGY = Declaration(
    cooperative,
    origin="(own design)",
    rule="free partitions are claimed at once by the members that should own them; only surplus partitions move, by "
    "handover; shares are weighted by load if the load is skewed",
    reactive=True,
    resolves_stuck_handovers=True,
)
