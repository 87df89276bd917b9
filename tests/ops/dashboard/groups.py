"""A group in a lease table whose partitions the tests move."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.model import Lease, Member
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.ops.groups import change, record, state


def make(table: Path, *members: str, partitions: int = 4) -> None:
    """Create a group of `members`; the first owns all partitions."""
    with DeltaStore(str(table)) as store:
        store.create(Group("ns.servicebus.windows.net", "orders", "billing"))
    now_ms = time.time_ns() // 1_000_000
    change(
        table,
        leases={id: Lease(id, members[0], 1, renewed_at_ms=now_ms) for id in map(str, range(partitions))},
        members={name: Member(name, f"{name}-1", at, renewed_at_ms=now_ms) for at, name in enumerate(members)},
    )


def move(table: Path, partition: str, to: str) -> None:
    """Hand the partition over to another member."""
    lease = state(table).leases[partition]
    change(table, leases={partition: replace(lease, owner=to, epoch=lease.epoch + 1)})
    now_ms = time.time_ns() // 1_000_000
    record(table, OwnershipChange(now_ms, partition, "HandOver", lease.owner, to, lease.epoch, -1, str(lease.owner)))
