"""Responses to management requests, and changes to hubs while clients are connected."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.amqp.codec import Array, Int, Timestamp
from spark_ehbalance.emulator.amqp.frames import ACCEPTED, Disposition, Transfer
from tests.emulator.clients import detached, producer, reader
from tests.emulator.raw import RawPeer


def test_request_without_a_receiver_for_the_response_is_accepted(emulator: Emulator) -> None:
    with RawPeer.opened(emulator) as peer:
        peer.attach_sender("hub/$management")
        peer.send(Transfer(0, 0, b"1", 0), payload=b"\x00\x53\x77\x40")
        assert peer.expect(Disposition).state == ACCEPTED


# Fields read by the SDKs for Python, JavaScript, Java, .NET and Go, in the types that the strictest of them accepts.
HUB_FIELDS = {
    "name": str,
    "type": str,
    "created_at": Timestamp,
    "partition_count": Int,
    "partition_ids": Array,
    "georeplication_factor": Int,
}
PARTITION_FIELDS = {
    "name": str,
    "type": str,
    "partition": str,
    "begin_sequence_number_epoch": Int,
    "begin_sequence_number": int,
    "last_enqueued_sequence_number_epoch": Int,
    "last_enqueued_sequence_number": int,
    "last_enqueued_offset": str,
    "last_enqueued_time_utc": Timestamp,
    "is_partition_empty": bool,
}


@pytest.mark.parametrize(("kind", "types"), [("eventhub", HUB_FIELDS), ("partition", PARTITION_FIELDS)])
def test_response_fields_have_the_types_that_sdks_accept(
    emulator: Emulator, connection: str, kind: str, types: dict[str, type]
) -> None:
    answer = _request(emulator, operation="READ", name="hub", type=f"com.microsoft:{kind}", partition="1")
    assert {key: type(value) for key, value in answer.items()} == types
    assert {type(key) for key in answer} == {str}
    assert {type(id) for id in answer.get("partition_ids", ["1"])} == {str}  # type: ignore[attr-defined]
    assert answer.get("georeplication_factor", 1) == 1


def _request(emulator: Emulator, **properties: str) -> dict[str, object]:
    """The value that `$management` returns for a request on a plain socket."""
    with RawPeer.opened(emulator) as peer:
        answer = peer.request("$management", **properties)
    assert answer.properties[5] == "request"
    assert answer.application["status-code"] == 200
    return answer.value


@pytest.mark.parametrize(("count", "trimmed"), [(0, 0), (10, 0), (10, 4), (10, 10)])
def test_partition_properties(emulator: Emulator, connection: str, count: int, trimmed: int) -> None:
    if count:
        emulator.append("hub", 1, [b"x"] * count)
    state = emulator.partition_state("hub", 1)
    emulator.trim("hub", 1, trimmed)
    with producer(connection) as client:
        properties = client.get_partition_properties("1")
    assert properties["id"] == "1"
    assert properties["is_empty"] is (trimmed == count)
    assert properties["beginning_sequence_number"] == min(trimmed, count - 1)
    assert properties["last_enqueued_sequence_number"] == state.next_sequence_number - 1 == count - 1
    assert properties["last_enqueued_offset"] == state.last_offset
    assert (state.last_offset == "-1") is (count == 0)
    never = datetime.min.replace(tzinfo=timezone.utc)
    assert properties["last_enqueued_time_utc"] == (state.last_enqueued_time or never)


def test_deleted_hub_disconnects_its_readers_and_can_be_recreated(emulator: Emulator, connection: str) -> None:
    emulator.append("hub", 0, [b"x"] * 5)
    with reader(connection) as events:
        events.read(5)
        emulator.delete_hub("hub")
        assert detached(events).error == "resource-deleted"
    emulator.add_hub("hub", 1)
    assert emulator.partition_state("hub", 0).next_sequence_number == 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda emulator: emulator.add_hub("a/b", 1), "hub name 'a/b'"),
        (lambda emulator: emulator.add_hub("a", 0), "cannot have 0 partitions: use 1 to 2000"),
        (lambda emulator: emulator.add_partitions("hub", 0), "can only grow"),
        (lambda emulator: emulator.add_consumer_group("hub", "a b"), "consumer group 'a b'"),
        (lambda emulator: emulator.partition_state("nohub", 0), "/nohub' could not be found"),
        (lambda emulator: emulator.trim("hub", 5, 1), "It should be between 0 and 3"),
    ],
)
def test_invalid_calls_raise(emulator: Emulator, connection: str, call: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call(emulator)  # type: ignore[operator]
