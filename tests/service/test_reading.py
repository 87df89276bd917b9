"""Positions, contents and readers of partitions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpAnnotatedMessage

from spark_ehbalance.eventhub.client_errors import TransientError
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.receiver import DisconnectedError, Receiver
from spark_ehbalance.eventhub.resolve import resolve
from spark_ehbalance.eventhub.rows import sequence_numbers
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.starting_positions import PartitionEnd
from tests.service.hub import Hub
from tests.waiting import wait_until

#: The maximum number of readers without an owner level per partition and consumer group.
_MAX_READERS = 5

#: Seconds within which a reader detects its disconnection.
_PATIENCE = 60.0


def events(count: int) -> list[EventData]:
    return [EventData(f"event {number}") for number in range(count)]


@contextlib.contextmanager
def reading(hub: Hub, partition: str, start: Any, level: int | None = None, **settings: Any) -> Iterator[Receiver]:
    settings = {"prefetch": 100, **settings}
    with contextlib.closing(Receiver(hub.address(partition), start, owner_level=level, **settings)) as receiver:
        yield receiver


def read(hub: Hub, partition: str, wanted: range, **settings: Any) -> pa.Table:
    """The events with these sequence numbers."""
    batches: list[pa.RecordBatch] = []
    with reading(hub, partition, wanted.start, **settings) as receiver:

        def enough() -> bool:
            batches.append(receiver.receive(len(wanted), 1.0, len(wanted)))
            return sum(batch.num_rows for batch in batches) >= len(wanted)

        wait_until(enough, f"{len(wanted)} events have come")
    return pa.Table.from_batches(batches)


def lost_to(receiver: Receiver) -> DisconnectedError:
    """The error of a reader that another reader disconnected or that the hub rejected."""
    found: list[DisconnectedError] = []

    def disconnected() -> bool:
        try:
            receiver.receive(100, 0.5)
        except DisconnectedError as other:
            found.append(other)
        return bool(found)

    wait_until(disconnected, "it is disconnected", _PATIENCE)
    return found[0]


def test_partition_states_equal_the_clients(hub: Hub) -> None:
    hub.send("0", events(2))
    with hub.metadata() as metadata, hub.connection.consumer_client(hub.consumer_group) as client:
        ids = metadata.partition_ids()
        assert list(ids) == client.get_partition_ids()
        found = client.get_partition_properties("0")
        state = metadata.partition_states(["0"])["0"]
    assert state.end == found["last_enqueued_sequence_number"] + 1
    assert state.last_offset == found["last_enqueued_offset"]
    assert state.last_enqueued == found["last_enqueued_time_utc"]


def test_all_kinds_of_events_are_read(hub: Hub) -> None:
    rich = EventData(b"\x00\xff binary")
    rich.properties = {"text": "é", "number": 42, "yes": True, "ratio": 0.5, "bytes": b"\x01"}
    rich.content_type, rich.correlation_id, rich.message_id = "application/json", "c-1", "m-1"
    value = AmqpAnnotatedMessage(value_body={"a": 1})
    large = EventData(b"x" * 200_000)
    sent = hub.send("1", [EventData("plain"), EventData(b""), rich, large, value])
    rows = read(hub, "1", sent)
    assert sequence_numbers(rows).to_pylist() == list(sent)
    assert rows["body"].to_pylist() == [b"plain", b"", b"\x00\xff binary", b"x" * 200_000, b'{"a": 1}']
    properties = dict(rows["properties"].to_pylist()[2])
    assert (properties["text"], properties["number"], properties["yes"]) == ("é", "42", "true")
    assert rows["partition"].to_pylist() == ["1"] * 5
    system = dict(rows["systemProperties"].to_pylist()[2])
    assert system["content-type"].strip('"') == "application/json"


def test_starting_positions_are_resolved(hub: Hub) -> None:
    first = hub.send("2", events(3))
    rows = read(hub, "2", first)
    middle = rows["enqueuedTime"].to_pylist()[1]
    with HubMetadata(hub.connection, hub.consumer_group) as metadata:
        state = metadata.partition_states(["2"])["2"]
    assert resolve(PartitionEnd.LATEST, hub.address("2"), state, 30) == Position(first.stop - 1, state.last_offset)
    at = resolve(middle - timedelta(milliseconds=1), hub.address("2"), state, 30).next
    assert first.start <= at <= first.start + 1, "the first event at or after that time"
    with reading(hub, "2", rows["offset"].to_pylist()[1]) as receiver:
        batch = wait_until(lambda: (b := receiver.receive(1, 1.0)) and b.num_rows and b, "an event has come")
    assert sequence_numbers(batch).to_pylist() == [first.start + 1], "an offset is inclusive"


def test_higher_owner_level_disconnects_a_lower_one(hub: Hub) -> None:
    with reading(hub, "3", "@latest", 5) as low, reading(hub, "3", "@latest", 6) as high:
        low.receive(1, 0.5)
        high.receive(1, 0.5)
        assert lost_to(low).epoch == 6
        assert high.is_usable()
        with reading(hub, "3", "@latest", 4) as lower, reading(hub, "3", "@latest") as none:
            assert lost_to(lower).epoch == 6
            assert lost_to(none).epoch == 6
        assert high.is_usable()
        with reading(hub, "3", "@latest", 6) as same:
            same.receive(1, 0.5)
            assert lost_to(high).epoch == 6, "of two with the same level the later one has it"


def test_owner_levels_end_with_the_last_reader(hub: Hub) -> None:
    with reading(hub, "3", "@latest", 1_000) as high:
        high.receive(1, 0.5)

    def attached() -> bool:
        with reading(hub, "3", "@latest", 2) as low:
            try:
                low.receive(1, 0.5)
            except (DisconnectedError, TransientError):
                return False
            return True

    wait_until(attached, "a lower level is taken")


def test_sixth_reader_without_owner_level_is_rejected(hub: Hub) -> None:
    with contextlib.ExitStack() as stack:

        def five_read() -> bool:
            stack.pop_all().close()  # readers of an earlier test might still be leaving
            try:
                for _ in range(_MAX_READERS):
                    stack.enter_context(reading(hub, "3", "@latest")).receive(1, 0.3)
            except (DisconnectedError, TransientError):
                return False
            return True

        wait_until(five_read, "five read")
        with (
            reading(hub, "3", "@latest") as sixth,
            pytest.raises((DisconnectedError, TransientError), match=r"(?i)receivers"),
        ):
            sixth.receive(1, 0.5)
