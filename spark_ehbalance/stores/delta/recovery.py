"""Which state a damaged lease table gets, out of all rows that can still be found. Pure.

Every change of a lease raises its epoch or its renewal counter, so of two rows of a partition the one with the higher
(epoch, renewal) is the later one. A file that was written but never committed is at most one change ahead, and its
author has finished what its checkpoint says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from spark_ehbalance.leases.model import Lease
from spark_ehbalance.values.position import Position, partition_order

#: Added to every epoch where a committed state cannot be read: more than it can hold changes of owner.
_EPOCH_MARGIN = 1000


def merged(found: Iterable[Lease], *, all_read: bool) -> dict[str, Lease]:
    """The latest lease of each partition in `found`. Where two that differ are equally late, it has the lower position,
    so that no event is skipped, and no owner.

    `all_read`: no committed state is missing. If one is missing, somebody may have got a higher epoch in it: all epochs
    rise by a margin and all owners are removed, and likewise for a lease whose epoch is unknown (see `salvaged`). A
    partition that was never claimed keeps epoch 0, as only a claim gives an epoch, and a position with it.
    """
    leases: dict[str, Lease] = {}
    for lease in found:
        known = leases.get(lease.partition)
        leases[lease.partition] = lease if known is None else _later(known, lease)
    for partition, lease in leases.items():
        if not all_read or lease.renewal < 0:
            margin = 0 if lease.checkpoint is None else _EPOCH_MARGIN
            leases[partition] = replace(_unowned(lease), epoch=lease.epoch + margin, renewal=0)
    return {partition: leases[partition] for partition in sorted(leases, key=partition_order)}


def missing(existing: Mapping[str, Lease], found: Iterable[Lease]) -> dict[str, Lease]:
    """The leases in `found` that the table has lost, without owners: the latest state may never have been committed."""
    latest = merged(found, all_read=True)
    return {partition: _unowned(lease) for partition, lease in latest.items() if partition not in existing}


def salvaged(row: Mapping[str, Any]) -> Lease | None:
    """The checkpoint of a row that is otherwise invalid, if it has one. Any other row of the partition is later."""
    partition, sequence_number = row["id"], row["sequence_number"]
    if partition is None or sequence_number is None or sequence_number < -1:
        return None
    return Lease(partition, renewal=-1, checkpoint=Position(sequence_number, row["offset"]))


def _later(one: Lease, other: Lease) -> Lease:
    if one.counter != other.counter:
        return max(one, other, key=lambda each: each.counter)
    if (one.owner, one.checkpoint) == (other.owner, other.checkpoint):
        return one
    checkpoints = [each.checkpoint for each in (one, other) if each.checkpoint is not None]
    checkpoint = min(checkpoints, key=lambda each: each.sequence_number, default=None)
    return replace(_unowned(one), checkpoint=checkpoint)


def _unowned(lease: Lease) -> Lease:
    return replace(lease, owner=None, handover=None)
