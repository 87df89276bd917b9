"""One checkpoint store that is given to two of azure-eventhub's clients: one reads, the other is told so before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from azure.eventhub.exceptions import OwnershipLostError

from spark_ehbalance.consumer import DeltaCheckpointStore
from spark_ehbalance.consumer.aio import DeltaCheckpointStore as AsyncStore
from spark_ehbalance.errors import OptionError
from spark_ehbalance.values.position import Position
from tests.consumer.clients import Client
from tests.consumer.consumers import Consumers
from tests.source.support import HUB
from tests.waiting import wait_until

PARTITIONS = 2  # a client takes half a second to close each

OTHER_HUB = "other"


@pytest.fixture
def partitions() -> int:
    return PARTITIONS


@pytest.fixture(params=["sync", "async"])
def store(consumers: Consumers, request: pytest.FixtureRequest) -> DeltaCheckpointStore | AsyncStore:
    return consumers.store() if request.param == "sync" else consumers.async_store()


@pytest.fixture
def clients() -> Iterator[list[Client]]:
    """Those that a test has started; all are stopped after it."""
    started: list[Client] = []
    yield started
    for each in started:
        each.stop()


def test_two_clients_of_one_store_read_nothing_twice(
    consumers: Consumers, store: DeltaCheckpointStore | AsyncStore, clients: list[Client]
) -> None:
    """At the same time: one of them reads. When it ends, the other goes on at its checkpoints."""
    hub = consumers.group.emulator.connection_string(HUB)
    consumers.group.append(20, PARTITIONS)
    clients += [Client(hub, store) for _ in range(2)]
    wait_until(lambda: any(each.errors for each in clients), "one is told")
    [told] = [each for each in clients if each.errors]
    [reading] = [each for each in clients if each is not told]
    wait_until(lambda: len(reading.seen) >= 20 * PARTITIONS, "all was read")
    partition, error = told.errors[0]
    assert partition is None
    assert isinstance(error, OptionError)
    assert "make a DeltaCheckpointStore for each client" in str(error)
    assert "\n" not in str(error)
    assert not told.seen
    reading.stop()
    consumers.group.append(5, PARTITIONS)
    wait_until(lambda: len(told.seen) >= 5 * PARTITIONS, "the other has read the rest")
    told.stop()
    assert Counter(reading.seen + told.seen) == consumers.group.everything()
    assert all(isinstance(each, OptionError) for _, each in told.errors)


def test_a_client_of_another_hub_reads_nothing(
    consumers: Consumers, store: DeltaCheckpointStore | AsyncStore, clients: list[Client]
) -> None:
    emulator = consumers.group.emulator
    emulator.add_hub(OTHER_HUB, PARTITIONS)
    emulator.append(OTHER_HUB, 0, [b"x"])
    consumers.group.append(5, PARTITIONS)
    clients.append(Client(emulator.connection_string(HUB), store))
    wait_until(lambda: len(clients[0].seen) >= 5 * PARTITIONS, "the first reads")
    clients.append(Client(emulator.connection_string(OTHER_HUB), store))
    wait_until(lambda: clients[1].errors, "the second is told")
    assert isinstance(clients[1].errors[0][1], OptionError)
    assert f"the client reads {consumers.group.options().connection.namespace}/{OTHER_HUB}" in str(
        clients[1].errors[0][1]
    )
    consumers.group.append(5, PARTITIONS)
    wait_until(lambda: len(clients[0].seen) >= 10 * PARTITIONS, "the first reads on")
    assert Counter(clients[0].seen) == consumers.group.everything()
    assert not clients[1].seen


def test_a_late_checkpoint_of_one_does_not_count_as_the_other_s(consumers: Consumers) -> None:
    """Of `a`, which has processed an event for so long that its partitions were let go."""
    store, other = consumers.store(partition_ownership_expiration_interval=60.0), consumers.store()
    consumers.own(store, "a")
    with pytest.raises(OptionError, match="the checkpoint store serves the client a, and b gets nothing to read"):
        consumers.claim_listed(store, "b", *consumers.partitions)
    moved = wait_until(lambda: consumers.claim_listed(other, "b", "0", "1"), "b has a partition by its own store")
    partition = next(iter(moved))
    consumers.checkpoint(other, partition, 50)
    with pytest.raises(OwnershipLostError, match=f"partition {partition} is not this consumer's any more"):
        consumers.checkpoint(store, partition, 9)
    checkpoint = consumers.lease(partition).checkpoint
    assert checkpoint == Position(50, "at 50")


def test_after_a_client_that_has_ended_without_a_word_another_one_is_served(consumers: Consumers) -> None:
    store = consumers.store(load_balancing_interval=0.2, partition_ownership_expiration_interval=1.0)
    consumers.own(store, "a")
    with pytest.raises(OptionError, match="the checkpoint store serves the client a"):
        consumers.claim_listed(store, "b", "0")

    def served() -> bool:
        try:
            return consumers.claim_listed(store, "b", *consumers.partitions).keys() == set(consumers.partitions)
        except OptionError:
            return False

    wait_until(served, "b has everything")
    assert list(consumers.snapshot().members) == ["b"]
