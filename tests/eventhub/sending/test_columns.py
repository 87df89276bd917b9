"""Accepted columns of a written frame, and the events made of its rows."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from azure.eventhub import EventData
from azure.eventhub._pyamqp._decode import decode_payload
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from spark_ehbalance.emulator.message import parse_event
from spark_ehbalance.errors import OptionError, UnsendableEventError
from spark_ehbalance.eventhub.rows import record_batch
from spark_ehbalance.eventhub.sending.columns import Events, RowEncoder, SinkColumns, check_topic
from spark_ehbalance.eventhub.wire import encoder
from spark_ehbalance.eventhub.wire.encoder import BATCH_FORMAT, Keyed, transfer_frames, windows
from spark_ehbalance.eventhub.wire.frames import fields_of
from spark_ehbalance.eventhub.wire.messages import parse
from tests.raising import raises

ROOM = 1 << 20


TEXT, BINARY, INT = StringType(), BinaryType(), IntegerType()
HEADERS = ArrayType(StructType([StructField("key", TEXT), StructField("value", BINARY)]))


def schema(**types: DataType) -> StructType:
    return StructType([StructField(name, type) for name, type in types.items()])


JSON = schema(body=TEXT, properties=MapType(TEXT, TEXT))


@pytest.mark.parametrize(
    ("frame", "kafka", "problem"),
    [
        (schema(a=TEXT), False, "'a': events have no such field: columns body, "),
        (
            schema(partitionKey=TEXT),
            False,
            "body: it is required, and missing: columns body",
        ),
        (schema(body=INT), False, "body: its type is int: string or binary"),
        (schema(body=TEXT, BODY=TEXT), False, "body: the frame has two"),
        (
            schema(body=TEXT, partition_key=TEXT),
            False,
            r"'partition_key': .*did you mean partitionKey\?",
        ),
        (
            schema(body=TEXT, partition=TEXT),
            False,
            "'partition': name it partitionId",
        ),
        (schema(value=TEXT), False, "'value': it belongs to Spark's Kafka sink; .*kafkaColumns=true"),
        (schema(body=TEXT), True, "'body': kafkaColumns=true excludes it: columns value, key"),
        (
            schema(body=TEXT, properties=MapType(INT, TEXT)),
            False,
            "properties: its type is map<int",
        ),
        (
            schema(body=TEXT, properties=MapType(TEXT, ArrayType(INT))),
            False,
            "properties: its type is map<str",
        ),
        (
            schema(value=TEXT, headers=ArrayType(TEXT)),
            True,
            "headers: its type is array<string>",
        ),
    ],
)
def test_invalid_columns_are_rejected(frame: StructType, kafka: bool, problem: str) -> None:
    with raises(OptionError, "EHB_COLUMN_INVALID") as caught:
        SinkColumns.from_schema(frame, kafka=kafka)
    parameters = caught.value.parameters
    assert re.search(problem, "{column}: {problem}: {allowed}".format(**parameters))


def test_json_properties_require_a_string_column() -> None:
    with raises(OptionError, "EHB_OPTION_NOT_APPLICABLE", option="jsonProperties=true"):
        SinkColumns.from_schema(schema(body=TEXT), json=True)
    with raises(OptionError, "EHB_COLUMN_INVALID", column="properties", problem=re.compile("jsonProperties=true")):
        SinkColumns.from_schema(schema(body=TEXT, properties=MapType(TEXT, INT)), json=True)


def unsendable(problem: str) -> AbstractContextManager[object]:
    return raises(UnsendableEventError, "EHB_ROW_UNSENDABLE", problem=re.compile(problem))


def made(rows: list[dict[str, Any]], frame: StructType, *, most: int = ROOM, **how: bool) -> Events:
    """The events made of rows for a hub with four partitions."""
    batch = pa.RecordBatch.from_pylist([rows[0], *rows], to_arrow_schema(frame)).slice(1)
    return RowEncoder(SinkColumns.from_schema(frame, **how), lambda _: "0123", lambda _: most).encode(batch)


def skipped(
    rows: list[dict[str, Any]], frame: StructType, *, most: int = ROOM, **how: bool
) -> tuple[Events, RowEncoder]:
    """The events made of rows, skipping rows that cannot be sent."""
    makes = RowEncoder(SinkColumns.from_schema(frame, **how), lambda _: "0123", lambda _: most, "skip")
    return makes.encode(pa.RecordBatch.from_pylist(rows, to_arrow_schema(frame))), makes


def events_of(keyed: Keyed) -> list[bytes]:
    numbers = range(keyed.first, keyed.end)
    return [bytes(keyed.data[keyed.starts[number] : keyed.starts[number + 1]]) for number in numbers]


def bodies(found: Events) -> dict[tuple[str | None, str], list[bytes | None]]:
    """The bodies for each partition and key."""
    by_key: dict[tuple[str | None, str], list[bytes | None]] = {}
    for partition, of_partition in found.items():
        for keyed in of_partition:
            read_events = [read(event) for event in events_of(keyed)]
            ((key,),) = [{key for _, key, _ in read_events}]
            assert (partition, key or "") not in by_key, "a key's events are together"
            by_key[partition, key or ""] = [body for body, _, _ in read_events]
    return by_key


def only(found: Events) -> bytes:
    """The only event; fails if there are several."""
    ((keyed,),) = found.values()
    (event,) = events_of(keyed)
    return event


def read(section: bytes) -> tuple[bytes | None, str | None, dict[str, Any]]:
    """Body, key and properties of an event as read by azure-eventhub."""
    (message,) = decode_payload(memoryview(section)).data
    decoded = decode_payload(memoryview(bytes(message)))
    event = EventData._from_message(decoded)
    body = b"".join(decoded.data) if decoded.data else decoded.value
    key = event.partition_key
    return body, None if key is None else key.decode(), {k.decode(): v for k, v in (event.properties or {}).items()}


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(allow_nan=False), st.text(), st.binary()
)


def binary(values: Sequence[bytes | None]) -> pa.Array:
    return pa.array(values, pa.large_binary())


def encoded(rows: Sequence[tuple[bytes | None, str, Mapping[str, Any]]]) -> pa.Array:
    """The events of rows with a body, a key and properties."""
    pairs = [pair for _, _, properties in rows for pair in properties.items()]
    names = encoder.encode_names(binary([name.encode() for name, _ in pairs]))
    values = binary([encoder.encode_value(value) for _, value in pairs])
    starts = np.cumsum([0, *(len(properties) for _, _, properties in rows)])
    annotations = binary([encoder.encode_annotations(key) for _, key, _ in rows])
    sections = [annotations, *encoder.encode_properties(encoder.joined(names, values), starts)]
    return encoder.joined(*encoder.encode_events(sections, binary([body for body, _, _ in rows])))


@settings(deadline=None)
@given(st.binary(max_size=600), st.text(max_size=100), st.dictionaries(st.text(max_size=300), VALUES, max_size=5))
def test_client_decodes_encoded_events(body: bytes, key: str, properties: Mapping[str, Any]) -> None:
    for event in encoded([(body, key, properties)] * 2).to_pylist():
        got = read(event)
        assert got[:2] == (body, key or None)
        assert got[2] == {name: v.encode() if isinstance(v, str) else v for name, v in properties.items()}


def sized(codes: bytes, raw: bytes) -> bytes:
    short = bytes((codes[0], len(raw) & 0xFF))
    return (short if len(raw) < 256 else codes[1:] + struct.pack(">I", len(raw))) + raw


def one_by_one(body: bytes | None, key: str | None, properties: Mapping[str, Any]) -> bytes:
    """An event encoded on its own."""
    event = b""
    for section, pairs in (
        (b"\x72", [sized(b"\xa3\xb3", b"x-opt-partition-key") + sized(b"\xa1\xb1", key.encode())] if key else []),
        (b"\x74", [sized(b"\xa1\xb1", n.encode()) + encoder.encode_value(v) for n, v in properties.items()]),
    ):
        count, entries = 2 * len(pairs), b"".join(pairs)
        if count > 255 or len(entries) > 254:
            event += b"\x00\x53" + section + struct.pack(">BII", 0xD1, len(entries) + 4, count) + entries
        elif pairs:
            event += b"\x00\x53" + section + bytes((0xC1, len(entries) + 1, count)) + entries
    event += b"\x00\x53\x77\x40" if body is None else b"\x00\x53\x75" + sized(b"\xa0\xb0", body)
    return b"\x00\x53\x75" + sized(b"\xa0\xb0", event)


LONG = st.one_of(st.just(""), st.text(max_size=3), st.integers(85, 260).map(lambda size: "ä" + "x" * size))


ROWS = st.tuples(
    st.none() | st.binary(max_size=3) | st.integers(150, 260).map(bytes),
    st.none() | st.text(max_size=2) | st.just("k" * 128),
    st.none() | st.dictionaries(LONG, st.none() | LONG, max_size=4),
)


@settings(deadline=None)
@given(st.lists(ROWS, min_size=1), st.booleans())
def test_columns_are_encoded_like_single_rows(rows: list[tuple[Any, Any, Any]], kafka: bool) -> None:
    frame = schema(body=BINARY, partitionKey=TEXT, properties=MapType(TEXT, TEXT))
    if kafka:
        frame = schema(value=BINARY, key=TEXT, headers=HEADERS)
    expected, given = dict[str, list[bytes]](), list[dict[str, Any]]()
    for body, key, properties in rows:
        values = {name: v if v is None or not kafka else v.encode() for name, v in (properties or {}).items()}
        expected.setdefault(key or "", []).append(one_by_one(body, key, values))
        headers = [None, *({"key": name, "value": v} for name, v in values.items())]
        pairs = None if properties is None else headers if kafka else [*values.items()]
        given.append(dict(zip(frame.names, (body, key, pairs), strict=True)))
    (found,) = made(given, frame, kafka=kafka).values()
    assert [events_of(keyed) for keyed in found] == [*expected.values()]


def test_many_properties_and_a_tombstone() -> None:
    many = {f"name {number}": number for number in range(300)}
    with_properties, tombstone = encoded([(b"", "", many), (None, "key", {})]).to_pylist()
    assert read(with_properties)[2] == many
    assert read(tombstone)[:2] == (None, "key")
    assert encoder.encode_value(True) != encoder.encode_value(1)


def keyed_events(key: str, bodies: Sequence[bytes]) -> Keyed:
    events = encoded([(body, key, {}) for body in bodies])
    data, starts = memoryview(events.buffers()[2]), encoder.ends(events)
    return Keyed(encoder.encode_annotations(key), data, starts, 0, len(bodies))


@given(st.dictionaries(st.text(max_size=3), st.lists(st.binary(max_size=40), min_size=1)), st.integers(1, 300))
def test_windows_keep_the_order_per_key_and_the_limits(events: dict[str, list[bytes]], most: int) -> None:
    found: dict[str, list[bytes]] = {key: [] for key in events}
    for window in windows([keyed_events(*item) for item in events.items()], most):
        keys = list[str]()
        for batch in window:
            message = decode_payload(memoryview(batch.payload))
            keys.append((message.message_annotations or {}).get(b"x-opt-partition-key", b"").decode())
            assert len(message.data) == batch.events
            assert len(batch.payload) <= most or batch.events == 1
            found[keys[-1]] += [b"".join(decode_payload(memoryview(bytes(event))).data) for event in message.data]
        assert len(set(keys)) == len(keys)
    assert found == events


@pytest.mark.parametrize(("keys", "size", "together"), [(250, 10, [100, 100, 50]), (6, 400_000, [2, 2, 2])])
def test_windows_limit_messages_and_bytes_in_flight(keys: int, size: int, together: list[int]) -> None:
    keyed = [keyed_events(str(key), [bytes(size)]) for key in range(keys)]
    assert [len(window) for window in windows(keyed, 2_000_000)] == together


@given(st.binary(min_size=1, max_size=2000), st.integers(60, 700), st.integers(0, 0xFFFFFFFF))
def test_batch_is_split_into_frames_of_the_peers_size(payload: bytes, largest: int, number: int) -> None:
    got = bytearray()
    frames = list(transfer_frames(3, 2, number, payload, largest))
    for index, frame in enumerate(frames):
        assert len(frame) <= largest
        fields, ends = fields_of(frame, 11)
        assert fields == [2, number, number.to_bytes(4, "big"), BATCH_FORMAT, False, index + 1 < len(frames)]
        got += frame[ends[-1] :]
    assert got == payload


KEYED = schema(body=TEXT, partitionKey=TEXT, partitionId=INT)


@pytest.mark.parametrize(
    ("row", "frame", "problem"),
    [
        ({"body": "a", "partitionKey": "k", "partitionId": 1}, KEYED, "both a partition key and a partition"),
        (
            {"body": "a", "partitionId": 4},
            KEYED,
            "partition '4' does not exist; the hub has 4 partitions, numbered from 0",
        ),
        ({"body": "a", "partitionId": -1}, KEYED, "partition '-1' does not exist"),
        ({"body": "a", "partitionKey": "k" * 129}, KEYED, "its partition key has 129 characters; the maximum is 128"),
        (
            {"body": "x" * 2000},
            schema(body=TEXT),
            "the event has 2,0.. bytes .*; the hub accepts 1,000",
        ),
    ],
)
def test_unsendable_row_is_reported_or_skipped(row: dict[str, Any], frame: StructType, problem: str) -> None:
    with unsendable(f"Row 2 of a task cannot be sent: .*{problem}"):
        made([{"body": "fine"}, row], frame, most=1000)
    found, makes = skipped([{"body": "fine"}, row, row, {"body": "too"}], frame, most=1000)
    assert bodies(found) == {(None, ""): [b"fine", b"too"]}
    assert makes.skipped == 2
    assert re.search(f"Row 2 of a task cannot be sent: .*{problem}", makes.problem)
    batch = pa.RecordBatch.from_pylist([{"body": "fine"}, row], to_arrow_schema(frame))
    (kept,) = RowEncoder(SinkColumns.from_schema(frame), lambda _: "0123", lambda _: 1000).unsendable(batch).to_pylist()
    assert re.search(problem, kept.pop("reason"))
    assert kept == {name: row.get(name) for name in frame.names}


def test_rows_are_grouped_by_partition_and_key() -> None:
    rows = [
        {"body": "a", "partitionKey": "7"},
        {"body": "b", "partitionId": 2},
        {"body": "c"},
        {"body": "d", "partitionKey": ""},
        {"body": "e", "partitionKey": "", "partitionId": 2},
    ]
    found = made(rows, KEYED)
    assert bodies(found) == {(None, "7"): [b"a"], ("2", ""): [b"b", b"e"], (None, ""): [b"c", b"d"]}


@pytest.mark.parametrize("name", ["body", "partitionKey", "properties"])
def test_text_that_is_not_utf8_is_reported_or_skipped(name: str) -> None:
    """Spark's casts from binary create such strings."""
    texts = pa.StringArray.from_buffers(3, pa.array([0, 1, 2, 3], pa.int32()).buffers()[1], pa.py_buffer(b"a\xffb"))
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pa.array(["p"] * 3), texts)
    columns = {"body": pa.array(["x"] * 3), "partitionKey": pa.array(["k"] * 3)}
    columns[name] = maps if name == "properties" else texts
    batch = pa.record_batch(columns)
    places = {"body": 0, "key": 1} | ({"properties": 2} if name == "properties" else {})
    with unsendable("Row 2 of a task cannot be sent: .* not UTF-8"):
        RowEncoder(SinkColumns(**places), lambda _: "0", lambda _: ROOM).encode(batch)
    found = (makes := RowEncoder(SinkColumns(**places), lambda _: "0", lambda _: ROOM, "skip")).encode(batch)
    assert (sum(map(len, bodies(found).values())), makes.skipped) == (2, 1)
    assert RowEncoder(SinkColumns(**places), lambda _: "0", lambda _: ROOM).unsendable(batch).num_rows == 1


