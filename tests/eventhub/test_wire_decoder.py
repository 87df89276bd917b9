"""Decoding many messages at a time: every tier produces the same rows as the slow path.

`test_wire_messages.py` compares the slow path with azure-eventhub's own decoder.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_ehbalance.eventhub.rows import COLUMNS, Rows, schema_of
from spark_ehbalance.eventhub.wire import decoder as decoder_module
from spark_ehbalance.eventhub.wire import scan
from spark_ehbalance.eventhub.wire.decoder import Decoder
from tests.eventhub.encodings import (
    EPOCHS,
    SERVICE_ITEMS,
    TEXTS,
    VALUES,
    compound,
    contradictions,
    in_buffer,
    long,
    maps,
    messages,
    ordinary,
    section,
    service_annotations,
    shortest,
    text,
    timestamp,
)

NEVER = 10**6

#: Decodes messages with and without properties in each tier, and prints the imported modules.
_DECODING = """
import sys
from spark_ehbalance.eventhub.wire.decoder import Decoder
from tests.eventhub.encodings import compound, in_buffer, ordinary, section, text
def with_property(n):
    pair = text(b"name") + text(b"value %d" % n)
    return ordinary(n, section(0x74, compound(0xC1, 2, pair)) + section(0x75, text(b"body", 0xA0)))
for few, many in ((1, 1), (10**6, 1), (10**6, 10**6)):
    for message in ordinary, with_property:
        sent = [message(n) for n in range(20)]
        assert Decoder("0", False, few=few, many=many).record_batch(in_buffer(sent)).batch.num_rows == len(sent)
