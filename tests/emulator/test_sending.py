"""Sending with the real client: single events, batches, keys, partitions, sizes, and the events that readers get."""

from __future__ import annotations

from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpAnnotatedMessage
from azure.eventhub.exceptions import EventHubError

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.amqp.session import MAX_MESSAGE_SIZE
from spark_ehbalance.emulator.partition_keys import partition_of_key
from tests.emulator.clients import bodies, numbers, producer, reader


def _counts(emulator: Emulator) -> list[int]:
    return [emulator.partition_state("hub", number).next_sequence_number for number in range(4)]


def test_single_events_and_batches_keep_their_order(emulator: Emulator, connection: str) -> None:
    with producer(connection) as client:
        client.send_event(EventData(b"0"), partition_id="1")
        batch = client.create_batch(partition_id="1")
        for number in range(1, 500):
            batch.add(EventData(b"%d" % number))
        client.send_batch(batch)
        client.send_event(EventData(b"500"), partition_id="1")
    with reader(connection, "1") as events:
        assert bodies(events.read(501)) == [b"%d" % number for number in range(501)]
        assert numbers(events.events) == list(range(501))
    assert _counts(emulator) == [0, 501, 0, 0]


def test_all_sections_of_a_message_but_the_header_reach_the_reader(connection: str) -> None:
    message = AmqpAnnotatedMessage(
        data_body=[b"one", b"two"],
        annotations={"mine": 7},
        delivery_annotations={"hop": 1},
        application_properties={"text": "ü", "number": 5, "flag": True, "none": None},
        properties={"message_id": "id", "content_type": "text/plain", "group_sequence": 3},
        header={"durable": True},
    )
    event = EventData(b"body")
    event.properties = {"a": 1}
    event.correlation_id = "corr"
    with producer(connection) as client:
        client.send_event(message, partition_id="0")  # type: ignore[arg-type]
        client.send_batch([event], partition_id="0")
    with reader(connection) as events:
        raw, plain = events.read(2)
    assert list(raw.body) == [b"one", b"two"]
    assert raw.properties == {b"text": "ü".encode(), b"number": 5, b"flag": True, b"none": None}
    assert raw.raw_amqp_message.annotations[b"mine"] == 7
    assert raw.raw_amqp_message.properties.message_id == b"id"
    assert raw.raw_amqp_message.header is None
    assert raw.raw_amqp_message.delivery_annotations == {b"hop": 1}
    assert plain.properties == {b"a": 1}
    assert plain.correlation_id == "corr"


def test_service_annotations_of_a_sender_are_replaced(connection: str) -> None:
    position = {"x-opt-sequence-number": 999, "x-opt-offset": "1", "x-opt-enqueued-time": 1}
    forged: dict[Any, Any] = {"x-opt-sequence-number-epoch": 9, **position, "kept": "k"}
    with producer(connection) as client:
        client.send_event(AmqpAnnotatedMessage(data_body=b"x", annotations=forged), partition_id="0")  # type: ignore
    with reader(connection) as events:
        event = events.read(1)[0]
    annotations = event.raw_amqp_message.annotations
    assert event.sequence_number == 0
    assert [*annotations] == [b"kept", b"x-opt-sequence-number-epoch", *map(str.encode, position)]
    assert annotations[b"x-opt-sequence-number-epoch"] == -1


def test_a_key_always_goes_to_the_same_partition_and_keys_to_all(emulator: Emulator, connection: str) -> None:
    with producer(connection) as client:
        for _ in range(3):
            client.send_event(EventData(b"single"), partition_key="a key")
        client.send_batch([EventData(b"batch")], partition_key="a key")
        counts = _counts(emulator)
        assert counts[partition_of_key("a key", 4)] == sum(counts) == 4
        for number in range(32):
            client.send_event(EventData(b"x"), partition_key=f"key {number}")
    assert min(_counts(emulator)) > 0
    with reader(connection, str(counts.index(4))) as events:
        assert [event.partition_key for event in events.read(4)[:4]] == [b"a key"] * 4


def test_events_without_key_go_round_robin(emulator: Emulator, connection: str) -> None:
    with producer(connection) as client:
        for _ in range(8):
            client.send_event(EventData(b"x"))
    assert _counts(emulator) == [2] * 4


def test_a_megabyte_is_the_limit_of_an_event_and_the_link_stays(emulator: Emulator, connection: str) -> None:
    sizes = [MAX_MESSAGE_SIZE - 200, 1, 500_000]
    with producer(connection, retry_total=0) as client:
        with pytest.raises(EventHubError) as caught:
            client.send_event(EventData(b"x" * (MAX_MESSAGE_SIZE + 1)), partition_id="0")
        assert caught.value.error == "link:message-size-exceeded"
        for size in sizes:
            client.send_event(EventData(b"x" * size), partition_id="0")
    with reader(connection) as events:
        assert [len(body) for body in bodies(events.read(3))] == sizes