def test_key_counts_twice_in_the_size_limit() -> None:
    """The key also precedes the events in a batch, for the hub."""
    row = {"body": "x" * 700, "partitionKey": "k" * 128}
    (keyed,) = made([row], KEYED)[None]
    size = len(keyed.envelope) + len(only(made([row], KEYED)))
    ((batch,),) = windows([keyed], size)
    assert len(batch.payload) == size
    made([row], KEYED, most=size)
    with unsendable("the event with key 'k+' has .* bytes"):
        made([row], KEYED, most=size - 1)


def test_columns_of_kafkas_sink() -> None:
    row = {"value": b"v", "key": b"k", "headers": [{"key": "h", "value": b"1"}], "topic": "elsewhere"}
    frame = schema(value=BINARY, key=BINARY, headers=HEADERS, topic=TEXT)
    assert read(only(made([row], frame, kafka=True))) == (b"v", "k", {"h": b"1"})
    batch = pa.RecordBatch.from_pylist([row], to_arrow_schema(frame))
    check_topic(batch, SinkColumns.from_schema(frame, kafka=True), "Elsewhere")
    with unsendable("The topic of a row is 'elsewhere', and eventHubName is hub"):
        check_topic(batch, SinkColumns.from_schema(frame, kafka=True), "hub")
    with unsendable("its partition key is not UTF-8"):
        made([row | {"key": b"\xff"}], frame, kafka=True)
    one, other, none = ({"key": key, "value": b"1"} for key in ("h", "i", None))
    for headers, problem in (([one, other, one], "it has several values of 'h'"), ([none], "a header has no key")):
        with unsendable(f"Row 1 of a task cannot be sent: {problem}"):
            made([row | {"headers": headers}], frame, kafka=True)
        found, makes = skipped([row | {"headers": headers}, row], frame, kafka=True)
        assert (read(only(found))[2], makes.skipped) == ({"h": b"1"}, 1)


