"""Leases as azure-eventhub's load balancing sees them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from spark_ehbalance.leases.model import Lease
from spark_ehbalance.values.position import START_OFFSET, Position


class _SequenceNumber(int):
    """The client starts after an int as after a sequence number. It takes a 0 for "no checkpoint", but not this one."""

    def __bool__(self) -> bool:
        return True


def etag(epoch: int, owner: str | None) -> str:
    """Changes with every change of owner, and not with signs of life, which come between the client's calls."""
    return f"{epoch} {owner or 'free'}"


def ownership(
    leases: Mapping[str, Lease],
    consumers: Mapping[str, Collection[str]],
    silence: Mapping[str, float],
    wall: float,
    expiration: float,
) -> Iterator[dict[str, Any]]:
    """The entries of `leases` that ever had an owner.

    `consumers` maps the owner ids of this store's consumers to the partitions that they may read. `silence` is, by
    partition, for which part of the lease duration its owner has been silent; 1 and above is expired. `wall` is the
    wall clock in seconds, `expiration` the time after which the client takes an owner for dead.
    """
    for partition, lease in leases.items():
        quiet = silence.get(partition, 0.0)
        if partition in consumers.get(lease.owner or "", ()):
            owner, quiet = str(lease.owner), 0.0  # also while the table is away and cannot be renewed
        elif lease.owner in consumers and lease.handover is not None:
            owner = lease.handover.to  # the client must not begin to read it
        else:
            owner = "" if lease.owner is None or quiet >= 1 else lease.owner
        if owner or lease.epoch:
            yield {
                "partition_id": partition,
                "owner_id": owner,
                "etag": etag(lease.epoch, lease.owner),
                "last_modified_time": wall - quiet * expiration,
            }


def checkpoint(lease: Lease) -> dict[str, Any]:
    """The entry of a lease that has a checkpoint. `offset` is what the client starts after."""
    assert lease.checkpoint is not None
    return {
        "partition_id": lease.partition,
        "sequence_number": lease.checkpoint.sequence_number,
        "offset": _start_after(lease.checkpoint),
    }


def _start_after(position: Position) -> str | int:
    if position.offset is not None:
        return position.offset
    return START_OFFSET if position.sequence_number < 0 else _SequenceNumber(position.sequence_number)
