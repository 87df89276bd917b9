"""Changes between two reads of the leases. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.position import partition_order

Leases = Mapping[str, Lease]


def moves(before: Leases, after: Leases) -> list[str]:
    """One line for each pair of former and new owner."""
    moved: dict[tuple[str, str], list[str]] = {}
    for partition, lease in after.items():
        former = before.get(partition, Lease(partition)).owner
        if lease.owner != former:
            moved.setdefault((former or "nobody", lease.owner or "nobody"), []).append(partition)
    return [
        f"{former} → {owner}: {'partitions' if len(partitions) > 1 else 'partition'} "
        + ", ".join(sorted(partitions, key=partition_order))
        for (former, owner), partitions in moved.items()
    ]


def next_of(lease: Lease) -> int:
    """The sequence number of the first event that the lease's owner has not finished."""
    return lease.checkpoint.next if lease.checkpoint else 0
