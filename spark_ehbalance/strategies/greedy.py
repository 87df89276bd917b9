"""The Event Processor's greedy strategy: as balanced, but on until the share is reached, in one cycle.

Source: the partition load balancers of the Azure SDKs (`EventProcessorClient`, LoadBalancingStrategy.Greedy). They
run cycle after cycle without a pause; here the cycles are played through on one view, so that all their claims are
one commit, and a cycle follows at once as long as there was something to take.
"""

from __future__ import annotations

from spark_ehbalance.leases.transitions import Transition
from spark_ehbalance.strategies.balanced import next_partition
from spark_ehbalance.strategies.base import Decision, Layout, View


def greedy(view: View) -> Decision:
    """Claim and steal, one after the other, until this owner has its share."""
    layout = Layout.of(view)
    transitions: list[Transition] = []
    first_reason = ""
    while True:
        partition, reason = next_partition(layout, view)
        first_reason = first_reason or reason
        if partition is None:
            return Decision(first_reason, tuple(transitions), rebalance_now=bool(transitions))
        free = partition in layout.unclaimed
        transitions.append(view.claim(partition) if free else view.steal(partition))
        layout.give(partition, view.me.id)
