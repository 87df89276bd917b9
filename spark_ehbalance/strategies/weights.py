"""How much partitions weigh where they are shared out by load."""

from __future__ import annotations

from spark_ehbalance.leases.model import Load
from spark_ehbalance.leases.snapshot import Snapshot

#: In a skewed group a member gives nothing away before its load is over the mean by this part, as with the Kinesis
#: client 3.
TOLERANCE = 0.1

#: The skew (heaviest load / mean load) at which weighing by load begins, and at which it is full. Keys hashed evenly
#: onto partitions stay below the first: ten thousand keys on 32 partitions have a skew of 1.2.
SKEW_BEGINS, SKEW_FULL = 1.5, 3.0

#: Events per second and partition below which load is noise that is not worth a move.
MINIMUM_RATE = 1.0

#: Seconds in which a backlog should be gone: a backlog counts as its events spread over them.
CATCH_UP = 60.0

#: The least weight of a partition, however idle: its connection and its tasks have a cost as well.
MINIMUM_WEIGHT = 0.1


def demand(load: Load) -> float:
    """`load` in events per second: rate + backlog / CATCH_UP."""
    return load.rate + load.backlog / CATCH_UP


def demands(snapshot: Snapshot) -> dict[str, float]:
    """The demand of each partition whose load is known; empty where the loads are but noise."""
    known = {p: demand(lease.load) for p, lease in snapshot.leases.items() if lease.load}
    return known if known and sum(known.values()) / len(known) >= MINIMUM_RATE else {}


def cached_weights(snapshot: Snapshot) -> tuple[dict[str, float], bool]:
    """`weights`, computed once for all snapshots in which they are the same."""
    return snapshot.load_version.get("weights", lambda: weights(snapshot))


def weights(snapshot: Snapshot) -> tuple[dict[str, float], bool]:
    """The weight of each partition, 1 on the average, and whether the group is skewed.

        skew   = heaviest demand / mean demand
        part   = (skew - SKEW_BEGINS) / (SKEW_FULL - SKEW_BEGINS), at least 0 and at most 1
        weight = max(MINIMUM_WEIGHT, 1 + part × (demand / mean demand - 1))

    A group with part = 0 is not skewed: each partition weighs 1. An unknown demand counts as the mean.
    """
    even = dict.fromkeys(snapshot.leases, 1.0)
    loads = demands(snapshot)
    if not loads:
        return even, False
    mean = sum(loads.values()) / len(loads)
    skew = (max(loads.values()) / mean - SKEW_BEGINS) / (SKEW_FULL - SKEW_BEGINS)
    part = min(1.0, max(0.0, skew))
    if part == 0:
        return even, False
    return {p: max(MINIMUM_WEIGHT, 1 + part * (loads.get(p, mean) / mean - 1)) for p in even}, True
