"""One checkpoint store that is given to two of azure-eventhub's clients: one reads, the other is told so before."""

from __future__ import annotations

from collections import Counter

import pytest
from azure.eventhub.exceptions import OwnershipLostError

from spark_ehbalance.errors import OptionError
from spark_ehbalance.values.position import Position
from tests.consumer.clients import Client
from tests.consumer.consumers import Consumers
from tests.source.support import HUB
from tests.waiting import wait_until

PARTITIONS = 2  # a client takes half a second to close each


@pytest.fixture
def partitions() -> int:
    return PARTITIONS


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_two_clients_of_one_store_read_nothing_twice(consumers: Consumers, kind: str) -> None:
    """At the same time: one of them reads. When it ends, the other goes on at its checkpoints."""
    hub = consumers.group.emulator.connection_string(HUB)
    store = consumers.store() if kind == "sync" else consumers.async_store()
    consumers.group.append(20, PARTITIONS)
    clients = [Client(hub, store) for _ in range(2)]
    try:
        wait_until(lambda: any(each.errors for each in clients), "one is told")
        [told] = [each for each in clients if each.errors]
        [reading] = [each for each in clients if each is not told]
        wait_until(lambda: len(reading.seen) >= 20 * PARTITIONS, "all was read")
        partition, error = told.errors[0]
        assert partition is None
        assert "make a DeltaCheckpointStore for each client" in str(error)
        assert "\n" not in str(error)
        assert not told.seen
        reading.stop()
        consumers.group.append(5, PARTITIONS)
        wait_until(lambda: len(told.seen) >= 5 * PARTITIONS, "the other has read the rest")
    finally:
        for each in clients:
            each.stop()
    assert Counter(reading.seen + told.seen) == consumers.group.everything()
    assert all(isinstance(each, OptionError) for _, each in told.errors)


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
