"""Events in the service's own encoding: the same rows from the fast tiers, the slow path and azure-eventhub.

Each shape is that of an event which azure-sdk-for-python's live tests received from a namespace
(`tests/amqpproxy_recordings`, April and May 2025), made of its fields.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial

import pyarrow as pa
import pytest

from spark_ehbalance.eventhub.rows import record_batch
from spark_ehbalance.eventhub.wire.decoder import Decoder
from spark_ehbalance.eventhub.wire.messages import parse
from tests.eventhub.client_decoder import decoded_by_client
from tests.eventhub.encodings import compound, in_buffer, section, shortest, text, timestamp

#: Fast tiers where they pay, templates for each message, and "any shape" for each message.
DECODERS = {
    "where it pays": partial(Decoder, "0", False),
    "templates": partial(Decoder, "0", False, few=1),
    "any shape": partial(Decoder, "0", False, few=10**6, many=1),
}


def symbols(pairs: dict[bytes, bytes]) -> bytes:
    """A map with symbols as keys."""
    return compound(0xC1, 2 * len(pairs), b"".join(text(name, 0xA3) + value for name, value in pairs.items()))


def strings(pairs: dict[bytes, bytes], code: int = 0xA1) -> bytes:
    """A map as azure-eventhub encodes it."""
    return compound(0xC1, 2 * len(pairs), b"".join(text(name, code) + value for name, value in pairs.items()))


def data(*parts: bytes) -> bytes:
    return b"".join(section(0x75, text(part, 0xA0)) for part in parts)


def application(**pairs: bytes) -> bytes:
    return section(0x74, strings({name.encode(): value for name, value in pairs.items()}))


def properties(*fields: bytes | None) -> bytes:
    """The section of all 13 fields."""
    encoded = [b"\x40" if value is None else value for value in (*fields, *[None] * (13 - len(fields)))]
    return section(0x73, compound(0xC0, 13, b"".join(encoded)))


@dataclass(frozen=True)
class Shape:
    """The sections behind the annotations, the sender's own annotations, and the row that they make.

    azure-eventhub makes text of binary values in a body: `body_of_client`.
    """

    rest: bytes
    own: dict[bytes, bytes] = field(default_factory=dict)
    metrics: bool = False
    body: bytes | None = None
    body_of_client: bytes | None = None
    key: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    system: dict[str, str] = field(default_factory=dict)

    def message(self, number: int, offset: int, time: int, *, epoch: int = -1, retrieved: int = 0) -> bytes:
        small = bytes((0x54, epoch & 0xFF))
        head = symbols({
            b"last_enqueued_sequence_number_epoch": small,
            b"last_enqueued_sequence_number": shortest(number),
            b"last_enqueued_offset": text(b"%d" % offset),
            b"last_enqueued_time_utc": timestamp(time),
            b"runtime_info_retrieval_time_utc": timestamp(retrieved),
        })  # fmt: skip
        annotations = symbols({
            **self.own,
            b"x-opt-sequence-number-epoch": small,
            b"x-opt-sequence-number": shortest(number),
            b"x-opt-offset": text(b"%d" % offset),
            b"x-opt-enqueued-time": timestamp(time),
        })  # fmt: skip
        return (section(0x71, head) if self.metrics else b"") + section(0x72, annotations) + self.rest


def key(value: str) -> dict[bytes, bytes]:
    return {b"x-opt-partition-key": text(value.encode())}


#: The events of `test_send_amqp_annotated_message` have all kinds of bodies. Delivery annotations come behind the body,
#: where the sender wrote them; the header is not delivered.
SHAPES = {
    "data": Shape(data(b"Event Number 0"), body=b"Event Number 0"),
    "empty": Shape(data(b""), body=b""),
    "text": Shape(data("é,è,à,ù,â,ê,î,ô,û".encode()), body="é,è,à,ù,â,ê,î,ô,û".encode()),
    "key of a batch": Shape(data(b"0"), key("test_partition_a"), body=b"0", key="test_partition_a"),
    "key of an event": Shape(
        application(is_single=b"\x56\x01") + data(b"87"),
        key("test_partition_c"),
        body=b"87",
        key="test_partition_c",
        properties={"is_single": "true"},
    ),
    "property": Shape(
        application(raw_prop=text(b"raw_value")) + data(b"Message 0"),
        body=b"Message 0",
        properties={"raw_prop": "raw_value"},
    ),
    "sections of data, delivery annotations": Shape(
        application(body_type=text(b"data"))
        + data(b"aa", b"bb", b"cc")
        + section(0x71, symbols({b"delann_key": text(b"delann_value")})),
        body=b"aabbcc",
        properties={"body_type": "data"},
    ),
    "value, annotation": Shape(
        application(body_type=text(b"value"))
        + section(
            0x77, strings({b"key": compound(0xC0, 3, b"\x54\x85" + text(b"data", 0xA0) + b"\x56\x00")}, code=0xA0)
        ),
        {b"ann_key": text(b"ann_value")},
        body=b'{"key": [-123, [100,97,116,97], false]}',
        body_of_client=b'{"key": [-123, "data", false]}',
        properties={"body_type": "value"},
        system={"ann_key": "ann_value"},
    ),
    "sequence, footer": Shape(
        properties(None, None, None, text(b"sequence"))
        + application(body_type=text(b"sequence"))
        + section(0x76, compound(0xC0, 3, text(b"message", 0xA0) + b"\x82" + struct.pack(">d", 123.456) + b"\x56\x01"))
        + section(0x78, symbols({b"footer_key": text(b"footer_value")})),
        body=b"[[109,101,115,115,97,103,101], 123.456, true]",
        body_of_client=b'["message", 123.456, true]',
        properties={"body_type": "sequence"},
        system={"subject": "sequence"},
    ),
    "message properties": Shape(
        properties(text(b"mess_id"), None, None, None, None, text(b"corr_id"), text(b"text/plain", 0xA3))
        + data(b'{"json_key": "json_val"}'),
        body=b'{"json_key": "json_val"}',
        system={"message-id": "mess_id", "correlation-id": "corr_id", "content-type": "text/plain"},
    ),
    "last enqueued event": Shape(data(b"Inclusive"), metrics=True, body=b"Inclusive"),
}

#: Numbers in both of their encodings.
NUMBERS = range(100, 160)


def sent(shape: Shape) -> list[bytes]:
    return [shape.message(number, 80 * number, 1_745_950_669_106 + number) for number in NUMBERS]


def read_by_client(shape: Shape, messages: list[bytes]) -> pa.RecordBatch:
    events = map(decoded_by_client, messages)
    mended = ((shape.body if body == shape.body_of_client else body, *rest) for body, *rest in events)
    return record_batch(mended, "0", json_properties=False)


@pytest.mark.parametrize("tiers", DECODERS)
@pytest.mark.parametrize("name", SHAPES)
def test_a_real_message_is_the_same_row_whoever_decodes_it(name: str, tiers: str) -> None:
    shape, decoder = SHAPES[name], DECODERS[tiers]()
    messages = sent(shape)
    by_client = read_by_client(shape, messages)
    assert record_batch(map(parse, messages), "0", json_properties=False).equals(by_client)
    for _ in range(2):  # the second time with templates
        assert decoder.record_batch(in_buffer(messages)).batch.equals(by_client)
    assert by_client.to_pylist() == [
        {
            "body": shape.body,
            "partition": "0",
            "offset": str(80 * number),
            "sequenceNumber": number,
            "enqueuedTime": datetime(2025, 4, 29, 18, 17, 49, 106_000 + 1000 * number, timezone.utc),
            "publisher": None,
            "partitionKey": shape.key,
            "properties": list(shape.properties.items()),
            "systemProperties": list(shape.system.items()),
        }
        for number in NUMBERS
    ]


def test_real_messages_of_all_shapes_at_once() -> None:
    shapes = list(SHAPES.values())
    messages = [message for each in zip(*map(sent, shapes), strict=True) for message in each]
    made = DECODERS["where it pays"]().record_batch(in_buffer(messages))
    by_client = pa.concat_batches([read_by_client(shape, sent(shape)) for shape in shapes])
    order = [len(NUMBERS) * shape + number for number in range(len(NUMBERS)) for shape in range(len(shapes))]
    assert not made.unreadable
    assert made.batch.equals(by_client.take(pa.array(order)))