@pytest.mark.parametrize("number", ["0", "7", "-128", "200", "300", "40000", "-2000000000", "4000000000", "0.5", "1.5"])
def test_numbers_shrink_to_fit_the_size_limit(number: str) -> None:
    """Types are unknown; with 8 bytes per number, 4,000 one-byte numbers would grow by 32 kB."""
    value = float(number) if "." in number else int(number)
    least = {-128: 2, 0: 1, 7: 2, 200: 2, 300: 3, 40_000: 3}.get(int(value) if value == int(value) else 1, 5)
    frame = schema(body=BINARY, properties=MapType(TEXT, TEXT))
    properties = [(f"p{index:04}", number) for index in range(4000)]
    rest = len(only(made([{"body": b"", "properties": [(name, '""') for name, _ in properties]}], frame, json=True)))
    size = rest + 4000 * (least - 2) + 3
    event = only(made([{"body": b"body", "properties": properties}], frame, json=True, most=size + 4))
    assert read(event) == (b"body", None, dict.fromkeys((name for name, _ in properties), value))
    with unsendable("; the hub accepts"):
        made([{"body": b"body" + bytes(10), "properties": properties}], frame, json=True, most=size)


def test_numbers_have_one_type_within_the_size_limit() -> None:
    """A receiver that expects a long gets a long, whatever its value."""
    assert [encoder.encode_value(value)[:1] for value in (7, -128, 128, 1 << 40)] == [
        b"\x55",
        b"\x55",
        b"\x81",
        b"\x81",
    ]


