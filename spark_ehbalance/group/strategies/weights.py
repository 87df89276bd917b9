"""Weights of partitions for balancing by load."""

from __future__ import annotations

from spark_ehbalance.group.snapshot import Snapshot

#: In a skewed group, a member sheds load only if its load exceeds the mean by this fraction, as in the Kinesis Client
#: Library 3.
TOLERANCE = 0.1

#: Smaller differences of loads and weights are rounding errors.
ROUNDING = 1e-9

#: The skew (heaviest load / mean load) above which load affects the weights, and at which it determines them fully.
#: Evenly hashed keys stay below the first value: ten thousand keys on 32 partitions have a skew of 1.2.
SKEW_BEGINS, SKEW_FULL = 1.5, 3.0

#: Events per second per partition below which load is noise.
MINIMUM_RATE = 1.0

#: A backlog counts as a rate: its events divided by this many seconds.
CATCH_UP = 60.0

#: The minimum weight of a partition, because even an idle partition costs a connection and tasks.
MINIMUM_WEIGHT = 0.1


def demands(snapshot: Snapshot) -> dict[str, float]:
    """Partition → demand in events per second (rate + backlog / CATCH_UP), for partitions with a known load. Empty if
    the loads are only noise."""
    known = {p: load.rate + load.backlog / CATCH_UP for p, lease in snapshot.leases.items() if (load := lease.load)}
    return known if known and sum(known.values()) / len(known) >= MINIMUM_RATE else {}


def weights(snapshot: Snapshot) -> dict[str, float] | None:
    """The weight of each partition, 1 on average; None if the group is not skewed, so that each partition weighs 1.

        skew   = heaviest demand / mean demand
        part   = (skew - SKEW_BEGINS) / (SKEW_FULL - SKEW_BEGINS), at least 0 and at most 1
        weight = max(MINIMUM_WEIGHT, 1 + part × (demand / mean demand - 1))

    A group with part = 0 is not skewed. An unknown demand counts as the mean.
    """
    loads = [load.rate + load.backlog / CATCH_UP for lease in snapshot.leases.values() if (load := lease.load)]
    mean = sum(loads) / len(loads) if loads else 0.0
    if mean < MINIMUM_RATE or max(loads) / mean <= SKEW_BEGINS:
        return None
    part = min(1.0, (max(loads) / mean - SKEW_BEGINS) / (SKEW_FULL - SKEW_BEGINS))
    known = demands(snapshot)
    return {p: max(MINIMUM_WEIGHT, 1 + part * (known.get(p, mean) / mean - 1)) for p in snapshot.leases}