print(*sys.modules)
"""

#: Decoders for partition 0 whose fast tiers are used where that pays off, or always.
DECODERS = {
    "where it pays": partial(Decoder, "0"),
    "everywhere": partial(Decoder, "0", few=1, many=1),
    "any shape": partial(Decoder, "0", few=NEVER, many=1),
}


@pytest.fixture(scope="module", params=DECODERS)
def make(request: pytest.FixtureRequest) -> partial[Decoder]:
    """Creates a decoder."""
    return DECODERS[request.param]


def one_at_a_time(sent: list[bytes], json_properties: bool = False) -> Rows:
    """The rows that the slow path produces."""
    return Decoder("0", json_properties, few=NEVER, many=NEVER).record_batch(in_buffer(sent))


@st.composite
def shapes(draw: st.DrawFn) -> list[bytes]:
    """Up to 40 messages of one shape: the service's values differ between messages, and the sender's can differ."""
    names = [b"x-opt-sequence-number", b"x-opt-offset", b"x-opt-enqueued-time"]
    optional = [b"x-opt-sequence-number-epoch", b"x-opt-partition-key", b"x-opt-publisher", b"x-own"]
    names += draw(st.lists(st.sampled_from(optional), unique=True))
    order, code, wide = draw(st.permutations(names)), draw(st.sampled_from([0xA1, 0xA3])), draw(st.booleans())
    first = draw(st.one_of(st.integers(0, 130), st.integers(-(2**63), 2**60)))
    constant = {b"x-opt-publisher": draw(TEXTS), b"x-own": draw(VALUES), b"x-opt-sequence-number-epoch": draw(EPOCHS)}
    promoted = draw(st.sampled_from([None, None, 5]))
    head = draw(st.sampled_from([b"", section(0x70, compound(0xC0, 1, b"\x41"))]))
    delivery, properties = draw(st.sampled_from(["none", "same", "other"])), draw(st.sampled_from(["same", "other"]))
    same_delivery = section(0x71, draw(maps(TEXTS, VALUES)))
    same = section(0x73, compound(0xC0, 2, draw(TEXTS) + draw(TEXTS))) + section(0x74, draw(maps(TEXTS, VALUES)))
    keys = draw(st.lists(TEXTS, max_size=3))
    forms = [(draw(st.sampled_from([0xA0, 0xA1])), draw(st.booleans())) for _ in keys]
    made = []
    for number in range(draw(st.integers(10, 40))):
        values = {
            b"x-opt-sequence-number": shortest(first + number),
            b"x-opt-offset": text(str(draw(st.integers(0, 10**12))).encode(), wide=wide),
            b"x-opt-enqueued-time": timestamp(draw(st.integers(0, 2**45))),
            b"x-opt-partition-key": text(draw(st.one_of(st.text(max_size=9).map(str.encode), st.binary(max_size=9)))),
            **constant,
        }
        if number == promoted:  # in the middle of a batch
            constant[b"x-opt-sequence-number-epoch"] = draw(EPOCHS)
        body = b"".join(text(name, code) + values[name] for name in order)
        own = same
        if properties == "other":
            raws = [draw(st.one_of(st.text(max_size=5).map(str.encode), st.binary(max_size=5))) for _ in keys]
            pairs = [key + text(raw, *form) for key, raw, form in zip(keys, raws, forms, strict=True)]
            own = section(0x74, compound(0xC1, 2 * len(pairs), b"".join(pairs), wide))
        data = section(0x75, text(draw(st.binary(max_size=20)), 0xA0, wide))
        if delivery != "none":
            data += same_delivery if delivery == "same" else section(0x71, draw(maps(TEXTS, VALUES)))
        made.append(head + section(0x72, compound(0xC1, 2 * len(order), body, wide)) + own + data)
    return made


#: Values that are neither compound nor described.
SIMPLE = (
    *(text(raw, code, wide) for raw in ("größe".encode(), b"\xff") for code in (0xA0, 0xA1, 0xA3) for wide in (0, 1)),
    *(bytes((code,)) for code in (0x40, 0x41, 0x42, 0x43, 0x44)),
    *(bytes((code, 0x81)) for code in (0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56)),
    *(bytes((code, 0x81, 0)) for code in (0x60, 0x61)),
    *(bytes((code, 0x81, 0, 0, 0)) for code in (0x70, 0x71, 0x72)),
    *(bytes((code, 0x81, 0, 0, 0, 0, 0, 0, 0)) for code in (0x80, 0x81, 0x82, 0x83)),
    b"\x98" + bytes(range(16)),
)


def usual(number: int, kind: str) -> bytes:
    """A message of the `kind` that nearly all messages in a batch have; the hub is promoted halfway."""
    value = SIMPLE[number % len(SIMPLE)]
    own = text(b"x-%d" % number, 0xA3) + value + text(b"subject", 0xA3) + text(b"s") if "unlike" in kind else b""
    pairs = own + service_annotations(number, epoch=b"\x54\xff" if number < 1200 else b"\x54\x00")
    annotations = section(0x72, compound(0xC1, SERVICE_ITEMS + 4 * bool(own), pairs))
    ids = section(0x73, compound(0xC0, 1, text(b"id %d" % number))) if "ids" in kind else b""
    application = section(0x74, compound(0xC1, 2, text(b"p") + value)) if "properties" in kind else b""
    body = section(0x75, text(b"body", 0xA0))
    delivery = section(0x71, compound(0xC1, 2, text(b"info", 0xA3) + timestamp(number if "unlike" in kind else 7)))
    before, behind = (delivery if place in kind else b"" for place in ("before", "behind"))
    return before + annotations + ids + application + body + behind


def odd(pairs: bytes = b"", count: int = 0, rest: bytes = b"", sequence_number: bytes | None = None) -> bytes:
    """A message with `count` extra annotations and with `rest` in front of its body."""
    annotations = compound(0xC1, SERVICE_ITEMS + count, pairs + service_annotations(3000, sequence_number))
    return section(0x72, annotations) + rest + section(0x75, text(b"body", 0xA0))


def application(count: int, pairs: bytes) -> bytes:
    return section(0x74, compound(0xC1, count, pairs))


def with_nulls(elements: int) -> bytes:
    """A message with an array of nulls in every section; all share one limit."""
    array = compound(0xE0, elements, b"\x40")
    delivery = section(0x71, compound(0xC1, 2, text(b"d", 0xA3) + array))
    rest = section(0x73, compound(0xC0, 1, array)) + application(2, text(b"p") + array)
    return delivery + odd(text(b"x", 0xA3) + array, 2, rest) + delivery


#: Map entries that only the slow path reads.
NOT_SIMPLE = {
    "many": (140, b"".join(text(b"%d" % at) + long(at) for at in range(70))),
    "a key twice": (4, text(b"key") + text(b"one") + text(b"key", 0xA3) + text(b"two")),
    "a key that is a number": (2, long(5) + text(b"five")),
    "a list": (2, text(b"list") + compound(0xC0, 1, long(5))),
    "a described value": (2, text(b"described") + b"\x00" + text(b"kind") + long(5)),
    "one item more than there is": (3, text(b"key") + text(b"value")),
}

#: Messages that are the only one of their kind in a batch.
ODD = {
    "a named value twice": odd(text(b"x-opt-offset", 0xA3) + text(b"1"), 2),
    "an annotation named as a message property": odd(
        text(b"subject", 0xA3) + text(b"a"), 2, section(0x73, compound(0xC0, 4, b"\x40" * 3 + text(b"b")))
    ),
    "the lowest sequence number": odd(sequence_number=long(-(2**63))),
    "a sequence number of no column": odd(sequence_number=b"\x80" + b"\xff" * 8),
    "a time of no column": odd().replace(timestamp(1_700_000_003_000), timestamp(2**62)),
    "a time that is none": odd().replace(timestamp(1_700_000_003_000), text(b"late", 0xA1)),
    "annotations that are a text": b"\x00Sr" + text(b"x-opt-sequence-number", 0xA3) + odd(),
    "a value of no section": b"\x00Sp" + text(b"header") + compound(0xC0, 0, b"") + odd(),
    "properties that are no list": odd(rest=section(0x73, b"\x41")),
    "few nulls": with_nulls(30),
    "many nulls": with_nulls(255),
    "a value of an unknown type": odd(rest=application(2, text(b"p") + b"\xff")),
    "64 properties": odd(rest=application(128, b"".join(text(b"%d" % at) + long(at) for at in range(64)))),
    "60 annotations": odd(b"".join(text(b"%d" % at, 0xA3) + long(at) for at in range(60)), 120),
    **{f"annotations, {what}": odd(pairs, count) for what, (count, pairs) in NOT_SIMPLE.items()},
    **{f"properties, {what}": odd(rest=application(*map_)) for what, map_ in NOT_SIMPLE.items()},
    "no UTF-8": odd(text(b"x-opt-partition-key", 0xA3) + text(b"\xff"), 2, application(2, text(b"\xff") * 2)),
    "an odd number of items behind the body": odd() + section(0x71, b"\xc1\x01\x01"),
    "a malformed value behind the body": odd() + section(0x71, compound(0xC1, 2, text(b"a") + b"\xff")),
    "half a section behind the body": odd() + b"\x00\x53\x71",
    "nothing": b"",
}

GROUPS = st.one_of(
    shapes(),
    *(st.lists(strategy, max_size=3) for strategy in (messages(), contradictions(), st.sampled_from([*ODD.values()]))),
)


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    """Messages of several shapes, some of them corrupted or truncated."""
    groups = draw(st.lists(GROUPS, max_size=3))
    sent = draw(st.permutations([message for group in groups for message in group]))
    for at in draw(st.lists(st.integers(0, len(sent) - 1), max_size=3)) if sent else []:
        changed = bytearray(sent[at])
        if changed:
            changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
        sent[at] = bytes(changed[: draw(st.sampled_from([None, None, draw(st.integers(0, len(changed)))]))])
    return sent


#: All columns, a body alone, none, or any.
SOME_COLUMNS = st.one_of(
    st.just(set(COLUMNS)), st.just({"body"}), st.just(set[str]()), st.sets(st.sampled_from(sorted(COLUMNS)))
)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(sent=batches(), columns=SOME_COLUMNS, json_properties=st.booleans(), data=st.data())
def test_rows_equal_those_of_the_slow_path(
    make: partial[Decoder], sent: list[bytes], columns: set[str], json_properties: bool, data: st.DataObject
) -> None:
    decoder, schema = make(json_properties, schema_of(columns)), schema_of(columns)
    some = data.draw(st.lists(st.sampled_from(sent), max_size=5)) if sent else []
    for part in (sent, sent, some):  # later passes use templates
        joined = data.draw(st.lists(st.integers(0, len(part) - 1), max_size=3, unique=True)) if part else []
        found = decoder.record_batch(in_buffer(part, data.draw(st.sampled_from([b"", b"\xffgap"])), joined))
        found.batch.validate(full=True)
        expected = one_at_a_time(part, json_properties)
        assert found.batch.schema == schema
        assert found.batch.equals(expected.batch.select(schema.names))
        assert found.unreadable == expected.unreadable


@pytest.fixture
def tiers(caplog: pytest.LogCaptureFixture) -> Callable[[], Counter[str]]:
    """The number of messages that each tier has read since the last call, according to the log."""
    caplog.set_level(logging.DEBUG, logger=decoder_module.__name__)

    def read() -> Counter[str]:
        counts: Counter[str] = Counter()
        for record in caplog.records:
            assert isinstance(record.args, tuple)
            counts.update(record.args[1])
        caplog.clear()
        return counts

    return read


def test_messages_of_one_shape_are_read_with_a_template(tiers: Callable[[], Counter[str]]) -> None:
    sent, decoder = in_buffer([ordinary(number) for number in range(1000)]), Decoder("0", False)
    for tier in ("new template", "known template"):
        decoder.record_batch(sent)
        assert tiers() == {tier: 1000}


@pytest.mark.parametrize("kind", ["alike", "ids", "properties", "before", "behind"])
@pytest.mark.parametrize("unlike", ["", "unlike "])
def test_one_odd_message_does_not_slow_down_others(tiers: Callable[[], Counter[str]], kind: str, unlike: str) -> None:
    plain, decoder = [usual(number, unlike + kind) for number in range(1000, 1400)], Decoder("0", False)
    rows = one_at_a_time(plain).batch
    tiers()
    assert decoder.record_batch(in_buffer(plain)).batch.equals(rows)
    assert not tiers()["slow path"]
    for what, message in ODD.items():
        odd_row = one_at_a_time([message]).batch
        tiers()
        for at in (0, 399):
            found = decoder.record_batch(in_buffer([*plain[:at], message, *plain[at + 1 :]])).batch
            assert found.equals(pa.concat_batches([rows[:at], odd_row, rows[at + 1 :]])), what
            assert tiers()["slow path"] <= 1, what


def test_template_is_learned_only_from_the_first_bytes() -> None:
    array = section(0x71, compound(0xE0, 255, b"\x40"))
    assert scan.learn(ordinary(7)) is not None
    for before in (array, section(0x71, b"\x45") * 300, section(0x70, compound(0xC0, 400, b"\x40" * 400, True)) * 3):
        assert scan.learn(before + ordinary(7)) is None
    large = section(0x75, text(bytes(1 << 20), 0xA0))
    assert scan.learn(ordinary(7, large)) is not None
    assert scan.learn(ordinary(7, large + section(0x71, compound(0xC1, 2, text(b"a") + text(bytes(1024)))))) is None


def test_template_longer_than_all_messages_matches_none(make: partial[Decoder]) -> None:
    decoder = make(False)
    long_ones = [
        ordinary(number, head=section(0x70, compound(0xC0, 1, text(bytes(800), 0xA0)))) for number in range(20)
    ]
    assert decoder.record_batch(in_buffer(long_ones)).batch.equals(one_at_a_time(long_ones).batch)
    short = [section(0x72, compound(0xC1, 2, text(b"x-opt-sequence-number") + long(at))) for at in range(16)]
    assert sum(map(len, short)) < 800
    assert decoder.record_batch(in_buffer(short, b"")).batch.equals(one_at_a_time(short).batch)


def test_decoding_does_not_import_pandas() -> None:
    result = subprocess.run([sys.executable, "-c", _DECODING], capture_output=True, text=True, timeout=60, check=True)
    assert "pandas" not in result.stdout.split()
