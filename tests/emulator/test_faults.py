"""Injected faults: the real client recovers from each and misses no event."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubConsumerClient
from azure.eventhub.exceptions import EventHubError

from spark_ehbalance.emulator import Emulator
from tests.emulator.clients import DEADLINE, detached, numbers, producer, read, reader, refusal, wait_until

QUICK_RETRIES = {"retry_total": 10, "retry_backoff_factor": 0.02, "retry_backoff_max": 0.1, "retry_mode": "fixed"}


@pytest.fixture
def received(connection: str) -> Iterator[set[int]]:
    """The sequence numbers of partition 0 that a public, retrying consumer has received so far."""
    numbers_: set[int] = set()
    client = EventHubConsumerClient.from_connection_string(connection, "$Default", socket_timeout=0.02, **QUICK_RETRIES)

    def on_batch(context: Any, events: list[EventData]) -> None:
        numbers_.update(event.sequence_number for event in events)  # type: ignore[misc]

    options = {"partition_id": "0", "starting_position": "-1", "max_wait_time": 0.05}
    thread = threading.Thread(target=client.receive_batch, args=(on_batch,), kwargs=options)
    thread.start()
    yield numbers_
    client.close()
    thread.join(DEADLINE)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "fault",
    [
        Emulator.drop_connections,
        lambda emulator: emulator.detach("hub", 0),
        lambda emulator: emulator.detach("hub", 0, "amqp:internal-error", "boom"),
    ],
)
def test_consumer_recovers_and_misses_nothing(
    emulator: Emulator, received: set[int], fault: Callable[[Emulator], None]
) -> None:
    emulator.append("hub", 0, [b"x"] * 100)
    wait_until(lambda: len(received) == 100, "the events have arrived")
    fault(emulator)
    emulator.append("hub", 0, [b"x"] * 50)
    wait_until(lambda: len(received) == 150, "the rest has arrived")
    assert received == set(range(150))


def test_server_busy_refuses_attaches_sends_and_requests_for_properties(emulator: Emulator, connection: str) -> None:
    emulator.server_busy(seconds=60)
    assert "throttled" in str(refusal(connection))
    emulator.server_busy()
    with producer(connection, retry_total=0) as client:
        client.send_event(EventData(b"0"), partition_id="0")
        emulator.server_busy(seconds=60)
        with pytest.raises(EventHubError, match="throttled"):
            client.send_event(EventData(b"refused"), partition_id="0")
        with pytest.raises(EventHubError, match="Please wait 4 seconds"):
            client.get_eventhub_properties()
        emulator.server_busy()
        client.send_event(EventData(b"1"), partition_id="0")
    assert emulator.partition_state("hub", 0).next_sequence_number == 2


def test_server_busy_detaches_a_receiver_with_a_reason(emulator: Emulator, connection: str) -> None:
    with reader(connection) as events:
        emulator.server_busy(count=1)
        emulator.append("hub", 0, [b"x"])
        error = detached(events)
        assert error.error == "server-busy" or "server-busy" in str(error)
    assert numbers(read(connection, 1)) == [0]


def test_paused_partition_delivers_nothing_until_resumed(emulator: Emulator, connection: str) -> None:
    emulator.pause("hub", 0)
    emulator.append("hub", 0, [b"x"] * 3)
    emulator.append("hub", 1, [b"x"] * 3)
    with reader(connection) as paused, reader(connection, "1") as other:
        assert numbers(other.read(3)) == [0, 1, 2]
        assert paused.read_all() == []
        emulator.resume("hub", 0)
        assert numbers(paused.read(3)) == [0, 1, 2]
