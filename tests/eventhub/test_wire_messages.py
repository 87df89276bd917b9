"""AMQP from bytes: the same as by the client's own decoder, in any encoding; one clear error for invalid bytes."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tracemalloc
import uuid
from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.eventhub.rows import OFFSET, SEQUENCE_NUMBER, Event, UnreadableError, record_batch
from spark_ehbalance.eventhub.wire.decoder import Decoder
from spark_ehbalance.eventhub.wire.messages import parse
from spark_ehbalance.eventhub.wire.values import ArrayBudget, decode
from tests.eventhub.client_decoder import PROPERTIES, decoded_by_client
from tests.eventhub.encodings import (
    SERVICE_ITEMS,
    VALUES,
    compound,
    contradictions,
    in_buffer,
    long,
    messages,
    section,
    service_annotations,
    text,
    timestamp,
)

ANNOTATIONS = section(0x72, compound(0xC1, SERVICE_ITEMS, service_annotations(7)))


def rows(*events: Event, json_properties: bool = False) -> object:
    return record_batch(events, "0", json_properties=json_properties).to_pylist()


@settings(deadline=None)
@given(messages(), st.booleans())
def test_a_message_is_read_as_by_the_client(message: bytes, json_properties: bool) -> None:
    expected = rows(decoded_by_client(message), json_properties=json_properties)
    assert rows(parse(message), json_properties=json_properties) == expected


#: Values that are present although Python takes them for false, and as what they are shown.
ZEROS = [
    (b"\x44", "0"),
    (b"\x53\x00", "0"),
    (long(0), "0"),
    (timestamp(0), "0"),
    (b"\x42", "false"),
    (b"\x82" + bytes(8), "0.0"),
    (text(b""), ""),
    (text(b"", 0xA0), "[]"),
    (b"\x45", "[]"),
]


@pytest.mark.parametrize("batch", [1, 300])
@pytest.mark.parametrize(("value", "shown"), ZEROS)
def test_message_properties_that_are_zero_or_empty_are_present(value: bytes, shown: str, batch: int) -> None:
    names = [name for name, _ in PROPERTIES]
    fields = section(0x73, compound(0xC0, 13, value * len(names)))
    sent = ANNOTATIONS + fields + section(0x75, text(b"x", 0xA0))
    made = Decoder("0", False).record_batch(in_buffer([sent] * batch)).batch
    assert dict(made["systemProperties"][0].as_py()) == {name.decode(): shown for name in names}
    if value != text(b"", 0xA0):  # the client does not tell binary from text
        assert made.to_pylist()[:1] == rows(decoded_by_client(sent))


@given(VALUES)
def test_the_end_of_a_value_is_found(value: bytes) -> None:
    assert decode(value + b"\x41", 0, ArrayBudget(100))[1] == len(value)


@settings(deadline=None)
@given(messages(), st.data())
def test_a_message_cut_off_or_changed_is_an_event_or_one_clear_error(message: bytes, data: st.DataObject) -> None:
    changed = bytearray(message[: data.draw(st.integers(0, len(message)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if changed:
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        event = parse(bytes(changed))
    except UnreadableError:
        return
    assert rows(event)


def with_property(value: bytes) -> bytes:
    return ANNOTATIONS + section(0x74, compound(0xC1, 2, text(b"p") + value, True)) + section(0x75, text(b"x", 0xA0))


@pytest.mark.parametrize(
    "value",
    [
        b"\xf0" + struct.pack(">II", 5, 2**32 - 1) + b"\x40",
        b"\xf0" + struct.pack(">II", 5, 1500) + b"\x40",
        b"\xf0" + struct.pack(">II", 13, 2**32 - 1) + b"\x81" + bytes(8),
        b"\xd0" + struct.pack(">II", 5, 2**32 - 1) + b"\x40",
        b"\xd1" + struct.pack(">II", 6, 2**32 - 2) + b"\x41\x41",
        b"\x00" * 5000 + b"\x41",
        b"\xc0\x02\x01" * 5000,
        compound(0xC1, 2, b"\x45\x41"),
        b"\xff",
        b"\x98" + bytes(3),
    ],
    ids=["nothings", "too many", "longs", "list", "map", "described", "lists", "list as key", "type", "cut"],
)
def test_an_impossible_value_is_one_clear_error(value: bytes) -> None:
    with pytest.raises(UnreadableError, match=r"^it is no sound AMQP message: .+$") as caught:
        parse(with_property(value))
    assert caught.value.known[SEQUENCE_NUMBER] == 7


#: Bytes that are repeated up to 60 KB, and what they are repeated in.
HOSTILE = {
    "empty lists": (b"\x45", lambda body, count: compound(0xC0, count, body, True)),
    "arrays that lie": (
        b"\x00\x00\xff\xff\x00\x00\x00\xff\x40",
        lambda body, count: compound(0xE0, count, b"\xf0" + body),
    ),
    "array of arrays": (b"\xff\xff", lambda body, count: compound(0xE0, 60_000, b"\xe0" + body, True)),
    "descriptors": (b"\x00", lambda body, count: body),
    "empty binary": (b"\x00", lambda body, count: compound(0xE0, count, b"\xa0" + body, True)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_memory_is_bounded_by_the_bytes_of_a_message_whatever_it_claims(what: str) -> None:
    unit, made = HOSTILE[what]
    message = with_property(made(unit * (60_000 // len(unit)), 60_000 // len(unit)))
    rows(parse(with_property(b"\x45")))  # for what is imported or created once
    tracemalloc.start()
    try:
        kept = record_batch([parse(message)], "0", json_properties=False)
    except UnreadableError:
        kept = None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * len(message)
    assert kept is None or kept.num_rows == 1


@pytest.mark.parametrize(
    "message",
    [
        b"",
        section(0x75, text(b"x", 0xA0)),
        b"\x41" + ANNOTATIONS,
        ANNOTATIONS + section(0x75, compound(0xC0, 1, b"\x41")),
        section(0x72, compound(0xC1, 2, text(b"x-opt-sequence-number") + text(b"7"))),
    ],
    ids=["nothing", "no annotations", "no descriptor", "data that is a list", "sequence number that is a text"],
)
def test_a_message_that_is_not_an_event_is_one_clear_error(message: bytes) -> None:
    with pytest.raises(UnreadableError):
        parse(message)


@pytest.mark.parametrize("poison", [b"\xff", b"\xa5\x01x", b"\xc0\x02\x01" * 3000, compound(0xC1, 2, b"\x45\x41")])
def test_the_annotations_are_found_behind_an_unreadable_value_of_known_size(poison: bytes) -> None:
    pairs = compound(0xC1, SERVICE_ITEMS + 2, text(b"bad", 0xA3) + poison + service_annotations(7))
    with pytest.raises(UnreadableError) as caught:
        parse(section(0x72, pairs) + section(0x75, text(b"x", 0xA0)))
    known = caught.value.known
    assert (known.get(SEQUENCE_NUMBER), known.get(OFFSET)) == (
        (7, b"7000") if poison[:1] in (b"\xa5", b"\xc1") else (None, None)
    )


def test_sections_may_have_symbolic_descriptors() -> None:
    def named(name: bytes, value: bytes) -> bytes:
        return b"\x00" + text(name, 0xA3) + value

    numbered = section(0x73, compound(0xC0, 1, text(b"id"))) + section(0x74, compound(0xC1, 2, text(b"a") + text(b"b")))
    symbolic = named(b"amqp:properties:list", compound(0xC0, 1, text(b"id")))
    symbolic += named(b"amqp:application-properties:map", compound(0xC1, 2, text(b"a") + text(b"b")))
    head = named(b"amqp:header:list", compound(0xC0, 1, b"\x41"))
    annotations = named(b"amqp:message-annotations:map", compound(0xC1, SERVICE_ITEMS, service_annotations(7)))
    for name, code, value in (
        (b"amqp:data:binary", 0x75, text(b"x", 0xA0)),
        (b"amqp:amqp-sequence:list", 0x76, compound(0xC0, 1, b"\x41")),
        (b"amqp:amqp-value:*", 0x77, text(b"x")),
    ):
        expected = rows(parse(ANNOTATIONS + numbered + section(code, value)))
        assert rows(parse(head + annotations + symbolic + named(name, value))) == expected


@settings(deadline=None)
@given(contradictions(), st.booleans())
def test_contradictions_are_read_as_by_the_client(message: bytes, json_properties: bool) -> None:
    expected = rows(decoded_by_client(message), json_properties=json_properties)
    assert rows(parse(message), json_properties=json_properties) == expected


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        (b"\x74\x32\x80\x00\x01", Decimal(1)),
        (b"\x74\x6c\xb8\x96\x7f", Decimal(9999999)),  # its significand needs the bits that are not encoded
        (b"\x74\x78\x00\x00\x00", Decimal("Infinity")),
        (b"\x74\xf8\x00\x00\x00", Decimal("-Infinity")),
        (b"\x84\xb1\xa0\x00\x00\x00\x00\x00\x0f", Decimal("-1.5")),
        (b"\x94\x30\x3a" + bytes(12) + b"\x30\x39", Decimal("12.345")),
    ],
)
def test_decimals(encoded: bytes, value: Decimal) -> None:
    assert decode(encoded, 0) == (value, len(encoded))
    assert parse(with_property(encoded))[2] == {b"p": value}
    assert decode(b"\x74\x7c\x00\x00\x00", 0)[0].is_nan()


def test_the_annotations_are_found_beside_an_array_of_elements_without_bytes() -> None:
    pairs = service_annotations(7) + text(b"x-opt-publisher", 0xA3) + compound(0xE0, 3, b"\x41")
    with pytest.raises(UnreadableError) as caught:
        parse(section(0x72, compound(0xC1, SERVICE_ITEMS + 2, pairs)) + section(0x75, b"\xff"))
    assert caught.value.known[SEQUENCE_NUMBER] == 7


def test_a_char_and_a_uuid() -> None:
    assert decode(b"\x73" + "ü".encode("utf-32-be"), 0)[0].decode() == "ü"
    one = uuid.uuid4()
    assert decode(b"\x98" + one.bytes, 0)[0] == one


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
def test_types_of_dotnet_are_readable(kind: bytes, value: bytes, shown: str) -> None:
    event = parse(with_property(b"\x00" + text(b"com.microsoft:" + kind, 0xA3) + value))
    (row,) = record_batch([event], "0", json_properties=False).to_pylist()
    assert dict(row["properties"]) == {"p": shown}


#: Keys of which a sender can choose many with the same hash.
KEYS: dict[str, Callable[[int], bytes]] = {
    "numbers": lambda number: long(number << 40),
    "times": lambda number: timestamp(number << 40),
    "floats": lambda number: b"\x82" + struct.pack(">d", number),
    "UUIDs": lambda number: b"\x98" + number.to_bytes(16, "big"),
    "described": lambda number: b"\x00\x53\x99" + long(number << 40),
    "text by turns": lambda number: text(b"%d" % number) if number % 2 else long(number),
}


def map_of(keys: list[bytes]) -> bytes:
    return compound(0xC1, 2 * len(keys), b"".join(key + b"\x40" for key in keys), True)


@pytest.mark.parametrize("kind", KEYS)
def test_a_map_may_have_any_number_of_keys(kind: str) -> None:
    keys = [KEYS[kind](number) for number in range(5000)]
    for within in (map_of(keys), compound(0xC0, 1, map_of(keys), True), b"\x00\x53\x99" + map_of(keys)):
        found = decode(within, 0)[0]
        assert len(found[0] if isinstance(found, list) else found) == 5000


def test_no_sender_can_choose_keys_of_a_large_map_that_collide() -> None:
    """With hashes that are the same in all processes, as in Spark's workers, 82,000 keys took 5.5 s."""
    program = (
        "from tests.eventhub.test_wire_messages import *\n"
        "print(*map(hash, decode(map_of([text(b'key %d' % number) for number in range(65)]), 0)[0]))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    one, other = (
        subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True, text=True)
        for _ in range(2)
    )
    assert len(one.stdout.split()) == len(other.stdout.split()) == 65
    assert not set(one.stdout.split()) & set(other.stdout.split())


