"""Many messages at a time: the same rows as one at a time, whatever their shapes and whichever tier reads them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.eventhub.rows import COLUMNS, Event, Rows, UnreadableError, record_batch, schema_of, unreadable
from spark_ehbalance.eventhub.wire import decoder as decoder_module
from spark_ehbalance.eventhub.wire import scan
from spark_ehbalance.eventhub.wire.decoder import Decoder
from spark_ehbalance.eventhub.wire.messages import parse
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

#: Decoders of partition 0 whose fast tiers read where that pays, and wherever there is one message.
DECODERS = {"where it pays": partial(Decoder, "0"), "everywhere": partial(Decoder, "0", few=1, many=1)}


@pytest.fixture(scope="module", params=DECODERS)
def make(request: pytest.FixtureRequest) -> partial[Decoder]:
    """Makes a decoder."""
    return DECODERS[request.param]


@st.composite
def shapes(draw: st.DrawFn) -> list[bytes]:
    """Up to 40 messages of one shape: the service's values differ from one to the next, and the sender's may."""
    names = [b"x-opt-sequence-number", b"x-opt-offset", b"x-opt-enqueued-time"]
    optional = [b"x-opt-sequence-number-epoch", b"x-opt-partition-key", b"x-opt-publisher", b"x-own"]
    names += draw(st.lists(st.sampled_from(optional), unique=True))
    order, code, wide = draw(st.permutations(names)), draw(st.sampled_from([0xA1, 0xA3])), draw(st.booleans())
    wide_text, first = draw(st.booleans()), draw(st.one_of(st.integers(0, 130), st.integers(0, 2**60)))
    constant = {b"x-opt-publisher": draw(TEXTS), b"x-own": draw(VALUES), b"x-opt-sequence-number-epoch": draw(EPOCHS)}
    promoted = draw(st.sampled_from([None, None, 5]))
    delivery = draw(st.sampled_from(["none", "none", "same", "other"]))
    same_delivery = section(0x71, draw(maps(TEXTS, VALUES)))
    head = draw(st.sampled_from([b"", section(0x70, compound(0xC0, 1, b"\x41"))]))
    properties = draw(st.sampled_from(["none", "same", "other", "texts", "texts"]))
    keys = [
        text(key, draw(st.sampled_from([0xA0, 0xA1, 0xA3])))
        for key in draw(st.lists(st.binary(max_size=6), max_size=3))
    ]
    forms = [(draw(st.sampled_from([0xA0, 0xA1])), draw(st.booleans())) for _ in keys]
    same = section(0x73, compound(0xC0, 2, draw(TEXTS) + draw(TEXTS))) + section(0x74, draw(maps(TEXTS, VALUES)))
    wide_body, odd = draw(st.booleans()), draw(st.sampled_from([-1, -1, 5]))
    made = []
    for number in range(draw(st.integers(10, 40))):
        values = {
            b"x-opt-sequence-number": shortest(first + number),
            b"x-opt-offset": text(str(draw(st.integers(0, 10**12))).encode(), wide=wide_text),
            b"x-opt-enqueued-time": timestamp(draw(st.integers(0, 2**45))),
            b"x-opt-partition-key": text(draw(st.one_of(st.text(max_size=9).map(str.encode), st.binary(max_size=9)))),
            **constant,
        }
        if number == promoted:  # in the middle of a batch
            constant[b"x-opt-sequence-number-epoch"] = draw(EPOCHS)
        body = b"".join(text(name, code) + values[name] for name in order)
        own = {"none": b"", "same": same}.get(properties, b"")
        if properties == "other":
            own = section(0x74, draw(maps(TEXTS, TEXTS)))
        elif properties == "texts":
            raws = [draw(st.one_of(st.text(max_size=5).map(str.encode), st.binary(max_size=5))) for _ in keys]
            pairs = [key + text(raw, *form) for key, raw, form in zip(keys, raws, forms, strict=True)]
            if number == odd:  # one that is not like the others
                pairs = pairs[1:]
            own = section(0x74, compound(0xC1, 2 * len(pairs), b"".join(pairs), wide))
        data = section(0x75, text(draw(st.binary(max_size=20)), 0xA0, wide_body))
        if delivery != "none":
            data += same_delivery if delivery == "same" else section(0x71, draw(maps(TEXTS, VALUES)))
        made.append(head + section(0x72, compound(0xC1, 2 * len(order), body, wide)) + own + data)
    return made


GROUPS = st.one_of(shapes(), st.lists(messages(), max_size=3), st.lists(contradictions(), max_size=3))


def alone(message: bytes) -> Event:
    """The slow path, which `test_wire_messages.py` compares with the client."""
    try:
        return parse(message)
    except UnreadableError as error:
        return unreadable(message, error)


def expected(sent: list[bytes], json_properties: bool = False) -> object:
    return record_batch(map(alone, sent), "0", json_properties=json_properties)


@settings(deadline=None, max_examples=25)
@given(groups=st.lists(GROUPS, min_size=1, max_size=3), json_properties=st.booleans(), data=st.data())
def test_the_rows_are_those_of_one_message_at_a_time(
    make: partial[Decoder], groups: list[list[bytes]], json_properties: bool, data: st.DataObject
) -> None:
    sent = data.draw(st.permutations([each for group in groups for each in group]), label="order")
    decoder = make(json_properties)
    for _ in range(2):  # the second time with templates
        joined = data.draw(st.lists(st.integers(0, len(sent) - 1), max_size=3, unique=True)) if sent else []
        batch = decoder.record_batch(in_buffer(sent, joined=joined)).batch
        batch.validate(full=True)
        assert batch.equals(expected(sent, json_properties))


@settings(deadline=None, max_examples=20)
@given(sent=shapes(), json_properties=st.booleans(), data=st.data())
def test_a_changed_message_among_others_is_what_it_is_alone(
    make: partial[Decoder], sent: list[bytes], json_properties: bool, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(sent) - 1))
    changed = bytearray(sent[at])
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    sent[at] = bytes(changed)
    made = make(json_properties).record_batch(in_buffer(sent))
    made.batch.validate(full=True)
    assert made.batch.equals(expected(sent, json_properties))
    assert set(made.unreadable) <= {at}


#: A sound sequence number or time, one that no column can hold, and the reason.
NOT_HOLDABLE = {
    "number": (long(1050), b"\x80" + b"\xff" * 8, "no column can hold its sequence number"),
    "number that is none": (long(1050), b"\x41", "no column can hold its sequence number"),
    "time": (timestamp(1_700_000_001_050), timestamp(2**62), "no column can hold its time"),
    "time that is none": (timestamp(1_700_000_001_050), text(b"late", 0xA1), "no column can hold its time"),
}


@pytest.mark.parametrize("what", NOT_HOLDABLE)
def test_an_event_whose_sequence_number_or_time_fits_no_column_is_unreadable(make: partial[Decoder], what: str) -> None:
    sent, (sound, changed, reason) = [ordinary(number) for number in range(1000, 1300)], NOT_HOLDABLE[what]
    assert sound in sent[50]
    sent[50] = sent[50].replace(sound, changed)
    sent[60] = sent[60][:-1] + b"\xff\xff"
    made = make(False).record_batch(in_buffer(sent))
    assert made.batch.equals(expected(sent))
    assert made.unreadable[50] == reason
    assert set(made.unreadable) == {50, 60}
    assert made.batch["sequenceNumber"].to_pylist()[50:53] == [None if "number" in what else 1050, 1051, 1052]


@pytest.mark.parametrize("unlike", [False, True], ids=["alike", "unlike"])
def test_the_lowest_sequence_number_is_read_by_every_tier(make: partial[Decoder], unlike: bool) -> None:
    sent = []
    for number in range(600):
        own = text(b"x-%d" % number if unlike else b"x", 0xA3) + long(number)
        annotations = own + service_annotations(number, long(-(2**63) + number))
        sent.append(section(0x72, compound(0xC1, SERVICE_ITEMS + 2, annotations)) + section(0x75, text(b"x", 0xA0)))
    made = make(False).record_batch(in_buffer(sent))
    assert not made.unreadable
    assert made.batch["sequenceNumber"][0].as_py() == -(2**63)
    assert made.batch.equals(expected(sent))


#: A body alone, no column at all, or any columns.
SOME_COLUMNS = st.one_of(st.just({"body"}), st.just(set[str]()), st.sets(st.sampled_from(sorted(COLUMNS))))


@settings(deadline=None, max_examples=20)
@given(
    groups=st.lists(GROUPS, min_size=1, max_size=3),
    columns=SOME_COLUMNS,
    json_properties=st.booleans(),
    data=st.data(),
)
def test_any_columns_are_those_of_the_whole_rows(
    make: partial[Decoder], groups: list[list[bytes]], columns: set[str], json_properties: bool, data: st.DataObject
) -> None:
    sent = data.draw(st.permutations([each for group in groups for each in group]), label="order")
    for at in data.draw(st.lists(st.integers(0, len(sent) - 1), max_size=3)) if sent else []:
        changed = bytearray(sent[at])
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
        sent[at] = bytes(changed)
    whole, decoder = make(json_properties), make(json_properties, schema_of(columns))
    for _ in range(2):  # the second time with templates
        expected, found = (each.record_batch(in_buffer(sent)) for each in (whole, decoder))
        assert found.batch.schema == schema_of(columns)
        assert found.batch.equals(expected.batch.select(found.batch.schema.names))
        assert found.unreadable == expected.unreadable


@pytest.mark.parametrize(
    "before",
    [b"\x00Sp" + text(b"header") + compound(0xC0, 0, b""), b"\x00Sr" + text(b"x-opt-sequence-number", 0xA3)],
    ids=["a value that belongs to no section", "annotations that are a text"],
)
def test_many_messages_of_one_malformed_shape_are_unreadable(make: partial[Decoder], before: bytes) -> None:
    sent = [ordinary(number) for number in range(50)]
    malformed = [before + ordinary(number) for number in range(50, 100)]
    made = make(False).record_batch(in_buffer(sent + malformed))
    assert made.batch.equals(expected(sent + malformed))
    assert set(made.unreadable) == set(range(50, 100))
    assert all(reason.startswith("it is no sound AMQP message: ") for reason in made.unreadable.values())


def test_a_template_longer_than_all_messages_together_fits_none(make: partial[Decoder]) -> None:
    decoder = make(False)
    long_ones = [
        ordinary(number, head=section(0x70, compound(0xC0, 1, text(bytes(800), 0xA0)))) for number in range(20)
    ]
    assert decoder.record_batch(in_buffer(long_ones)).batch.equals(expected(long_ones))
    short = [section(0x72, compound(0xC1, 2, text(b"x-opt-sequence-number") + long(at))) for at in range(16)]
    assert sum(map(len, short)) < 800
    assert decoder.record_batch(in_buffer(short, b"")).batch.equals(expected(short))


@pytest.fixture
def tiers(caplog: pytest.LogCaptureFixture) -> Callable[[], Counter[str]]:
    """How many messages each tier has read since the last call, as it is logged."""
    caplog.set_level(logging.DEBUG, logger=decoder_module.__name__)

    def read() -> Counter[str]:
        counts: Counter[str] = Counter()
        for record in caplog.records:
            assert isinstance(record.args, tuple)
            counts.update(record.args[1])
        caplog.clear()
        return counts

    return read


def test_messages_of_one_shape_are_read_by_a_template(
    make: partial[Decoder], tiers: Callable[[], Counter[str]], caplog: pytest.LogCaptureFixture
) -> None:
    sent, decoder = [ordinary(number) for number in range(1000)], make(False)
    assert decoder.record_batch(in_buffer(sent)).batch.equals(expected(sent))
    assert caplog.messages == ["partition 0: messages read by tier: {'new template': 1000}"]
    assert tiers() == {"new template": 1000}
    assert decoder.record_batch(in_buffer(sent)).batch.equals(expected(sent))
    assert tiers() == {"known template": 1000}


def system_properties(made: Rows) -> list[dict[str, str]]:
    return [dict(each) for each in made.batch["systemProperties"].to_pylist()]


@pytest.mark.parametrize("json_properties", [False, True])
@pytest.mark.parametrize("unlike", [False, True], ids=["alike", "unlike"])
@pytest.mark.parametrize("epoch", [-1, 0, 3])
def test_an_epoch_is_shown_in_a_geo_replicated_hub(
    make: partial[Decoder], tiers: Callable[[], Counter[str]], epoch: int, unlike: bool, json_properties: bool
) -> None:
    sent, shown = [], {} if epoch == -1 else {"x-opt-sequence-number-epoch": str(epoch)}
    for number in range(1000):
        own = text(b"x-%d" % number, 0xA3) + shortest(number) if unlike else b""
        pairs = own + service_annotations(number, epoch=bytes((0x54, epoch % 256)))
        annotations = section(0x72, compound(0xC1, SERVICE_ITEMS + 2 * unlike, pairs))
        sent.append(annotations + section(0x75, text(b"body", 0xA0)))
    made = make(json_properties).record_batch(in_buffer(sent))
    assert not tiers()["slow path"]
    assert made.batch.equals(expected(sent, json_properties))
    assert system_properties(made) == [{f"x-{n}": str(n), **shown} if unlike else shown for n in range(1000)]


def test_epochs_may_change_within_a_batch(make: partial[Decoder]) -> None:
    epochs = [-1, 0, 1, 2, 3, 4, -1, 1]
    sent = [ordinary(number, epoch=bytes((0x54, epochs[number // 100] % 256))) for number in range(800)]
    made = make(False).record_batch(in_buffer(sent))
    assert made.batch.equals(expected(sent))
    shown = [{} if epoch == -1 else {"x-opt-sequence-number-epoch": str(epoch)} for epoch in epochs]
    assert system_properties(made) == [shown[number // 100] for number in range(800)]


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "unlike"])
@pytest.mark.parametrize("where", ["first", "last"])
def test_delivery_annotations_are_in_no_column_and_need_no_slow_path(
    make: partial[Decoder], tiers: Callable[[], Counter[str]], where: str, alike: bool
) -> None:
    plain, sent = [ordinary(number) for number in range(600)], []
    for number, message in enumerate(plain):
        pair = text(b"runtime_info", 0xA3) + timestamp(7 if alike else number)
        delivery = section(0x71, compound(0xC1, 2, pair))
        sent.append(delivery + message if where == "first" else message + delivery)
    made = make(False).record_batch(in_buffer(sent))
    assert not tiers()["slow path"]
    assert made.batch.equals(expected(plain))


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "unlike"])
@pytest.mark.parametrize("behind", [b"", b"\xff", b"\x00\x53\x71", b"\x00\x53\x78\x45"])
def test_what_is_behind_the_body_and_no_delivery_annotations_is_what_it_is_alone(
    make: partial[Decoder], behind: bytes, alike: bool
) -> None:
    plain, sent = [ordinary(number) for number in range(600)], []
    for number, message in enumerate(plain):
        malformed = b"\xff" if number % 100 == 5 else long(7 if alike else number)
        sent.append(message + section(0x71, compound(0xC1, 2, text(b"a") + malformed)) + behind)
    made = make(False).record_batch(in_buffer(sent))
    assert made.batch.equals(expected(sent))
    assert made.batch.num_rows - len(made.unreadable) == (0 if behind in (b"\xff", b"\x00\x53\x71") else 594)


#: Neither compound nor described.
VALUE_OF_EACH_KIND = (
    *(text(raw, code, wide) for raw in ("größe".encode(), b"\xff") for code in (0xA0, 0xA1, 0xA3) for wide in (0, 1)),
    *(bytes((code,)) for code in (0x40, 0x41, 0x42, 0x43, 0x44)),
    *(bytes((code, 0x81)) for code in (0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56)),
    *(bytes((code, 0x81, 0)) for code in (0x60, 0x61)),
    *(bytes((code, 0x81, 0, 0, 0)) for code in (0x70, 0x71, 0x72)),
    *(bytes((code, 0x81, 0, 0, 0, 0, 0, 0, 0)) for code in (0x80, 0x81, 0x82, 0x83)),
    b"\x98" + bytes(range(16)),
)


@pytest.mark.parametrize("json_properties", [False, True])
def test_messages_of_which_no_two_are_alike_are_read_at_once(
    make: partial[Decoder], tiers: Callable[[], Counter[str]], json_properties: bool
) -> None:
    sent = []
    for number in range(1000):
        pairs = (
            text(b"x-%d" % number, 0xA3)
            + VALUE_OF_EACH_KIND[number % len(VALUE_OF_EACH_KIND)]
            + service_annotations(number)
        )
        other = VALUE_OF_EACH_KIND[7 * number % len(VALUE_OF_EACH_KIND)]
        own = section(0x74, compound(0xC1, 2, text(b"p%d" % number) + other)) if number % 3 else b""
        standard = section(0x73, compound(0xC0, 1, text(b"id %d" % number))) if number % 5 else b""
        body = section(0x77, text(b"x" * (number % 400), 0xA1)) if number % 2 else section(0x75, text(b"y", 0xA0))
        sent.append(section(0x72, compound(0xC1, SERVICE_ITEMS + 2, pairs)) + standard + own + body)
    made = make(json_properties).record_batch(in_buffer(sent)).batch
    assert made.equals(expected(sent, json_properties))
    counts = tiers()
    assert counts["any shape"] >= 990
    assert not counts["slow path"]


#: Pairs of a map that only the slow path reads.
NOT_SIMPLE = {
    "many": (140, b"".join(text(b"%d" % at) + long(at) for at in range(70))),
    "a key twice": (4, text(b"key") + text(b"one") + text(b"key", 0xA3) + text(b"two")),
    "a key that is a number": (2, long(5) + text(b"five")),
    "a list": (2, text(b"list") + compound(0xC0, 1, long(5))),
    "a described value": (2, text(b"described") + b"\x00" + text(b"kind") + long(5)),
    "one item more than there is": (3, text(b"key") + text(b"value")),
}


@pytest.mark.parametrize("among", [1, 300], ids=["all", "one of 300"])
@pytest.mark.parametrize("where", ["annotations", "properties"])
@pytest.mark.parametrize("what", NOT_SIMPLE)
def test_pairs_that_are_not_simple_are_what_they_are_alone(
    make: partial[Decoder], what: str, where: str, among: int
) -> None:
    sent = []
    for number in range(600):
        count, pairs = NOT_SIMPLE[what] if number % among == 0 else (2, text(b"key") + long(number))
        ours, own = (0, b""), b""
        if where == "annotations":
            ours = (count, pairs)
        else:
            own = section(0x74, compound(0xC1, count, pairs))
        # an encoding of the sequence number that no template has
        pairs = service_annotations(number, bytes((0x54, number % 128))) + ours[1]
        annotations = section(0x72, compound(0xC1, SERVICE_ITEMS + ours[0], pairs))
        sent.append(annotations + own + section(0x75, text(b"body", 0xA0)))
    assert make(False).record_batch(in_buffer(sent)).batch.equals(expected(sent))


def usual(number: int, kind: str) -> bytes:
    """A message of the `kind` that nearly all messages of a batch have."""
    own = text(b"x-%d" % number, 0xA3) + text(b"v") + text(b"subject", 0xA3) + text(b"s") if "unlike" in kind else b""
    annotations = compound(0xC1, SERVICE_ITEMS + 4 * bool(own), own + service_annotations(number))
    ids = section(0x73, compound(0xC0, 1, text(b"id %d" % number))) if "ids" in kind else b""
    application = section(0x74, compound(0xC1, 2, text(b"p") + long(number))) if "properties" in kind else b""
    return section(0x72, annotations) + ids + application + section(0x75, text(b"body", 0xA0))


def odd(pairs: bytes = b"", count: int = 0, rest: bytes = b"") -> bytes:
    """A message with `count` more items in its annotations, and with the `rest` before its body."""
    annotations = compound(0xC1, SERVICE_ITEMS + count, pairs + service_annotations(3000))
    return section(0x72, annotations) + rest + section(0x75, text(b"body", 0xA0))


def application(count: int, pairs: bytes) -> bytes:
    return section(0x74, compound(0xC1, count, pairs))


#: The only message of its kind in a batch.
ODD = {
    "a named value twice": odd(text(b"x-opt-offset", 0xA3) + text(b"1"), 2),
    "an annotation named as a message property": odd(
        text(b"subject", 0xA3) + text(b"a"), 2, section(0x73, compound(0xC0, 4, b"\x40" * 3 + text(b"b")))
    ),
    "a time of no column": odd().replace(timestamp(1_700_000_003_000), timestamp(2**62)),
    "properties that are no list": odd(rest=section(0x73, b"\x41")),
    "many nulls": odd(rest=application(2, text(b"p") + compound(0xE0, 256, b"\x40", True))),
    "few nulls": odd(rest=application(2, text(b"p") + compound(0xE0, 3, b"\x40"))),
    "a value of an unknown type": odd(rest=application(2, text(b"p") + b"\xff")),
    "64 properties": odd(rest=application(128, b"".join(text(b"%d" % at) + long(at) for at in range(64)))),
    "60 annotations": odd(b"".join(text(b"%d" % at, 0xA3) + long(at) for at in range(60)), 120),
    **{f"annotations, {what}": odd(pairs, count) for what, (count, pairs) in NOT_SIMPLE.items()},
    **{f"properties, {what}": odd(rest=application(*map_)) for what, map_ in NOT_SIMPLE.items()},
    "no UTF-8": odd(text(b"x-opt-partition-key", 0xA3) + text(b"\xff"), 2, application(2, text(b"\xff") * 2)),
    "nothing": b"",
}


@pytest.mark.parametrize("kind", ["alike", "ids", "properties", "unlike", "unlike ids", "unlike properties"])
def test_one_odd_message_takes_no_other_to_the_slow_path(tiers: Callable[[], Counter[str]], kind: str) -> None:
    plain, decoder = [usual(number, kind) for number in range(1000, 1400)], Decoder("0", False)
    decoder.record_batch(in_buffer(plain))
    tiers()
    for what, message in ODD.items():
        for at in (0, 200, 399):
            sent = [*plain[:at], message, *plain[at + 1 :]]
            made = decoder.record_batch(in_buffer(sent))
            assert made.batch.equals(expected(sent)), what
            assert tiers()["slow path"] <= 1, what


@pytest.mark.parametrize("count", [100, 600], ids=["few", "many"])
def test_a_map_with_an_odd_number_of_items_is_unreadable_in_batches_of_any_size(count: int) -> None:
    sent = [usual(number, "unlike") for number in range(1000, 1000 + count)]
    sent[50] += section(0x71, b"\xc1\x01\x01")
    assert Decoder("0", False).record_batch(in_buffer(sent)).unreadable.keys() == {50}


@pytest.mark.parametrize("elements", [30, 255])
@pytest.mark.parametrize("unlike", [False, True], ids=["alike", "unlike"])
def test_arrays_without_bytes_are_read_alike_in_batches_of_any_size(
    make: partial[Decoder], unlike: bool, elements: int
) -> None:
    """All sections share one bound, whichever tier reads the message."""
    array = compound(0xE0, elements, b"\x40")
    sent = []
    for number in range(600):
        own = text(b"x-%d" % number if unlike else b"x", 0xA3) + array + service_annotations(number)
        delivery = section(0x71, compound(0xC1, 2, text(b"d", 0xA3) + array))
        rest = section(0x73, compound(0xC0, 1, array)) + section(0x74, compound(0xC1, 2, text(b"p") + array))
        annotations = section(0x72, compound(0xC1, SERVICE_ITEMS + 2, own))
        sent.append(delivery + annotations + rest + section(0x75, text(b"body", 0xA0)) + delivery)
    for count in (10, 40, 600):
        made = make(False).record_batch(in_buffer(sent[:count]))
        assert made.batch.equals(expected(sent[:count]))
        assert len(made.unreadable) == (0 if elements == 30 else count)


@pytest.mark.parametrize("sections", [1, 2, 3])
def test_bodies_of_several_sections_are_read_whole(make: partial[Decoder], sections: int) -> None:
    before = section(0x73, compound(0xC0, 1, text(b"id"))) + section(0x74, compound(0xC1, 2, text(b"p") + long(1)))
    body = section(0x75, text(b"part", 0xA0)) * sections
    sent = [ordinary(number, before + body) for number in range(300)]
    made = make(False).record_batch(in_buffer(sent))
    assert made.batch.equals(expected(sent))
    assert made.batch["body"][7].as_py() == b"part" * sections


def test_a_template_is_learned_from_the_first_bytes_alone() -> None:
    array = section(0x71, compound(0xE0, 255, b"\x40"))
    assert scan.learn(ordinary(7)) is not None
    for before in (array, section(0x71, b"\x45") * 300, section(0x70, compound(0xC0, 400, b"\x40" * 400, True)) * 3):
        assert scan.learn(before + ordinary(7)) is None
    large = section(0x75, text(bytes(1 << 20), 0xA0))
    assert scan.learn(ordinary(7, large)) is not None
    assert scan.learn(ordinary(7, large + section(0x71, compound(0xC1, 2, text(b"a") + text(bytes(1024)))))) is None


def test_no_messages_are_an_empty_batch(make: partial[Decoder]) -> None:
    batch = make(False).record_batch(in_buffer([])).batch
    assert batch.equals(expected([]))
