"""Events as rows: sent by the real client, stored by the emulator, and received."""

from __future__ import annotations

import contextlib
import json
import math
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from azure.eventhub import EventData, EventHubProducerClient
from azure.eventhub.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.message import build_events
from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver, RowFormat
from spark_ehbalance.eventhub.rows import ARROW_SCHEMA
from spark_ehbalance.eventhub.wire.decoder import Decoder
from tests.eventhub.encodings import compound, in_buffer, long, ordinary, section, text
from tests.query.support import HUB, hub_options, receive

ID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")


class RoundTrip:
    """Sends events to the hub's only partition, and returns what is received, as a table."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self._address = PartitionAddress(hub_options(emulator).connection, "$Default", "0")
        # one client for all tests, because its first batch takes more than a second
        self._producer = self.producer(HUB)

    def producer(self, hub: str) -> EventHubProducerClient:
        return EventHubProducerClient.from_connection_string(
            self.emulator.connection_string(), eventhub_name=hub, socket_timeout=0.005
        )

    def close(self) -> None:
        self._producer.close()

    def __call__(self, *events: Any, json_properties: bool = False, **how: str) -> pa.Table:
        before = self.end()
        self._producer.send_batch(list(events), **(how or {"partition_id": "0"}))  # type: ignore[arg-type]
        assert self.end() == before + len(events)
        return self.received(before, self.end(), json_properties=json_properties)

    def end(self) -> int:
        return self.emulator.partition_state(HUB, 0).next_sequence_number

    def received(self, start: int, end: int, *, json_properties: bool = False) -> pa.Table:
        """The rows from `start` to `end`."""
        receiver = Receiver(
            self._address, start, owner_level=None, prefetch=100, row_format=RowFormat(json_properties=json_properties)
        )
        with contextlib.closing(receiver):
            table = receive(receiver, end - start)
        assert table.schema == ARROW_SCHEMA
        table.validate(full=True)
        assert table["sequenceNumber"].to_pylist() == list(range(start, end))
        return table


@pytest.fixture(scope="module")
def trip() -> Iterator[RoundTrip]:
    with Emulator({HUB: 1}) as emulator, contextlib.closing(RoundTrip(emulator)) as made:
        yield made


def event(properties: dict[Any, Any] | None = None, body: Any = b"body") -> EventData:
    made = EventData(body)
    if properties is not None:
        made.properties = properties
    return made


def maps(batch: pa.Table, column: str) -> list[dict[str, str]]:
    return [dict(pairs) for pairs in batch[column].to_pylist()]


def test_the_columns_of_a_plain_event(trip: RoundTrip) -> None:
    before = datetime.now(timezone.utc) - timedelta(milliseconds=1)
    row = trip(event(body="grüße")).to_pylist()[0]
    assert row["body"] == "grüße".encode()
    assert (row["partition"], row["publisher"], row["partitionKey"]) == ("0", None, None)
    assert isinstance(row["offset"], str)
    assert row["offset"]
    assert before <= row["enqueuedTime"] <= datetime.now(timezone.utc)
    assert row["properties"] == []
    assert row["systemProperties"] == []


PROPERTIES: dict[str, tuple[Any, str, str]] = {
    # name → value, text, JSON text
    "text": ("größer", "größer", '"größer"'),
    "empty": ("", "", '""'),
    "quoted": ('a "b"\n', 'a "b"\n', '"a \\"b\\"\\n"'),
    "like a number": ("17", "17", '"17"'),
    "int": (17, "17", "17"),
    "negative": (-17, "-17", "-17"),
    "float": (1.5, "1.5", "1.5"),
    "true": (True, "true", "true"),
    "false": (False, "false", "false"),
    "none": (None, "null", "null"),
    "bytes": (b"\xff\x00", "[-1,0]", "[-1,0]"),
    "uuid": (ID, f'"{ID}"', f'"{ID}"'),
    "nan": (math.nan, "NaN", "NaN"),
    "infinity": (-math.inf, "-Infinity", "-Infinity"),
}


@pytest.mark.parametrize("as_json", [False, True])
def test_properties(trip: RoundTrip, as_json: bool) -> None:
    sent = {name: value for name, (value, _, _) in PROPERTIES.items()}
    batch = trip(event(sent), event(), json_properties=as_json)
    found, none = maps(batch, "properties")
    assert found == {name: texts[as_json] for name, (_, *texts) in PROPERTIES.items()}
    assert none == {}


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("count", [1, 600], ids=["one", "many at a time"])
def test_binary_is_an_array_of_its_bytes_even_if_it_is_utf_8(trip: RoundTrip, as_json: bool, count: int) -> None:
    sent = [
        AmqpAnnotatedMessage(
            data_body=b"x",
            application_properties={"header": b"432", "number": str(number), "none": b"", "list": [b"a", "a"]},
            annotations={"x-opt-kafka-key": "ü".encode()},
        )
        for number in range(count)
    ]
    batch = trip(*sent, json_properties=as_json)
    own, system = maps(batch, "properties")[-1], maps(batch, "systemProperties")[-1]
    assert (own["header"], own["none"], own["list"]) == ("[52,51,50]", "[]", '[[97], "a"]')
    assert system == {"x-opt-kafka-key": "[-61,-68]"}
    assert own["number"] == (f'"{count - 1}"' if as_json else str(count - 1))


NO_BODIES: dict[str, tuple[tuple[bytes, ...], bytes | None]] = {
    "none": ((), None),
    "null data": ((section(0x75, b"\x40"),), None),
    "null value": ((section(0x77, b"\x40"),), None),
    "empty data": ((section(0x75, text(b"", 0xA0)),), b""),
    "null and data": ((section(0x75, b"\x40"), section(0x75, text(b"x", 0xA0))), b"x"),
    "the text": ((section(0x77, text(b"null")),), b"null"),
    "nothing in a sequence": ((section(0x76, b"\x45"),), b"[]"),
}


@pytest.mark.parametrize("count", [1, 600], ids=["one", "many at a time"])
@pytest.mark.parametrize("what", NO_BODIES)
def test_a_missing_body_is_null(what: str, count: int) -> None:
    sections, body = NO_BODIES[what]
    sent = [ordinary(number, b"".join(sections)) for number in range(count)]
    batch = Decoder("0", False).record_batch(in_buffer(sent)).batch
    assert batch["body"].to_pylist() == [body] * count


#: Pairs of which keys have the same text, and the map that they become.
SAME_KEYS: dict[str, tuple[list[tuple[bytes, bytes]], dict[str, str]]] = {
    "a number": ([(text(b"1"), text(b"text")), (long(1), text(b"number"))], {"1": "number"}),
    "a text": ([(long(1), text(b"number")), (text(b"1"), text(b"text"))], {"1": "text"}),
    "a symbol": (
        [(text(b"1", 0xA3), text(b"a")), (text(b"2"), text(b"b")), (text(b"1"), text(b"c"))],
        {"1": "c", "2": "b"},
    ),
    "binary": ([(text(b"\xff", 0xA0), text(b"a")), (text(b"[-1]"), text(b"b"))], {"[-1]": "b"}),
}


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("count", [1, 600], ids=["one", "many at a time"])
@pytest.mark.parametrize("where", ["properties", "annotations"])
@pytest.mark.parametrize("what", SAME_KEYS)
def test_of_keys_with_the_same_text_the_last_value_counts(what: str, where: str, count: int, as_json: bool) -> None:
    pairs, expected = SAME_KEYS[what]
    raw, sent = b"".join(key + value for key, value in pairs), []
    for number in range(count):
        if where == "properties":
            sent.append(ordinary(number, section(0x74, compound(0xC1, 2 * len(pairs), raw))))
        else:
            numbered = text(b"x-opt-sequence-number", 0xA3) + long(number)
            sent.append(section(0x72, compound(0xC1, 2 + 2 * len(pairs), raw + numbered)))
    batch = Decoder("0", as_json).record_batch(in_buffer(sent)).batch
    column = batch["properties" if where == "properties" else "systemProperties"].to_pylist()
    assert column == [[(key, f'"{value}"' if as_json else value) for key, value in expected.items()]] * count


def test_partition_key(trip: RoundTrip) -> None:
    batch = trip(event(), event(), partition_key="schlüssel")
    assert batch["partitionKey"].to_pylist() == ["schlüssel"] * 2
    assert maps(batch, "systemProperties") == [{}, {}]


def test_publisher(trip: RoundTrip) -> None:
    before = trip.end()
    (published,) = build_events([b"x"])
    trip.emulator.append_encoded(HUB, 0, published.annotated("x-opt-publisher", "device-7"))
    batch = trip.received(before, before + 1)
    assert batch["publisher"].to_pylist() == ["device-7"]
    assert maps(batch, "systemProperties") == [{}]


def test_an_epoch_is_shown_where_the_hub_is_geo_replicated() -> None:
    with Emulator({HUB: 1}, geo_replicated=True) as emulator, contextlib.closing(RoundTrip(emulator)) as trip:
        emulator.append(HUB, 0, [b"before"] * 300)
        emulator.promote(HUB, 0)
        emulator.append(HUB, 0, [b"after"] * 300)
        shown = maps(trip.received(0, 600), "systemProperties")
    assert shown == [{"x-opt-sequence-number-epoch": str(epoch)} for epoch in [1] * 300 + [2] * 300]


@pytest.mark.parametrize("as_json", [False, True])
def test_message_properties_are_system_properties(trip: RoundTrip, as_json: bool) -> None:
    sent = AmqpAnnotatedMessage(
        data_body=b"x",
        properties=AmqpMessageProperties(  # type: ignore[no-untyped-call]
            message_id="id-1",
            user_id=b"\xffuser",
            to="there",
            subject="subject",
            reply_to="back",
            correlation_id="correlated",
            content_type="text/plain",
            content_encoding="gzip",
            group_id="g",
            group_sequence=3,
        ),
        annotations={"x-own": 5, "x-text": "t"},
    )
    found = maps(trip(sent, json_properties=as_json), "systemProperties")[0]
    texts = {
        "message-id": "id-1",
        "to": "there",
        "subject": "subject",
        "reply-to": "back",
        "correlation-id": "correlated",
        "content-type": "text/plain",
        "content-encoding": "gzip",
        "group-id": "g",
        "x-text": "t",
    }
    expected = {name: json.dumps(text) if as_json else text for name, text in texts.items()}
    assert found == expected | {"group-sequence": "3", "x-own": "5", "user-id": "[-1,117,115,101,114]"}


VALUES: list[tuple[dict[str, Any], bytes]] = [
    ({"value_body": "text ü"}, "text ü".encode()),
    ({"value_body": b"\xff\x00"}, b"\xff\x00"),
    ({"value_body": 17}, b"17"),
    ({"value_body": 1.5}, b"1.5"),
    ({"value_body": True}, b"true"),
    ({"value_body": ID}, f'"{ID}"'.encode()),
    ({"value_body": {"a": [1, "b", None]}}, b'{"a": [1, "b", null]}'),
    ({"value_body": ["a", 2]}, b'["a", 2]'),
    ({"sequence_body": ["a", 2, b"\xff"]}, b'["a", 2, [-1]]'),
    ({"sequence_body": [["a"], [2, {"k": "v"}]]}, b'["a", 2, {"k": "v"}]'),
]


@pytest.mark.parametrize(("sent", "body"), VALUES, ids=[str(sent) for sent, _ in VALUES])
def test_bodies_of_amqp_values(trip: RoundTrip, sent: dict[str, Any], body: bytes) -> None:
    assert trip(AmqpAnnotatedMessage(**sent))["body"].to_pylist() == [body]