def test_an_event_with_many_properties_has_all_of_them_the_last_of_a_name() -> None:
    names = [b"p%d" % number for number in range(5000)]
    pairs = b"".join(text(name) + text(b"first") for name in names)
    pairs += text(names[7], 0xA0) + text(b"last") + long(5) + text(b"of a number") + text(b"5") + text(b"of a text")
    application = section(0x74, compound(0xC1, 10_006, pairs))
    annotations = service_annotations(7) + b"".join(text(name, 0xA3) + b"\x40" for name in names)
    annotations = section(0x72, compound(0xC1, 10_000 + SERVICE_ITEMS, annotations))
    event = parse(annotations + section(0x73, b"\x45") + application)
    (row,) = record_batch([event], "0", json_properties=False).to_pylist()
    expected = {name.decode(): "first" for name in names} | {"p7": "last", "5": "of a text"}
    assert dict(row["properties"]) == expected
    assert len(row["properties"]) == 5001
    assert row["sequenceNumber"] == 7
    assert dict(row["systemProperties"]) == dict.fromkeys(map(bytes.decode, names), "null")


def test_a_large_map_within_a_value_has_one_value_of_each_name() -> None:
    keys = b"".join(text(b"k%d" % number) + long(number) for number in range(300)) + text(b"k0") + long(7)
    body = parse(ANNOTATIONS + section(0x77, compound(0xC1, 602, keys)))[0]
    assert body is not None
    assert json.loads(body) == {f"k{number}": number or 7 for number in range(300)}


@pytest.mark.parametrize("keys", [3, 300])
def test_a_map_with_a_list_as_a_key_is_one_clear_error(keys: int) -> None:
    names = [text(b"key %d" % number) for number in range(keys)]
    with pytest.raises(
        UnreadableError, match="it is no sound AMQP message: a map has a list or a map as a key"
    ) as caught:
        parse(ANNOTATIONS + section(0x77, map_of([*names, b"\x45"])))
    assert caught.value.known[SEQUENCE_NUMBER] == 7
