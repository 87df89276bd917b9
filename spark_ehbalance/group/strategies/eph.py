"""EventProcessorHost's partition manager: claim free partitions up to the share at once, then steal one by one.

Source: `PartitionManager` of the EventProcessorHost in the older Azure SDKs for .NET and Java. With P partitions and K
owners:

    target = ceil(P / K)

    own < target, and partitions are free    → claim min(target - own, free) of them at random
    the biggest owner owns ≥ own + 2         → steal a random one of its partitions

The original fetches each lease again before it acquires the lease; here, `apply` checks each transition against the
newest state. The original renews with the token in memory and does not retry; here, a rejected renewal means that the
lease is lost.
"""

from __future__ import annotations

from spark_ehbalance.group.strategies.base import Decision, View
from spark_ehbalance.group.strategies.declaration import Declaration
from spark_ehbalance.group.strategies.distribution import Distribution

#: The smallest surplus of an owner from which others steal. Stealing with a smaller surplus gains nothing.
_WORTH_STEALING = 2


def eph(view: View) -> Decision:
    """Claim expired and unowned partitions up to this owner's share; if there are none, steal one from the owner with
    the most partitions."""
    distribution = Distribution.from_view(view)
    me, owned, total = view.me.id, distribution.owned, distribution.total
    own = len(owned[me])
    if distribution.is_full(me):
        return Decision(f"nothing, because maxPartitionsOwned={view.max_owned} is reached")
    floor, remainder = distribution.share()
    # Rounded up, because unowned leases are not stolen: the remainder would stay unowned.
    target = min(floor + (remainder > 0), distribution.limits.get(me, total))
    what = f"this member owns {own} of {total} partitions among {len(owned)} owners"
    if own < target and distribution.unclaimed:
        claimed = view.rng.sample(distribution.unclaimed, min(target - own, len(distribution.unclaimed)))
        return Decision(f"claim {len(claimed)}, because {what}", tuple(map(view.claim, claimed)))
    # Owners whose partitions are all pinned do not count.
    big = [owner for owner, theirs in owned.items() if len(theirs) - own >= _WORTH_STEALING]
    able = [owner for owner in big if distribution.movable(owner)]
    if not able:
        return Decision(f"nothing, because {what}, and no owner with {_WORTH_STEALING} more has a movable partition")
    most = max(len(owned[owner]) for owner in able)
    biggest = view.rng.choice([owner for owner in able if len(owned[owner]) == most])
    stolen = view.rng.choice(distribution.movable(biggest))
    return Decision(f"steal one, because {what}, and the biggest owner has {most}", (view.steal(stolen),))


STRATEGY = Declaration(
    eph,
    origin="EventProcessorHost",
    rule="each member claims its share of the free partitions at once; if none is free, it steals one from the member "
    "with the most partitions, if that member has at least two more",
    moves="steal",
)
