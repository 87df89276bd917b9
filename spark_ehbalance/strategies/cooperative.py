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

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from spark_ehbalance.leases.transitions import Transition
from spark_ehbalance.strategies.base import Decision, View
from spark_ehbalance.strategies.plan import initial_plan
from spark_ehbalance.strategies.weights import BAND, shared_weights


def cooperative(view: View) -> Decision:
    """Claim what is free and should be one's own, ask for what others own and should be; call off what is moot."""
    me, leases = view.me.id, view.snapshot.leases
    wanted = _wanted(view)
    transitions: list[Transition] = []
    claims = requests = 0
    for partition in wanted.open:
        lease = leases[partition]
        handover, mine = lease.handover, wanted.owners.get(partition) == me
        owner = None if partition in view.expired else lease.owner
        if mine and (owner is None or (handover and handover.to == me and partition in view.overdue)):
            transitions.append(view.claim(partition))
            claims += 1
        elif mine and owner != me and handover is None:
            # What moves by load comes from where batches grow long: to force it would have them read twice.
            transitions.append(view.request(partition, timeout_ms=view.longest_timeout_ms if wanted.skewed else None))
            requests += 1
        elif (
            handover
            and handover.to != wanted.owners.get(partition)
            and me in (handover.to, owner, view.snapshot.leader)
        ):
            transitions.append(view.cancel(partition))
    what = f"{wanted.counts[me]} of {len(leases)} are to be this owner's among {len(view.live)}"
    if claims and _nobody_owns(view):
        gathering = _Gathering.seen(view)
        if (wait := gathering.wait(view)) > 0:
            reason = f"nothing yet, because members may still be joining; so far {what}"
            return Decision(reason, rebalance_now=True, rebalance_after=wait, memory=gathering)
    if transitions:
        cancels = len(transitions) - claims - requests
        return Decision(f"claim {claims}, ask for {requests}, call off {cancels}, because {what}", tuple(transitions))
    return Decision(f"nothing, because {what}, and all is under way or done")


def assignment(view: View) -> Mapping[str, str]:
    """Partition → the active member that should own it; without an entry where nobody may take it.

    Everybody who sees the same snapshot, and the same members alive, gets the same answer.
    """
    return _wanted(view).owners


def _nobody_owns(view: View) -> bool:
    """Whether the group is at its beginning, or all who owned something are dead."""
    unowned = view.snapshot.ownership.owned.get(None, ())
    return len(unowned) + len(view.expired) == len(view.snapshot.leases)


@dataclass(frozen=True, slots=True)
class _Gathering:
    """A group in which nobody owns anything: this member has known that since `begun`, and since `since` of nobody
    who joined later than number `joined`. Times are in seconds on this member's monotonic clock."""

    initial_plan: float
    joined: int
    since: float

    @classmethod
    def seen(cls, view: View) -> _Gathering:
        joined = max(view.snapshot.members[id].joined for id in view.live)
        before: _Gathering | None = view.memory
        if before is None:
            return cls(view.now, joined, view.now)
        return before if before.joined == joined else cls(before.initial_plan, joined, view.now)

    def wait(self, view: View) -> float:
        """How many seconds to wait for others, so that who starts together shares from the start, without moves."""
        one_more = view.lease_duration * _GATHERING * (1 + len(view.live) / _CROWD)
        return min(self.since + one_more, self.initial_plan + 3 * one_more) - view.now


#: The part of the lease duration for which a group that begins waits for one member more: half a second by default, a
#: few commits on a storage account, and twice as long where so many members stand in line for theirs. It waits three
#: times as long at the most.
_GATHERING, _CROWD = 1 / 60, 20


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Who should own what, how many that is, and the partitions where that is not so yet, or a handover is pending."""

    owners: Mapping[str, str]
    counts: Mapping[str, int]
    open: tuple[str, ...]
    skewed: bool


def _wanted(view: View) -> _Wanted:
    weight, skewed = shared_weights(view.snapshot)
    fixed = frozenset(view.snapshot.leases.keys() - view.tenured) if skewed else frozenset()
    return view.shared("cooperative", lambda: _computed(view, weight, skewed, fixed), fixed)


def _computed(view: View, weight: Mapping[str, float], skewed: bool, fixed: frozenset[str]) -> _Wanted:
    plan, unassigned = initial_plan(view, weight)
    for partition, id in plan.excess(view.pinned):
        plan.take(partition, id)
        unassigned.append(partition)
    plan.settle(unassigned)
    untouched = (fixed - set(unassigned)) | view.pinned
    while (move := plan.improvement(BAND if skewed else 0.0, untouched)) is not None:
        partition, source, to = move
        plan.take(partition, source)
        plan.give(partition, to)
    owners = plan.target
    open = [
        partition
        for partition, lease in view.snapshot.leases.items()
        if partition not in view.pinned
        and (lease.handover or owners.get(partition) != (None if partition in view.expired else lease.owner))
    ]
    return _Wanted(owners, Counter(owners.values()), tuple(open), skewed)
