"""Leases as entries of azure-eventhub's checkpoint stores. Pure."""

from __future__ import annotations

import time
from typing import Any

from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.position import START_OFFSET, Position


class _SequenceNumber(int):
    """The client starts after an int as after a sequence number. It takes a 0 for "no checkpoint", but not this one."""

    def __bool__(self) -> bool:
        return True


def ownership_entry(lease: Lease, owner: str | None) -> dict[str, Any]:
    """The ownership of `lease`, as of a live `owner`. Its ETag is the epoch, which changes with each owner."""
    return {
        "partition_id": lease.partition,
        "owner_id": owner or "",
        "etag": str(lease.epoch),
        "last_modified_time": time.time(),
    }


def checkpoint_entry(lease: Lease) -> dict[str, Any]:
    """The checkpoint of a lease that has one. `offset` is the position after which the client starts."""
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
