"""The Event Processor's balanced strategy: a member takes at most one partition per cycle.

Source: the partition load balancers of the Azure SDKs (`EventProcessorClient`, LoadBalancingStrategy.Balanced). With
P partitions and K owners:

    floor, remainder = P // K, P % K
    share            = floor + 1 if fewer than `remainder` other owners own more than floor, else floor

    own ≥ share                                    → nothing
    partitions are unclaimed                       → claim a random one
    owners own more than ceil(P / K)               → steal a random one of theirs
    own < floor, and owners own more than floor    → steal a random one of theirs

If some owners' limits are below the floor, the other owners share the rest by the same rule. The SDKs have no limits.
"""

from __future__ import annotations

from spark_ehbalance.group.strategies.base import Decision, View
from spark_ehbalance.group.strategies.declaration import Declaration
from spark_ehbalance.group.strategies.distribution import Distribution


def balanced(view: View) -> Decision:
    """Claim one random unclaimed partition; else steal one from an owner above its share; else nothing."""
    distribution = Distribution.from_view(view)
    partition, reason = next_partition(distribution, view)
    if partition is None:
        return Decision(reason)
    unclaimed = partition in distribution.unclaimed
    return Decision(reason, (view.claim(partition) if unclaimed else view.steal(partition),))


def next_partition(distribution: Distribution, view: View) -> tuple[str | None, str]:
    """The partition that this member should take next (None: no partition), and the reason."""
    me, rng, owned = view.me.id, view.rng, distribution.owned
    own = len(owned[me])
    if distribution.is_full(me):
        return None, f"nothing, because maxPartitionsOwned={view.max_owned} is reached"
    floor, remainder = distribution.share()
    with_extra = sum(len(theirs) > floor for owner, theirs in owned.items() if owner != me) if remainder else 0
    share = floor + 1 if with_extra < remainder else floor
    if own >= share:
        return None, f"nothing, because {own} of {distribution.total} is this member's share among {len(owned)} owners"
    if distribution.unclaimed:
        return rng.choice(distribution.unclaimed), f"claim, because {own} is below the share of {share}"
    ceiling = floor + 1 if remainder else floor
    for limit in (ceiling, floor):
        # Only an owner below the floor steals from one that owns one more than the floor.
        if limit == floor and own >= floor:
            break
        candidates = [
            p
            for owner, theirs in owned.items()
            if owner != me and len(theirs) > limit
            for p in distribution.movable(owner)
        ]
        if candidates:
            reason = f"steal, because {own} is below the share of {share} and no partition is unclaimed"
            return rng.choice(candidates), reason
    # This rule is not in the SDKs. Without it, one owner's pins could leave the other owners' partition counts uneven.
    uneven = [p for owner, theirs in owned.items() if len(theirs) > own + 1 for p in distribution.movable(owner)]
    if uneven:
        return rng.choice(uneven), f"steal, because {own} is below the share of {share} and another owner has two more"
    return None, f"nothing, because {own} is below the share of {share} but no owner has too many"


STRATEGY = Declaration(
    balanced,
    origin="Event Processor",
    rule="each member takes one partition per cycle: a free one, or else it steals one from a member above its share",
    by_leases_alone=True,
    moves="steal",
    one_per_cycle=True,
)