STANDARD = {
    "message-id": '"m-7"', "user-id": "[117,-1]", "to": '"to"', "subject": '"subject"', "reply-to": '"reply"',
    "correlation-id": "300", "content-type": '"application/json"', "content-encoding": '"gzip"',
    "absolute-expiry-time": "1700000000001", "creation-time": "1700000000000", "group-id": '"group"',
    "group-sequence": "5", "reply-to-group-id": '"other"',
}  # fmt: skip
ANNOTATIONS = {"x-opt-kafka-key": "[107,-1]", "iothub-connection-device-id": '"device"', "x-number": "5"}
BESIDE = schema(body=BINARY, partitionKey=TEXT, properties=MapType(TEXT, TEXT), systemProperties=MapType(TEXT, TEXT))


def parsed(event: bytes) -> dict[str, str]:
    """The system properties that the source reads, with their JSON values parsed."""
    (message,) = decode_payload(memoryview(event)).data
    event_read = parse(parse_event(bytes(message)).render(-1, 7, "0", 1))
    (row,) = record_batch([event_read], "0", json_properties=True).to_pylist()
    return dict(row["systemProperties"])


@pytest.mark.parametrize("given", [STANDARD, {"content-type": '"text/plain"'}, {"x-opt-kafka-key": "[1]"}, {}])
def test_message_properties_round_trip(given: dict[str, str]) -> None:
    own = {"x-opt-sequence-number-epoch": "3", "x-opt-publisher": '"p"', "to": "null"}
    row = {"body": b"body", "partitionKey": "k", "properties": [("p", "1")]}
    event = only(made([row | {"systemProperties": [*(own | given).items()]}], BESIDE, json=True))
    assert read(event) == (b"body", "k", {"p": 1})
    (message,) = decode_payload(memoryview(event)).data
    assert dict(EventData._from_message(decode_payload(memoryview(bytes(message)))).system_properties).keys() == {
        *map(str.encode, given), b"x-opt-partition-key"
    }  # fmt: skip
    assert parsed(event) == given


