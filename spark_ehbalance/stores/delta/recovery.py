"""Which state a damaged lease table is mended to, out of all rows that can still be found. Values only.

Every change of a lease raises its epoch or its renewal counter, so that of two rows of a partition the one with the
higher of them is the later. A file that was written but never committed is one change ahead at the most, and what its
author has finished is finished all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from spark_ehbalance.leases.model import Lease
from spark_ehbalance.values.position import Position, partition_order

#: Added to every epoch where a state that was committed cannot be read: more than changes of owner can be in it.
_MARGIN = 1000


def merged(found: Iterable[Lease], *, all_read: bool) -> dict[str, Lease]:
    """Of each partition the latest lease in `found`. Of two that are as late and differ, the position is that from
    which nothing is skipped, and nobody is the owner.

    `all_read`: no state that was committed is missing. Else somebody may have been given a higher epoch: then all
    epochs rise, and nobody is an owner; but of what was never read, as only a claim gives an epoch, and with it a
    position. The same for a lease whose epoch is not known (see `salvaged`).
    """
    leases: dict[str, Lease] = {}
    for lease in found:
        known = leases.get(lease.partition)
        leases[lease.partition] = lease if known is None else _later(known, lease)
    for partition, lease in leases.items():
        if not all_read or lease.renewal < 0:
            margin = 0 if lease.checkpoint is None else _MARGIN
            leases[partition] = replace(_free(lease), epoch=lease.epoch + margin, renewal=0)
    return {partition: leases[partition] for partition in sorted(leases, key=partition_order)}


def missing(there: Mapping[str, Lease], found: Iterable[Lease]) -> dict[str, Lease]:
    """What of `found` the table has lost: nobody's, as the latest state may be one that was never committed."""
    latest = merged(found, all_read=True)
    return {partition: _free(lease) for partition, lease in latest.items() if partition not in there}


def salvaged(row: Mapping[str, Any]) -> Lease | None:
    """What a row that makes no sense still says: where reading has come to. Any other of the partition is later."""
    partition, number = row["id"], row["sequence_number"]
    if partition is None or number is None or number < -1:
        return None
    return Lease(partition, renewal=-1, checkpoint=Position(number, row["offset"]))


def _later(one: Lease, other: Lease) -> Lease:
    if one.counter != other.counter:
        return max(one, other, key=lambda each: each.counter)
    if (one.owner, one.checkpoint) == (other.owner, other.checkpoint):
        return one
    places = [each.checkpoint for each in (one, other) if each.checkpoint is not None]
    checkpoint = min(places, key=lambda place: place.sequence_number, default=None)
    return replace(_free(one), checkpoint=checkpoint)


def _free(lease: Lease) -> Lease:
    return replace(lease, owner=None, handover=None)
