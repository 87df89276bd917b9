"""The Event Processor's greedy strategy: like `balanced`, but repeated in one cycle until the share is reached.

Source: the partition load balancers of the Azure SDKs (`EventProcessorClient`, LoadBalancingStrategy.Greedy). They run
cycle after cycle without a pause:

    repeat the rule of `balanced` until it takes nothing

Here the cycles are simulated on one view, so that one commit contains all claims. Another cycle follows at once if this
one took a partition.
"""

from __future__ import annotations

from spark_ehbalance.group.changes import Transition
from spark_ehbalance.group.strategies.balanced import next_partition
from spark_ehbalance.group.strategies.base import Decision, View
from spark_ehbalance.group.strategies.declaration import Declaration
from spark_ehbalance.group.strategies.distribution import Distribution


def greedy(view: View) -> Decision:
    """Claim and steal partitions until this owner has its share."""
    distribution = Distribution.from_view(view)
    transitions: list[Transition] = []
    first_reason = ""
    while True:
        partition, reason = next_partition(distribution, view)
        first_reason = first_reason or reason
        if partition is None:
            return Decision(first_reason, tuple(transitions), rebalance_now=bool(transitions))
        unclaimed = partition in distribution.unclaimed
        transitions.append(view.claim(partition) if unclaimed else view.steal(partition))
        distribution.move(partition, view.me.id)


STRATEGY = Declaration(
    greedy,
    origin="Event Processor",
    rule="like `balanced`, but each member takes partitions until it has its share",
    by_leases_alone=True,
    moves="steal",
)
