"""Hypothesis strategies for AMQP values and messages in every encoding that the standard allows.

Independent of the package's own codecs, which choose one encoding of a value, whereas tests need all encodings.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st

from spark_ehbalance.eventhub.wire.transfers import SLACK, RawMessages

Bytes = st.SearchStrategy[bytes]


def _packed(code: int, form: str, values: st.SearchStrategy[object]) -> Bytes:
    return values.map(lambda value: bytes((code,)) + struct.pack(">" + form, value))


def _integers(low: int, high: int) -> st.SearchStrategy[object]:
    return st.integers(low, high)


def text(raw: bytes, code: int = 0xA1, wide: bool = False) -> bytes:
    """Text (0xa1), a symbol (0xa3) or binary (0xa0)."""
    if wide or len(raw) > 255:
        return struct.pack(">BI", code + 0x10, len(raw)) + raw
    return bytes((code, len(raw))) + raw


def compound(code: int, count: int, body: bytes, wide: bool = False) -> bytes:
    """A list (0xc0), map (0xc1) or array (0xe0)."""
    if wide or len(body) > 254 or count > 255:
        return struct.pack(">BII", code + 0x10, len(body) + 4, count) + body
    return bytes((code, len(body) + 1, count)) + body


def long(value: int) -> bytes:
    return b"\x81" + struct.pack(">q", value)


def shortest(value: int) -> bytes:
    """A long in the fewest possible bytes, as the service encodes it."""
    return bytes((0x55, value % 256)) if -128 <= value <= 127 else long(value)


def timestamp(value: int) -> bytes:
    return b"\x83" + struct.pack(">q", value)


_FIXED: dict[int, Bytes] = {
    0x50: _packed(0x50, "B", _integers(0, 255)),
    0x51: _packed(0x51, "b", _integers(-128, 127)),
    0x52: _packed(0x52, "B", _integers(0, 255)),
    0x53: _packed(0x53, "B", _integers(0, 255)),
    0x54: _packed(0x54, "b", _integers(-128, 127)),
    0x55: _packed(0x55, "b", _integers(-128, 127)),
    0x56: _packed(0x56, "B", _integers(0, 1)),
    0x60: _packed(0x60, "H", _integers(0, 2**16 - 1)),
    0x61: _packed(0x61, "h", _integers(-(2**15), 2**15 - 1)),
    0x70: _packed(0x70, "I", _integers(0, 2**32 - 1)),
    0x71: _packed(0x71, "i", _integers(-(2**31), 2**31 - 1)),
    0x72: _packed(0x72, "f", st.floats(width=32)),
    0x80: _packed(0x80, "Q", _integers(0, 2**64 - 1)),
    0x81: _packed(0x81, "q", _integers(-(2**63), 2**63 - 1)),
    0x82: _packed(0x82, "d", st.floats()),
    0x83: _packed(0x83, "q", _integers(-(2**63), 2**63 - 1)),
    0x98: _packed(0x98, "16s", st.binary(min_size=16, max_size=16)),
}
_EMPTY = st.sampled_from([bytes((code,)) for code in (0x40, 0x41, 0x42, 0x43, 0x44)])
_RAW = st.one_of(st.binary(max_size=20), st.text(max_size=12).map(str.encode), st.integers(250, 260).map(bytes))


def _text_or_binary(raw: bytes, code: int, wide: bool) -> bytes:
    """Text or binary, but binary only if it is not UTF-8: the client's decoder cannot distinguish them."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return text(raw, code, wide)
    return text(raw, max(code, 0xA1), wide)


TEXTS: Bytes = st.builds(_text_or_binary, _RAW, st.sampled_from([0xA0, 0xA1, 0xA3]), st.booleans())
SCALARS: Bytes = st.one_of(_EMPTY, TEXTS, *_FIXED.values())


@st.composite
def _arrays(draw: st.DrawFn, values: Bytes) -> bytes:
    wide = draw(st.booleans())
    kind = draw(st.sampled_from(["empty", "fixed", "text"]))
    if kind == "empty":
        count = draw(st.integers(0, 10))
        # the client cannot decode an empty array with a type
        return compound(0xE0, count, draw(_EMPTY) if count else b"", wide)
    if kind == "fixed":
        strategy = _FIXED[draw(st.sampled_from(sorted(_FIXED)))]
        items = draw(st.lists(strategy, min_size=1, max_size=4))
        return compound(0xE0, len(items), items[0][:1] + b"".join(item[1:] for item in items), wide)
    code, large = draw(st.sampled_from([0xA0, 0xA1, 0xA3])), draw(st.booleans())
    raws = draw(st.lists(st.binary(max_size=9), min_size=1, max_size=4))
    items = [text(b"\xff" * (code == 0xA0) + raw, code, large) for raw in raws]
    return compound(0xE0, len(items), items[0][:1] + b"".join(item[1:] for item in items), wide)


