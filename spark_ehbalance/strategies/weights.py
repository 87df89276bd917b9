"""What partitions weigh where they are shared out by load."""

from __future__ import annotations

from spark_ehbalance.leases.model import Load
from spark_ehbalance.leases.snapshot import Snapshot

#: In a skewed group a member gives nothing away before its load is over the mean by this part: Kinesis client 3's band.
BAND = 0.1

#: How many times the mean the heaviest partition's load is where weighing by load begins, and where it is in full.
#: Keys hashed evenly onto partitions stay under the first: ten thousand keys on 32 partitions give 1.2.
SKEW_BEGINS, SKEW_FULL = 1.5, 3.0

#: Events per second and partition below which load is noise that is not worth a move.
LEAST_RATE = 1.0

#: Seconds in which a backlog should be gone: a backlog counts as its events spread over them.
CATCH_UP = 60.0

#: What a partition weighs at least, however idle: its connection and its tasks cost something as well.
LEAST_WEIGHT = 0.1


def demand(load: Load) -> float:
    """Events per second that `load` comes to, its backlog included."""
    return load.rate + load.backlog / CATCH_UP


def demands(snapshot: Snapshot) -> dict[str, float]:
    """The demand of each partition whose load is known; of none where there is nothing but noise."""
    known = {p: demand(lease.load) for p, lease in snapshot.leases.items() if lease.load}
    return known if known and sum(known.values()) / len(known) >= LEAST_RATE else {}


def shared_weights(snapshot: Snapshot) -> tuple[dict[str, float], bool]:
    """`weights`, computed once for all snapshots in which they are the same."""
    return snapshot.load_version.get("weights", lambda: weights(snapshot))


def weights(snapshot: Snapshot) -> tuple[dict[str, float], bool]:
    """What each partition weighs, 1 on the average, and whether the group is skewed: if not, each weighs 1."""
    even = dict.fromkeys(snapshot.leases, 1.0)
    loads = demands(snapshot)
    if not loads:
        return even, False
    mean = sum(loads.values()) / len(loads)
    skew = (max(loads.values()) / mean - SKEW_BEGINS) / (SKEW_FULL - SKEW_BEGINS)
    part = min(1.0, max(0.0, skew))
    if part == 0:
        return even, False
    return {p: max(LEAST_WEIGHT, 1 + part * (loads.get(p, mean) / mean - 1)) for p in even}, True
