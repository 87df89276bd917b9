"""EventProcessorHost's partition manager: grab one's share of what is free at once, then steal one by one.

Source: `PartitionManager` of the EventProcessorHost in the older Azure SDKs for .NET and Java. Its cycle maps onto what
is here: it fetches a lease again before it acquires it, which is what `apply` does when it checks a transition against
the newest state; it renews with the token that it holds in memory and tries no renewal again, as the keeper renews by
the epoch that it holds, and a renewal which is refused means that the lease is lost.
"""

from __future__ import annotations

from spark_ehbalance.strategies.base import Decision, Layout, View

#: Who has so many partitions more than oneself is stolen from: with less, nothing would be gained.
_WORTH_STEALING = 2


def eph(view: View) -> Decision:
    """Grab expired and unowned partitions up to this owner's share; else steal one from the biggest owner."""
    layout = Layout.of(view)
    me, hosts, partitions = view.me.id, len(layout.owned), layout.partitions
    own = len(layout.owned[me])
    if layout.full(me):
        return Decision(f"nothing, because maxPartitionsOwned={view.max_owned} is reached")
    floor, remainder = layout.share()
    # Rounded up, as the remainder would be left lying otherwise: unowned leases are not stolen.
    target = min(floor + (remainder > 0), layout.limits.get(me, partitions))
    what = f"{own} of {partitions} are this owner's among {hosts}"
    if own < target and layout.unclaimed:
        grabbed = view.rng.sample(layout.unclaimed, min(target - own, len(layout.unclaimed)))
        return Decision(f"grab {len(grabbed)}, because {what}", tuple(map(view.claim, grabbed)))
    # Whose partitions are all pinned has nothing to give, however big.
    big = [owner for owner, theirs in layout.owned.items() if len(theirs) - own >= _WORTH_STEALING]
    able = [owner for owner in big if layout.movable(owner)]
    if not able:
        return Decision(f"nothing, because {what}, and nobody has {_WORTH_STEALING} more and may give one")
    most = max(len(layout.owned[owner]) for owner in able)
    biggest = view.rng.choice([owner for owner in able if len(layout.owned[owner]) == most])
    stolen = view.rng.choice(layout.movable(biggest))
    return Decision(f"steal one, because {what}, and the biggest has {most}", (view.steal(stolen),))
