"""Plain consumers and streaming queries, all in separate processes, share a hub through a lease table."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.group.model import Lease
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.members import Member
from tests.processors.group import PARTITIONS, MixedGroup
from tests.processors.sharing import share

#: Seconds.
BALANCING, LEASE = 0.3, 3.0


class TableGroup(MixedGroup):
    """A group in a lease table."""

    @property
    def table(self) -> str:
        return str(self.folder / "leases")

    @property
    def options(self) -> dict[str, str]:
        times = {"balanceInterval": f"{self.interval}s", "leaseDuration": f"{self.expiry}s", "receiverTimeout": "20s"}
        return times | {"connectionString": self.connection, "leaseTable": self.table, "startingPosition": "earliest"}

    def plain(self, name: str, kind: str = "sync") -> Member:
        command = ("-m", "tests.consumers.consumer_process", kind, self.connection, self.table)
        return self.start(name, sys.executable, *command, str(self.folder / name), str(self.expiry))

    def leases(self) -> dict[str, Lease]:
        with DeltaStore(self.table) as store:
            return dict(store.read().leases) if store.exists() else {}

    def owners(self) -> dict[str, str | None]:
        return {partition: lease.owner for partition, lease in self.leases().items()}

    def _owners_and_next(self) -> dict[str, tuple[str | None, int]]:
        leases = self.leases().items()
        return {p: (lease.owner, lease.checkpoint.next if lease.checkpoint else 0) for p, lease in leases}


@pytest.fixture
def group(emulator: Emulator, tmp_path: Path) -> Iterator[TableGroup]:
    emulator.add_hub("hub", PARTITIONS)
    made = TableGroup(emulator, "", "", tmp_path, interval=BALANCING, expiry=LEASE)
    yield made
    made.close()


def test_consumers_and_queries_share_a_hub(group: TableGroup) -> None:
    share(group, group.plain, partial(group.plain, kind="async"), group.query)


def test_suspended_consumer_is_disconnected_and_rejoins(group: TableGroup) -> None:
    query, consumer = group.query("query"), group.plain("consumer")
    with group.producing():
        group.wait_shared(6, 6)
        consumer.process.send_signal(signal.SIGSTOP)
        group.wait_shared(12)
        consumer.process.send_signal(signal.SIGCONT)
        group.wait_shared(6, 6)
    group.wait_read()
    assert len({*query.read_events()}) == len(query.read_events()), "it has had each partition once"
    # Events without a checkpoint at the suspension are reread, by the consumer if the query has not reached them.
    assert max(Counter(consumer.read_events()).values()) <= 2
