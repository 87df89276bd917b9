"""Changes between two reads of the leases, and broken rules of ownership. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping

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


def violations(before: Leases, after: Leases, queries: Collection[str]) -> list[str]:
    """The rules that the change from `before` to `after` breaks."""
    broken = [f"partition {partition} is gone" for partition in before.keys() - after.keys()]
    for partition, lease in after.items():
        former = before.get(partition, Lease(partition))
        rules = {
            f"owned by {lease.owner}, which is none of {', '.join(queries)}": lease.owner not in {None, *queries},
            f"the epoch fell from {former.epoch} to {lease.epoch}": lease.epoch < former.epoch,
            f"owned by {former.owner or 'nobody'}, then by {lease.owner}, both with epoch {lease.epoch}": (
                lease.owner not in (None, former.owner) and lease.epoch == former.epoch
            ),
            f"the checkpoint fell from {next_of(former)} to {next_of(lease)}": next_of(lease) < next_of(former),
        }
        broken += [f"partition {partition}: {rule}" for rule, is_broken in rules.items() if is_broken]
    return broken


def next_of(lease: Lease) -> int:
    """The sequence number of the first event that the lease's owner has not finished."""
    return lease.checkpoint.next if lease.checkpoint else 0