def _lists(values: Bytes) -> Bytes:
    return st.one_of(
        st.just(b"\x45"),
        st.builds(
            lambda items, wide: compound(0xC0, len(items), b"".join(items), wide),
            st.lists(values, max_size=4),
            st.booleans(),
        ),
    )


def maps(keys: Bytes, values: Bytes, most: int = 4) -> Bytes:
    """Maps in both sizes."""
    return st.builds(
        lambda pairs, wide: compound(0xC1, 2 * len(pairs), b"".join(key + value for key, value in pairs), wide),
        st.lists(st.tuples(keys, values), max_size=most),
        st.booleans(),
    )


def _described(values: Bytes) -> Bytes:
    # except delivery states, which the client reads as maps
    descriptors = st.one_of(st.integers(0x28, 0x30).map(lambda code: bytes((0x53, code))), TEXTS)
    return st.builds(lambda descriptor, value: b"\x00" + descriptor + value, descriptors, values)


VALUES: Bytes = st.recursive(
    SCALARS,
    lambda inner: st.one_of(_lists(inner), maps(SCALARS, inner), _arrays(inner), _described(inner)),
    max_leaves=8,
)
_LISTS = _lists(VALUES)


def section(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes((code,)) + value


#: The epoch of a hub that is not geo-replicated, as the service encodes it.
NO_EPOCH = b"\x54\xff"

#: Epochs of all kinds: -1 as an integer, then other numbers, then values that are not integers.
EPOCHS = st.sampled_from(
    [
        NO_EPOCH,
        b"\x55\xff",
        b"\x71\xff\xff\xff\xff",
        long(-1),
        timestamp(-1),
        b"\x54\x00",
        b"\x44",
        b"\x54\x03",
        b"\x50\xff",
        b"\x70\xff\xff\xff\xff",
        long(2**40),
        b"\x82" + struct.pack(">d", -1),
        b"\x80" + b"\xff" * 8,
        b"\x41",
        b"\x40",
        text(b"-1"),
        b"\x00\x53\x99\x54\xff",
    ]
)

#: The number of items in `service_annotations`.
SERVICE_ITEMS = 8


def service_annotations(number: int, encoded: bytes | None = None, epoch: bytes = NO_EPOCH) -> bytes:
    """The service's four annotations, which follow a sender's; `encoded` is the encoded sequence number."""
    pairs = text(b"x-opt-sequence-number-epoch", 0xA3) + epoch
    pairs += text(b"x-opt-sequence-number", 0xA3) + (encoded or shortest(number))
    pairs += text(b"x-opt-offset", 0xA3) + text(b"%d" % (number * 1000))
    return pairs + text(b"x-opt-enqueued-time", 0xA3) + timestamp(1_700_000_000_000 + number)


def ordinary(
    number: int,
    rest: bytes | None = None,
    *,
    encoded: bytes | None = None,
    epoch: bytes = NO_EPOCH,
    head: bytes = b"",
) -> bytes:
    """A message as the service usually sends it, with a body or with `rest`."""
    annotations = section(0x72, compound(0xC1, SERVICE_ITEMS, service_annotations(number, encoded, epoch)))
    return head + annotations + (section(0x75, text(bytes(number % 400), 0xA0)) if rest is None else rest)


@st.composite
def annotations(draw: st.DrawFn) -> bytes:
    """The service's annotations in any order and encoding, mixed with other annotations."""
    number, offset, time = draw(st.integers(0, 2**40)), draw(st.text(max_size=15)), draw(st.integers(0, 2**45))
    small = number < 128 and draw(st.booleans())
    wide = draw(st.booleans())
    pairs = {
        b"x-opt-sequence-number": bytes((0x55, number)) if small else long(number),
        b"x-opt-offset": text(offset.encode(), wide=wide),
        b"x-opt-enqueued-time": timestamp(time),
    }
    if draw(st.booleans()):
        pairs[b"x-opt-sequence-number-epoch"] = draw(EPOCHS)
    if draw(st.booleans()):
        pairs[b"x-opt-partition-key"] = draw(TEXTS)
    if draw(st.booleans()):
        pairs[b"x-opt-publisher"] = draw(TEXTS)
    for name in draw(st.lists(st.sampled_from([b"x-own", b"x-opt-other", b"message-id", b"subject"]), max_size=2)):
        pairs[name] = draw(VALUES)
    order = draw(st.permutations(list(pairs)))
    code = draw(st.sampled_from([0xA1, 0xA3]))
    body = b"".join(text(name, code, wide) + pairs[name] for name in order)
    return section(0x72, compound(0xC1, 2 * len(pairs), body, draw(st.booleans())))


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Complete messages with any sections, as a receiver gets them."""

    def maybe(make: Callable[[], bytes]) -> bytes:
        return make() if draw(st.booleans()) else b""

    parts = [
        maybe(lambda: section(0x70, compound(0xC0, 2, b"\x41" + draw(_FIXED[0x50])))),
        maybe(lambda: section(0x71, draw(maps(TEXTS, VALUES)))),
        draw(annotations()),
    ]
    if draw(st.booleans()):
        fields = draw(st.lists(SCALARS, max_size=13))
        parts.append(section(0x73, compound(0xC0, len(fields), b"".join(fields), draw(st.booleans()))))
    parts.append(maybe(lambda: section(0x74, draw(maps(SCALARS, VALUES)))))
    kind = draw(st.sampled_from(["data", "data", "data", "sections", "sequence", "value", "none"]))
    if kind == "data":
        parts.append(section(0x75, text(draw(_RAW), 0xA0, draw(st.booleans()))))
    elif kind == "sections":
        parts += [
            section(0x75, text(raw, 0xA0)) for raw in draw(st.lists(st.binary(max_size=9), min_size=2, max_size=3))
        ]
    elif kind == "sequence":
        parts += [section(0x76, value) for value in draw(st.lists(_LISTS, min_size=1, max_size=3))]
    elif kind == "value":
        parts.append(section(0x77, draw(VALUES)))
    parts.append(maybe(lambda: section(0x71, draw(maps(TEXTS, VALUES)))))  # where azure-eventhub puts them
    parts.append(maybe(lambda: section(0x78, draw(maps(TEXTS, VALUES)))))
    return b"".join(parts)


@st.composite
def contradictions(draw: st.DrawFn) -> bytes:
    """Messages whose sizes contradict their elements, that have a map with an extra key, or whose body is truncated."""

    def wrong(code: int, items: list[bytes], more: int = 0) -> bytes:
        raw = bytearray(compound(code, len(items) + more, b"".join(items), wide=draw(st.booleans())))
        if draw(st.booleans()):
            raw[4 if raw[0] & 0xF0 == 0xD0 else 1] = draw(st.integers(0, 255))  # its size, or the last byte of it
        return bytes(raw)

    number = draw(st.integers(0, 2**40))
    pairs = [text(b"x-opt-sequence-number", 0xA3), long(number), text(b"x-opt-offset", 0xA3), text(b"%d" % number)]
    parts = [section(0x72, wrong(0xC1, pairs, draw(st.integers(0, 1))))]
    if draw(st.booleans()):
        parts.append(section(0x73, wrong(0xC0, draw(st.lists(SCALARS, max_size=3)))))
    if draw(st.booleans()):
        own = [item for pair in draw(st.lists(st.tuples(TEXTS, SCALARS), max_size=3)) for item in pair]
        parts.append(section(0x74, draw(st.sampled_from([b"\x40", wrong(0xC1, own, draw(st.integers(0, 1)))]))))
    body = draw(st.binary(max_size=20))
    parts.append(section(0x75, text(body, 0xA0, draw(st.booleans()))))
    whole = b"".join(parts)
    return whole[: len(whole) - draw(st.integers(0, len(body)))]


def in_buffer(sent: list[bytes], gap: bytes = b"\xffgap", joined: Sequence[int] = ()) -> RawMessages:
    """The messages in a buffer with gaps, except those with the indices `joined`, which arrived in several frames."""
    starts, ends = [], []
    data = bytearray()
    for index, message in enumerate(sent):
        data += gap
        starts.append(-1 - joined.index(index) if index in joined else len(data))
        data += b"" if index in joined else message
        ends.append(0 if index in joined else len(data))
    return RawMessages(
        data + bytes(SLACK), np.array(starts, np.int64), np.array(ends, np.int64), [sent[index] for index in joined]
    )
