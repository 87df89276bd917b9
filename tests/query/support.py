"""Shared helpers: hub options, received rows, a lease held by this process, and counted receivers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub import metadata
from spark_ehbalance.eventhub.receiver import Receiver
from spark_ehbalance.eventhub.rows import sequence_numbers
from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.position import Position
from spark_ehbalance.lease_table.delta.store import DeltaStore
from spark_ehbalance.query.options import Options, stream_options
from spark_ehbalance.query.receivers import RECEIVER_IDLE, ReceiverKey, Receivers
from tests.waiting import wait_until

HUB = "hub"

#: Seconds within which a receiver closes if nobody keeps it; an unused kept receiver closes later.
SOON = 0.9 * RECEIVER_IDLE


def hub_options(emulator: Emulator, **raw: object) -> Options:
    """Options for a stream that reads `HUB`."""
    return stream_options({"connectionString": emulator.connection_string(HUB), **{k: str(v) for k, v in raw.items()}})


def skew_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the driver's clock `seconds` ahead where it is used in place of the hub's clock."""
    clock = SimpleNamespace(time=lambda: time.time() + seconds, monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(metadata, "time", clock)


def receive(receiver: Receiver, count: int, most: int = 100) -> pa.Table:
    """Wait for at least `count` rows and return them."""
    batches: list[pa.RecordBatch] = []

    def enough() -> bool:
        batches.append(receiver.receive(most, 0.1))
        return sum(batch.num_rows for batch in batches) >= count

    wait_until(enough, f"{count} events have come")
    return pa.Table.from_batches(batches)


def numbers(batches: Iterable[pa.RecordBatch]) -> list[int]:
    """The sequence numbers of all rows in these batches."""
    return [number for batch in batches for number in sequence_numbers(batch).to_pylist()]


class HeldLease:
    """A lease table in which `me` owns all `partitions`."""

    def __init__(self, emulator: Emulator, path: Path, epoch: int, partitions: int = 1) -> None:
        self.path = path
        self.table = DeltaStore(str(path))
        self.table.create(hub_options(emulator).connection.group("$Default"))
        mine = Lease("", owner="me", epoch=epoch, renewal=9, owned_since_ms=9, checkpoint=Position(-1))
        self._write(*(replace(mine, partition=str(partition)) for partition in range(partitions)))

    @property
    def lease(self) -> Lease:
        return self.table.read().leases["0"]

    def claim(self, owner: str = "other", partition: str = "0") -> None:
        """Let another member, or the query's next process, claim the lease."""
        lease = self.table.read().leases[partition]
        self._write(replace(lease, owner=owner, epoch=lease.epoch + 1))

    def release(self) -> None:
        self._write(replace(self.lease, owner=None))

    def _write(self, *leases: Lease) -> None:
        base = self.table.read()
        self.table.write(base, replace(base, leases={**base.leases, **{lease.partition: lease for lease in leases}}))


class CountedReceivers(Receivers):
    """A worker process's open receivers; `opened` lists the sequence numbers at which new ones were opened."""

    def __init__(self, *, check_interval: float = 0.2) -> None:
        super().__init__(check_interval=check_interval)
        self.opened: list[int] = []
        self._taken: list[Receiver] = []

    def take(self, key: ReceiverKey, position: int, prefetch: int) -> Receiver:
        receiver = super().take(key, position, prefetch)
        if not any(known is receiver for known in self._taken):
            self._taken.append(receiver)
            self.opened.append(position)
        return receiver
