"""What the real client's management calls are told, and changes to hubs while clients are connected."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from azure.eventhub.exceptions import ConnectError, EventHubError

from spark_ehbalance.emulator import Emulator

from .clients import numbers, producer, reader, wait_until


@pytest.fixture
def connection(emulator: Emulator) -> str:
    emulator.add_hub("Hub", 2)
    return emulator.connection_string("Hub")


def test_hub_properties(connection: str) -> None:
    with producer(connection) as client:
        properties = client.get_eventhub_properties()
    assert properties["eventhub_name"] == "Hub"
    assert properties["partition_ids"] == ["0", "1"]
    assert abs(datetime.now(timezone.utc) - properties["created_at"]) < timedelta(minutes=1)


def test_an_empty_partition(connection: str) -> None:
    with producer(connection) as client:
        properties = client.get_partition_properties("1")
    assert properties["is_empty"] is True
    assert properties["beginning_sequence_number"] == 0
    assert properties["last_enqueued_sequence_number"] == -1
    assert properties["last_enqueued_offset"] == "-1"
    assert properties["last_enqueued_time_utc"] == datetime.min.replace(tzinfo=timezone.utc)


def test_a_partition_with_events_and_after_trimming(emulator: Emulator, connection: str) -> None:
    emulator.append("hub", 1, [b"x"] * 10)
    state = emulator.partition_state("hub", 1)
    with producer(connection) as client:
        properties = client.get_partition_properties("1")
        assert properties["id"] == "1"
        assert properties["is_empty"] is False
        assert properties["beginning_sequence_number"] == 0
        assert properties["last_enqueued_sequence_number"] == state.last_sequence_number == 9
        assert properties["last_enqueued_offset"] == state.last_offset
        assert properties["last_enqueued_time_utc"] == state.last_enqueued_time
        emulator.trim("hub", 1, 4)
        assert client.get_partition_properties("1")["beginning_sequence_number"] == 4
        emulator.trim("hub", 1, 10)
        properties = client.get_partition_properties("1")
        assert properties["is_empty"] is True
        assert properties["last_enqueued_sequence_number"] == 9
        assert properties["last_enqueued_offset"] == state.last_offset


@pytest.mark.parametrize(("hub", "partition"), [("nohub", "0"), ("Hub", "7"), ("Hub", "x"), ("Hub", "²")])
def test_what_does_not_exist_is_not_found(emulator: Emulator, connection: str, hub: str, partition: str) -> None:
    with producer(emulator.connection_string(hub), retry_total=0) as client, pytest.raises(ConnectError, match="404"):
        client.get_partition_properties(partition)


def test_an_unknown_hub_is_not_found(emulator: Emulator) -> None:
    connection = emulator.connection_string("nohub")
    with producer(connection, retry_total=0) as client, pytest.raises(ConnectError, match="404"):
        client.get_eventhub_properties()


def test_partitions_are_added_while_clients_are_connected(emulator: Emulator, connection: str) -> None:
    emulator.append("hub", 0, [b"x"])
    with reader(connection) as events, producer(connection) as client:
        events.read(1)
        emulator.add_partitions("hub", 2)
        assert client.get_partition_ids() == ["0", "1", "2", "3"]
        emulator.append("hub", 3, [b"x"])
        emulator.append("hub", 0, [b"x"])
        with reader(connection, "3") as new:
            assert numbers(new.read(1)) == [0]
        assert numbers(events.read(2)) == [0, 1]


def test_trimming_under_a_reader_skips_to_the_first_retained_event(emulator: Emulator, connection: str) -> None:
    emulator.append("hub", 0, [b"x"])
    with reader(connection) as events:
        events.read(1)
        emulator.pause("hub", 0)
        emulator.append("hub", 0, [b"x"] * 9)
        emulator.trim("hub", 0, 7)
        emulator.resume("hub", 0)
        assert numbers(events.read(4)) == [0, 7, 8, 9]


def test_a_deleted_hub_disconnects_its_readers_and_may_come_back(emulator: Emulator, connection: str) -> None:
    emulator.append("hub", 0, [b"x"] * 5)
    with reader(connection) as events:
        events.read(5)
        emulator.delete_hub("hub")
        with pytest.raises(EventHubError) as caught:
            wait_until(events.poll, "the reader is disconnected")
        assert caught.value.error == "resource-deleted"
    emulator.add_hub("hub", 1)
    assert emulator.partition_state("hub", 0).next_sequence_number == 0


def test_old_events_are_dropped() -> None:
    with Emulator({"hub": 1}, retention=timedelta(seconds=1)) as emulator:
        emulator.append("hub", 0, [b"x"] * 5)
        wait_until(lambda: emulator.partition_state("hub", 0).first_sequence_number == 5, "the events are dropped")
        emulator.append("hub", 0, [b"x"])
        assert emulator.partition_state("hub", 0).next_sequence_number == 6


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda emulator: emulator.add_hub("a/b", 1), "hub name 'a/b'"),
        (lambda emulator: emulator.add_hub("a", 0), "allowed are 1 to 2000"),
        (lambda emulator: emulator.add_partitions("Hub", 0), "can only grow"),
        (lambda emulator: emulator.add_consumer_group("Hub", "a b"), "consumer group 'a b'"),
        (lambda emulator: emulator.partition_state("nohub", 0), "'nohub' could not be found"),
        (lambda emulator: emulator.trim("Hub", 5, 1), "Partitions/5' could not be found"),
    ],
)
def test_wrong_calls_say_so(emulator: Emulator, connection: str, call: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call(emulator)  # type: ignore[operator]