def test_invalid_system_property_is_named() -> None:
    for wrong in (
        {"content-type": "5"},
        {"creation-time": '"now"'},
        {"group-sequence": "-1"},
        {"message-id": "0.5"},
        {"message-id": "true"},
    ):
        with unsendable(f"the type of its {next(iter(wrong))} is not allowed by AMQP"):
            made([{"body": b"b", "systemProperties": [*wrong.items()]}], BESIDE, json=True)
    with raises(
        OptionError, "EHB_OPTION_REQUIRED", option="jsonProperties=true", reason=re.compile("systemProperties")
    ):
        SinkColumns.from_schema(BESIDE)


def test_repeated_header_among_many_is_named() -> None:
    """In quadratic time, 80,000 headers took a minute."""
    headers = [{"key": f"header {number}", "value": b""} for number in range(80_000)]
    frame = schema(value=BINARY, headers=HEADERS)
    with unsendable("it has several values of 'header 79998'"):
        made([{"value": b"v", "headers": [*headers, headers[-2]]}], frame, kafka=True)


DEEP = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"a"', b"a"),
        ("true", True),
        ("null", None),
        ("[1,-1]", b"\x01\xff"),
        *((number, json.loads(number)) for number in ("5", "0.5", "0", "-0", "-0.0", "0e5", "0.00E-7", "1e-300")),
        *((number, json.loads(number)) for number in (str((1 << 64) - 1), str(-(1 << 63)), "5e-324")),
        *((other, other.encode()) for other in ('{"a":1}', "[true, false]", "[1, -1]", "[128]", '{"a"', DEEP)),
    ],
    ids=lambda value: str(value)[:20],
)
def test_json_properties_restore_types(text: str, value: Any) -> None:
    event = only(made([{"body": "a", "properties": [("p", text)]}], JSON, json=True))
    assert read(event) == (b"a", None, {"p": value})


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ([("p", "1"), ("p", "2")], "it has several values of 'p'"),
        ([("p", "tru")], "is not JSON, as jsonProperties=true requires"),
        *(
            ([("p", number)], "more than 64 bits")
            for number in (str(1 << 64), str(-(1 << 63) - 1), "1e400", "-1E400", "9" * 5000, "1e-400", f"-0.{0:0400}1")
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_invalid_json_properties_are_named(properties: list[tuple[str, str]], problem: str) -> None:
    with unsendable(problem):
        made([{"body": "a", "properties": properties}], JSON, json=True)


@pytest.fixture(autouse=True)
def _no_warnings(recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    yield
    assert not [
        warning for warning in recwarn.list if warning.category is not ResourceWarning
    ]  # unclosed sockets of other tests
