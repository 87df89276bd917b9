"""The Event Processor's balanced strategy: at most one partition more per cycle.

Source: the partition load balancers of the Azure SDKs (`EventProcessorClient`, LoadBalancingStrategy.Balanced).
With P partitions and K active owners every owner should hold at least P // K, and P % K of them one more. Where that is
over the limit of some, which the SDKs do not know, the others share what is left in the same way.
"""

from __future__ import annotations

from spark_ehbalance.strategies.base import Decision, Layout, View


def balanced(view: View) -> Decision:
    """Claim one random unclaimed partition; else steal one from an owner above its share; else nothing."""
    layout = Layout.of(view)
    partition, reason = next_partition(layout, view)
    if partition is None:
        return Decision(reason)
    free = partition in layout.unclaimed
    return Decision(reason, (view.claim(partition) if free else view.steal(partition),))


def next_partition(layout: Layout, view: View) -> tuple[str | None, str]:
    """The partition that this member should take next, if any, and why (not)."""
    me, rng, partitions = view.me.id, view.rng, layout.partitions
    own = len(layout.owned[me])
    if layout.full(me):
        return None, f"nothing, because maxPartitionsOwned={view.max_owned} is reached"
    floor, remainder = layout.share()
    with_extra = sum(len(theirs) > floor for owner, theirs in layout.owned.items() if owner != me) if remainder else 0
    share = floor + 1 if with_extra < remainder else floor
    if own >= share:
        return None, f"nothing, because {own} of {partitions} is this owner's share among {len(layout.owned)}"
    if layout.unclaimed:
        return rng.choice(layout.unclaimed), f"claim, because {own} is below the share of {share}"
    most = floor + 1 if remainder else floor
    for limit in (most, floor):
        # An owner with one above the floor is taken from only by one who is below the floor.
        if limit == floor and own >= floor:
            break
        candidates = [
            p
            for owner, theirs in layout.owned.items()
            if owner != me and len(theirs) > limit
            for p in layout.movable(owner)
        ]
        if candidates:
            return rng.choice(candidates), f"steal, because {own} is below the share of {share} and none is unclaimed"
    # Not in the SDKs, which know no pins: those of one owner must not leave the others uneven.
    uneven = [p for owner, theirs in layout.owned.items() if len(theirs) > own + 1 for p in layout.movable(owner)]
    if uneven:
        return rng.choice(uneven), f"steal, because {own} is below the share of {share} and somebody has two more"
    return None, f"nothing, because {own} is below the share of {share} but nobody has too many"
