"""A group in a lease table, whose partitions the tests move."""

from __future__ import annotations

import time
from pathlib import Path

from spark_ehbalance.group.changes import AddPartitions, Claim, HandOver, Join, RequestHandover, Transition
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.position import Position
from spark_ehbalance.lease_table.contract import commit_and_record
from spark_ehbalance.lease_table.delta import DeltaStore

GROUP = Group("ns.servicebus.windows.net", "orders", "billing")


def author(member: str) -> Author:
    return Author(member, f"{member}-1")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def committed(table: Path, *transitions: Transition) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    with DeltaStore(str(table)) as store:
        assert not commit_and_record(store, store.read(), transitions, refuse).refused


def make(table: Path, *members: str, partitions: int = 4) -> None:
    """A group of `members`, of which the first has all partitions."""
    with DeltaStore(str(table)) as store:
        store.create(GROUP)
    at_ms, names = now_ms(), tuple(map(str, range(partitions)))
    known = {"at_ms": at_ms, "strategy": "cooperative", "lease_duration_ms": 1000}
    joins = [Join(by=author(member), host=f"host-{member}", **known) for member in members]
    first = author(members[0])
    committed(
        table,
        *joins,
        AddPartitions(by=first, at_ms=at_ms, partitions=names, checkpoint=Position(-1)),
        *(Claim(by=first, at_ms=at_ms, partition=partition, epoch=0) for partition in names),
    )


def move(table: Path, partition: str, to: str) -> None:
    """Have the partition handed over, in two commits."""
    with DeltaStore(str(table)) as store:
        lease = store.read().leases[partition]
    assert lease.owner is not None
    known = {"at_ms": now_ms(), "partition": partition, "epoch": lease.epoch}
    committed(table, RequestHandover(by=author(to), to=to, timeout_ms=30_000, **known))
    committed(table, HandOver(by=author(lease.owner), **known))
