"""Decoding AMQP: same results as the client's own decoder in any encoding, and one clear error for invalid bytes."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import tracemalloc
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.eventhub.rows import OFFSET, SEQUENCE_NUMBER, Event, UnreadableError, record_batch
from spark_ehbalance.eventhub.wire.messages import parse
from spark_ehbalance.eventhub.wire.values import ArrayBudget, decode
from tests.eventhub.client_decoder import decoded_by_client
from tests.eventhub.encodings import (
    SERVICE_ITEMS,
    VALUES,
    compound,
    contradictions,
    long,
    messages,
    ordinary,
    section,
    service_annotations,
    text,
    timestamp,
)

ANNOTATIONS = section(0x72, compound(0xC1, SERVICE_ITEMS, service_annotations(7)))


def rows(*events: Event, json_properties: bool = False) -> list[dict[str, Any]]:
    return record_batch(events, "0", json_properties=json_properties).to_pylist()


@settings(deadline=None, max_examples=200)
@given(st.one_of(messages(), contradictions()), st.booleans())
def test_messages_are_decoded_like_the_client_does(message: bytes, json_properties: bool) -> None:
    expected = rows(decoded_by_client(message), json_properties=json_properties)
    assert rows(parse(message), json_properties=json_properties) == expected


@given(VALUES)
def test_end_of_a_value_is_found(value: bytes) -> None:
    assert decode(value + b"\x41", 0, ArrayBudget(100))[1] == len(value)


def with_property(value: bytes) -> bytes:
    return ANNOTATIONS + section(0x74, compound(0xC1, 2, text(b"p") + value, True)) + section(0x75, text(b"x", 0xA0))


def map_of(keys: list[bytes]) -> bytes:
    return compound(0xC1, 2 * len(keys), b"".join(key + b"\x40" for key in keys), True)


#: Values that claim to be larger than they are, values that are nested too deeply, and invalid ones.
HOSTILE = {
    "nothings": b"\xf0" + struct.pack(">II", 5, 2**32 - 1) + b"\x40",
    "too many": b"\xf0" + struct.pack(">II", 5, 1500) + b"\x40",
    "longs": b"\xf0" + struct.pack(">II", 13, 2**32 - 1) + b"\x81" + bytes(8),
    "list": b"\xd0" + struct.pack(">II", 5, 2**32 - 1) + b"\x40",
    "map": b"\xd1" + struct.pack(">II", 6, 2**32 - 2) + b"\x41\x41",
    "described": b"\x00" * 60_000 + b"\x41",
    "nested lists": b"\xc0\x02\x01" * 5000,
    "arrays that lie": compound(0xE0, 6000, b"\xf0" + b"\x00\x00\xff\xff\x00\x00\x00\xff\x40" * 6000),
    "array of arrays": compound(0xE0, 60_000, b"\xe0" + b"\xff" * 60_000, True),
    "list as key": compound(0xC1, 2, b"\x45\x41"),
    "list as one of many keys": map_of([*(text(b"key %d" % number) for number in range(300)), b"\x45"]),
    "type": b"\xff",
    "cut": b"\x98" + bytes(3),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_invalid_values_are_one_error_without_allocating(what: str) -> None:
    message = with_property(HOSTILE[what])
    rows(parse(with_property(b"\x45")))  # warm up imports and caches
    tracemalloc.start()
    with pytest.raises(UnreadableError, match=r"^it is not valid AMQP: .+$") as caught:
        parse(message)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * len(message) + 100_000
    assert caught.value.known[SEQUENCE_NUMBER] == 7


@pytest.mark.parametrize(
    "value",
    [compound(0xC0, 60_000, b"\x45" * 60_000), compound(0xE0, 60_000, b"\xa0" + bytes(60_000))],
    ids=["empty lists", "empty binary"],
)
def test_many_small_values_cost_proportional_memory(value: bytes) -> None:
    message = with_property(value)
    tracemalloc.start()
    with contextlib.suppress(UnreadableError):
        rows(parse(message))
    assert tracemalloc.get_traced_memory()[1] < 100 * len(message)
    tracemalloc.stop()


NUMBER = text(b"x-opt-sequence-number", 0xA3)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "."),
        (section(0x75, text(b"x", 0xA0)), "."),
        (b"\x41" + ANNOTATIONS, "."),
        (ANNOTATIONS + section(0x75, compound(0xC0, 1, b"\x41")), "."),
        (section(0x72, compound(0xC1, 2, NUMBER + text(b"7"))), "."),
        (ordinary(7, encoded=b"\x80" + b"\xff" * 8), "^its sequence number does not fit the column$"),
        (ordinary(7, encoded=b"\x41"), "^its sequence number does not fit the column$"),
        (ordinary(7).replace(timestamp(1_700_000_000_007), timestamp(2**62)), "^its time does not fit the column$"),
        (ordinary(7).replace(timestamp(1_700_000_000_007), text(b"late")), "^its time does not fit the column$"),
    ],
)
def test_invalid_events_are_one_error(message: bytes, reason: str) -> None:
    with pytest.raises(UnreadableError, match=reason):
        parse(message)


@pytest.mark.parametrize(
    ("poison", "known"),
    [
        (b"\xff", (None, None)),
        (b"\xc0\x02\x01" * 3000, (None, None)),
        (b"\xa5\x01x", (7, b"7000")),
        (compound(0xC1, 2, b"\x45\x41"), (7, b"7000")),
        (compound(0xE0, 3, b"\x41"), (7, b"7000")),
    ],
)
def test_annotations_are_found_after_an_unreadable_value(poison: bytes, known: tuple[int | None, bytes | None]) -> None:
    pairs = compound(0xC1, SERVICE_ITEMS + 2, text(b"bad", 0xA3) + poison + service_annotations(7))
    with pytest.raises(UnreadableError) as caught:
        parse(section(0x72, pairs) + section(0x75, b"\xff"))
    assert (caught.value.known.get(SEQUENCE_NUMBER), caught.value.known.get(OFFSET)) == known


@pytest.mark.parametrize(
    ("name", "code", "value"),
    [
        (b"amqp:data:binary", 0x75, text(b"x", 0xA0)),
        (b"amqp:amqp-sequence:list", 0x76, compound(0xC0, 1, b"\x41")),
        (b"amqp:amqp-value:*", 0x77, text(b"x")),
    ],
)
def test_sections_can_have_symbolic_descriptors(name: bytes, code: int, value: bytes) -> None:
    def named(name: bytes, value: bytes) -> bytes:
        return b"\x00" + text(name, 0xA3) + value

    properties, application = compound(0xC0, 1, text(b"id")), compound(0xC1, 2, text(b"a") + text(b"b"))
    symbolic = named(b"amqp:header:list", compound(0xC0, 1, b"\x41"))
    symbolic += named(b"amqp:message-annotations:map", compound(0xC1, SERVICE_ITEMS, service_annotations(7)))
    symbolic += named(b"amqp:properties:list", properties) + named(b"amqp:application-properties:map", application)
    numbered = ANNOTATIONS + section(0x73, properties) + section(0x74, application) + section(code, value)
    assert rows(parse(symbolic + named(name, value))) == rows(parse(numbered))


#: Types that the client does not decode.
@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        (b"\x74\x32\x80\x00\x01", Decimal(1)),
        (b"\x74\x6c\xb8\x96\x7f", Decimal(9999999)),  # its significand needs bits that are not encoded
        (b"\x74\x78\x00\x00\x00", Decimal("Infinity")),
        (b"\x74\xf8\x00\x00\x00", Decimal("-Infinity")),
        (b"\x84\xb1\xa0\x00\x00\x00\x00\x00\x0f", Decimal("-1.5")),
        (b"\x94\x30\x3a" + bytes(12) + b"\x30\x39", Decimal("12.345")),
        (b"\x73" + "ü".encode("utf-32-be"), "ü".encode()),
        (b"\x98" + bytes(range(16)), uuid.UUID(bytes=bytes(range(16)))),
    ],
)
def test_decimals_chars_and_uuids_are_decoded(encoded: bytes, value: object) -> None:
    assert decode(encoded, 0) == (value, len(encoded))
    assert parse(with_property(encoded))[2] == {b"p": value}
    assert decode(b"\x74\x7c\x00\x00\x00", 0)[0].is_nan()


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (b"datetime-offset", long(639_054_576_001_234_500), "2026-01-31T12:00:00.12345Z"),
        (b"datetime-offset", long(0), "0001-01-01T00:00:00Z"),
        (b"datetime-offset", long(3_155_378_975_999_999_999), "9999-12-31T23:59:59.9999999Z"),
        (b"datetime-offset", long(3_155_378_976_000_000_000), "3155378976000000000"),
        (b"datetime-offset", long(-1), "-1"),
        (b"timespan", long(0), "PT0S"),
        (b"timespan", long(37_230_000_000), "PT1H2M3S"),
        (b"timespan", long(-5), "-PT0.0000005S"),
        (b"timespan", long(-(1 << 63)), "-P10675199DT2H48M5.4775808S"),
        (b"timespan", b"\x55\x05", "PT0.0000005S"),
        (b"timespan", long(864_000_000_000), "P1D"),
        (b"timespan", text(b"soon"), "soon"),
        (b"uri", text(b"https://host/a b"), "https://host/a b"),
    ],
)
def test_dotnet_types_are_readable(kind: bytes, value: bytes, shown: str) -> None:
    event = parse(with_property(b"\x00" + text(b"com.microsoft:" + kind, 0xA3) + value))
    (row,) = record_batch([event], "0", json_properties=False).to_pylist()
    assert dict(row["properties"]) == {"p": shown}


#: Kinds of keys for which a sender can choose many with the same hash.
KEYS: dict[str, Callable[[int], bytes]] = {
    "numbers": lambda number: long(number << 40),
    "times": lambda number: timestamp(number << 40),
    "floats": lambda number: b"\x82" + struct.pack(">d", number),
    "UUIDs": lambda number: b"\x98" + number.to_bytes(16, "big"),
    "described": lambda number: b"\x00\x53\x99" + long(number << 40),
    "text by turns": lambda number: text(b"%d" % number) if number % 2 else long(number),
}


@pytest.mark.parametrize("kind", KEYS)
def test_map_can_have_any_number_of_keys(kind: str) -> None:
    keys = map_of([KEYS[kind](number) for number in range(5000)])
    assert len(decode(keys, 0)[0]) == len(decode(b"\x00\x53\x99" + keys, 0)[0]) == 5000
    assert len(decode(compound(0xC0, 1, keys, True), 0)[0][0]) == 5000


def test_colliding_keys_do_not_slow_down_decoding() -> None:
    """If hashes are equal in all processes, as in Spark's workers, 82,000 keys took 5.5 s, and so did small maps with
    keys that are slow to compare."""
    program = (
        "from tests.eventhub.test_wire_messages import *\n"
        "texts = [text(b'key %d' % number) for number in range(65)]\n"
        "for keys in texts, [KEYS['UUIDs'](number) for number in range(3)]:\n"
        "    print(*map(hash, decode(map_of(keys), 0)[0]))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    one, other = (
        subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True, text=True)
        for _ in range(2)
    )
    assert len(one.stdout.split()) == len(other.stdout.split()) == 68
    assert not set(one.stdout.split()) & set(other.stdout.split())


def test_last_of_many_equal_properties_wins() -> None:
    names = [b"p%d" % number for number in range(5000)]
    pairs = b"".join(text(name) + text(b"first") for name in names)
    pairs += text(names[7], 0xA0) + text(b"last") + long(5) + text(b"of a number") + text(b"5") + text(b"of a text")
    annotations = service_annotations(7) + b"".join(text(name, 0xA3) + b"\x40" for name in names)
    annotations = section(0x72, compound(0xC1, 10_000 + SERVICE_ITEMS, annotations))
    (row,) = rows(parse(annotations + section(0x73, b"\x45") + section(0x74, compound(0xC1, 10_006, pairs))))
    assert len(row["properties"]) == 5001
    assert dict(row["properties"]) == {**{n.decode(): "first" for n in names}, "p7": "last", "5": "of a text"}
    assert row["sequenceNumber"] == 7
    assert dict(row["systemProperties"]) == dict.fromkeys(map(bytes.decode, names), "null")


def test_nested_large_map_has_unique_keys() -> None:
    keys = b"".join(text(b"k%d" % number) + long(number) for number in range(300)) + text(b"k0") + long(7)
    body = parse(ANNOTATIONS + section(0x77, compound(0xC1, 602, keys)))[0]
    assert json.loads(body or b"") == {f"k{number}": number or 7 for number in range(300)}
