"""Plain consumers share a lease table on Azure Storage."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter

import pytest

from chaos.storage.azurite import storage_options
from spark_ehbalance.consumer import DeltaCheckpointStore
from spark_ehbalance.consumer.aio import DeltaCheckpointStore as AsyncStore
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import StoreUnavailableError
from tests.azure_storage.tables import Table
from tests.consumer.clients import Client
from tests.waiting import wait_until

HUB, PARTITIONS = "hub", 2


def test_two_clients_share_a_table(emulator: Emulator, new_table: Table) -> None:
    emulator.add_hub(HUB, PARTITIONS)
    hub = emulator.connection_string(HUB)
    options = {
        "storage_options": storage_options(new_table.storage),
        "connection_string": hub,
        "starting_position": "earliest",
        "load_balancing_interval": 0.5,
    }
    rounds = itertools.count(1)

    def publish() -> int:
        for partition in range(PARTITIONS):
            emulator.append(HUB, partition, [b"x"])
        return next(rounds)

    with contextlib.ExitStack() as started:
        blocking, asynchronous = (
            DeltaCheckpointStore(new_table.location, **options),
            AsyncStore(new_table.location, **options),
        )
        started.callback(blocking.close)
        started.callback(lambda: asyncio.run(asynchronous.close()))
        first = Client(hub, blocking)
        started.callback(first.stop)
        publish()
        wait_until(lambda: len(first.seen) == PARTITIONS, "the first has everything")
        second = Client(hub, asynchronous)
        started.callback(second.stop)
        wait_until(lambda: publish() and second.seen, "the second has its share")
        first.stop()
        published = Counter((str(p), number) for number in range(publish()) for p in range(PARTITIONS))
        wait_until(lambda: not published - Counter(first.seen + second.seen), "everything was read")
        assert Counter(first.seen + second.seen) == published, "once"
    with new_table.undisturbed() as store:
        snapshot = store.read()
    assert not snapshot.members
    ends = {p: lease.checkpoint.next for p, lease in snapshot.leases.items() if lease.checkpoint}
    assert ends == Counter(partition for partition, _ in published)


def test_a_wrong_key_is_told(storage: str) -> None:
    wrong = storage_options(storage) | {"azure_storage_account_key": "d3Jvbmc="}
    store = DeltaCheckpointStore("az://nothing/leases", storage_options=wrong)
    with pytest.raises(StoreUnavailableError, match="az://nothing/leases"):
        store.list_ownership("namespace", "hub", "$Default")
