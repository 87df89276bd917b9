"""Rows made of an event's sections. `test_wire_link.py` and `tests/service` read rows from a hub."""

from __future__ import annotations

import json
import math
import uuid
from datetime import datetime, timezone
from typing import Any

import pytest

from spark_ehbalance.emulator.amqp.codec import Symbol, encode
from spark_ehbalance.eventhub.rows import ARROW_SCHEMA, record_batch
from spark_ehbalance.eventhub.wire.messages import parse
from tests.eventhub.encodings import SERVICE_ITEMS, compound, long, ordinary, section, service_annotations, text

ID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")


def row(message: bytes, as_json: bool = False) -> dict[str, Any]:
    batch = record_batch([parse(message)], "0", json_properties=as_json)
    assert batch.schema == ARROW_SCHEMA
    batch.validate(full=True)
    (found,) = batch.to_pylist()
    return {name: dict(value) if isinstance(value, list) else value for name, value in found.items()}


def annotated(*items: bytes) -> bytes:
    """A message with these annotations in front of the service's own."""
    return section(0x72, compound(0xC1, SERVICE_ITEMS + len(items), b"".join(items) + service_annotations(7)))


def test_plain_event_fills_all_columns() -> None:
    assert row(ordinary(7, section(0x75, text("grüße".encode(), 0xA0)))) == {
        "body": "grüße".encode(),
        "partition": "0",
        "offset": "7000",
        "sequenceNumber": 7,
        "enqueuedTime": datetime.fromtimestamp(1_700_000_000.007, timezone.utc),
        "publisher": None,
        "partitionKey": None,
        "properties": {},
        "systemProperties": {},
    }


def test_service_annotations_are_columns_and_a_default_epoch_is_omitted() -> None:
    key = text(b"x-opt-partition-key", 0xA3), text("schlüssel".encode())
    found = row(annotated(*key, text(b"x-opt-publisher", 0xA3), text(b"device-7")))
    assert (found["partitionKey"], found["publisher"], found["systemProperties"]) == ("schlüssel", "device-7", {})
    assert row(ordinary(7, epoch=b"\x54\x02"))["systemProperties"] == {"x-opt-sequence-number-epoch": "2"}


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
    "bytes that are a text": (b"432", "[52,51,50]", "[52,51,50]"),
    "no bytes": (b"", "[]", "[]"),
    "list": ([b"a", "a"], '[[97], "a"]', '[[97], "a"]'),
    "uuid": (ID, f'"{ID}"', f'"{ID}"'),
    "nan": (math.nan, "NaN", "NaN"),
    "infinity": (-math.inf, "-Infinity", "-Infinity"),
}


@pytest.mark.parametrize("as_json", [False, True])
def test_properties_and_annotations_become_text_or_json(as_json: bool) -> None:
    sent = {Symbol(name): value for name, (value, _, _) in PROPERTIES.items()}
    own = b"".join(encode(name) + encode(value) for name, value in sent.items())
    annotations = compound(0xC1, SERVICE_ITEMS + 2 * len(sent), own + service_annotations(7))
    found = row(section(0x72, annotations) + section(0x74, encode(sent)), as_json)
    expected = {name: texts[as_json] for name, (_, *texts) in PROPERTIES.items()}
    assert (found["properties"], found["systemProperties"]) == (expected, expected)


@pytest.mark.parametrize("as_json", [False, True])
def test_message_properties_are_system_properties(as_json: bool) -> None:
    """Even properties that are zero or empty."""
    names = ["message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type", "content-encoding"]
    names += ["absolute-expiry-time", "creation-time", "group-id", "group-sequence", "reply-to-group-id"]
    values = ["id-1", b"\xffuser", "there", "", None, "correlated", Symbol("text/plain"), Symbol(""), 5, 0, "g", 0]
    expected = {name: value for name, value in zip(names, values, strict=False) if value is not None}
    expected["user-id"] = "[-1,117,115,101,114]"
    shown = {
        name: json.dumps(value) if as_json and isinstance(value, str) and name != "user-id" else str(value)
        for name, value in expected.items()
    }
    found = row(ordinary(7, section(0x73, encode(values))), as_json)
    assert found["systemProperties"] == shown


@pytest.mark.parametrize(
    ("sections", "body"),
    [
        (b"", None),
        (section(0x75, b"\x40"), None),
        (section(0x77, b"\x40"), None),
        (section(0x75, text(b"", 0xA0)), b""),
        (section(0x75, b"\x40") + section(0x75, text(b"x", 0xA0)), b"x"),
        (section(0x75, text(b"x", 0xA0)) + section(0x75, text(b"y", 0xA0)), b"xy"),
        (section(0x77, text(b"null")), b"null"),
        (section(0x77, encode("text ü")), "text ü".encode()),
        (section(0x77, encode(b"\xff\x00")), b"\xff\x00"),
        (section(0x77, encode(17)), b"17"),
        (section(0x77, encode(1.5)), b"1.5"),
        (section(0x77, encode(True)), b"true"),
        (section(0x77, encode(ID)), f'"{ID}"'.encode()),
        (section(0x77, encode({Symbol("a"): [1, "b", None]})), b'{"a": [1, "b", null]}'),
        (section(0x77, encode(["a", 2])), b'["a", 2]'),
        (section(0x76, b"\x45"), b"[]"),
        (section(0x76, encode(["a", 2, b"\xff"])), b'["a", 2, [-1]]'),
        (section(0x76, encode(["a"])) + section(0x76, encode([2, {Symbol("k"): "v"}])), b'["a", 2, {"k": "v"}]'),
    ],
)
def test_all_kinds_of_bodies_are_read(sections: bytes, body: bytes | None) -> None:
    assert row(ordinary(7, sections))["body"] == body


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([text(b"1"), text(b"text"), long(1), text(b"number")], {"1": "number"}),
        ([long(1), text(b"number"), text(b"1"), text(b"text")], {"1": "text"}),
        ([text(b"1", 0xA3), text(b"a"), text(b"2"), text(b"b"), text(b"1"), text(b"c")], {"1": "c", "2": "b"}),
        ([text(b"\xff", 0xA0), text(b"a"), text(b"[-1]"), text(b"b")], {"[-1]": "b"}),
    ],
    ids=["a number", "a text", "a symbol", "binary"],
)
def test_last_value_wins_among_keys_with_the_same_text(
    items: list[bytes], expected: dict[str, str], as_json: bool
) -> None:
    found = row(annotated(*items) + section(0x74, compound(0xC1, len(items), b"".join(items))), as_json)
    shown = {key: f'"{value}"' if as_json else value for key, value in expected.items()}
    assert (found["properties"], found["systemProperties"]) == (shown, shown)


def test_events_from_kafka_clients_are_read() -> None:
    """Headers and keys are binary; a tombstone has no body section."""
    key = text(b"x-opt-kafka-key", 0xA3), text(b"k", 0xA0)
    found = row(annotated(*key) + section(0x74, encode({Symbol("header"): b"h"})))
    assert (found["body"], found["properties"]) == (None, {"header": "[104]"})
    assert found["systemProperties"] == {"x-opt-kafka-key": "[107]"}
