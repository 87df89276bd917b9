"""The codec: values survive encoding and decoding, and bytes that are not AMQP raise DecodeError and nothing else."""

from __future__ import annotations

import contextlib
import struct
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.emulator.amqp import codec, frames
from spark_ehbalance.emulator.amqp.codec import Array, Described, Symbol, ULong, decode, encode, skip
from spark_ehbalance.emulator.amqp.errors import DecodeError
from spark_ehbalance.emulator.amqp.frames import TRANSFER_HEADER_SIZE, fill_transfer_headers
from spark_ehbalance.emulator.message import build_events, parse_batch, parse_event, parse_sections

GENEROUS = settings(max_examples=150, deadline=timedelta(seconds=2))


def _integers(kind: type, bits: int, signed: bool) -> st.SearchStrategy[Any]:
    low = -(2 ** (bits - 1)) if signed else 0
    return st.integers(low, low + 2**bits - 1).map(kind)


UNSIGNED = {codec.UByte: 8, codec.UShort: 16, codec.UInt: 32, codec.ULong: 64}
SIGNED = {codec.Byte: 8, codec.Short: 16, codec.Int: 32, codec.Long: 64, codec.Timestamp: 64}
UINTS, ULONGS = _integers(codec.UInt, 32, False), _integers(codec.ULong, 64, False)
SYMBOLS = st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    *(_integers(kind, bits, False) for kind, bits in UNSIGNED.items()),
    *(_integers(kind, bits, True) for kind, bits in SIGNED.items()),
    st.floats(width=32, allow_nan=False).map(codec.Float32),
    st.floats(allow_nan=False),
    st.characters(exclude_categories=["Cs"]).map(codec.Char),
    st.uuids(),
    st.binary(max_size=300),
    st.text(max_size=300),
    SYMBOLS,
    *(st.binary(min_size=size, max_size=size).map(codec.Decimal) for size in (4, 8, 16)),
)
ARRAYS = st.one_of(
    st.lists(st.text(max_size=20), min_size=1, max_size=5).map(Array),
    st.lists(UINTS, max_size=5).map(Array),
    st.lists(st.booleans(), min_size=1, max_size=5).map(Array),
    st.lists(st.none(), min_size=1, max_size=5).map(Array),
    st.lists(SYMBOLS.map(lambda name: Described(ULong(1), name)), min_size=1, max_size=5).map(Array),
    st.lists(st.lists(st.uuids(), min_size=1, max_size=3).map(Array), min_size=1, max_size=3).map(Array),
    st.lists(st.lists(SCALARS, max_size=3), min_size=1, max_size=3).map(Array),
)
VALUES = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, min_size=300, max_size=301),
        st.dictionaries(SYMBOLS, inner, max_size=4),
        st.builds(Described, ULONGS | SYMBOLS, inner),
    ),
    max_leaves=10,
)


def _typed(value: Any) -> Any:
    """The value with its types, so that an int is not equal to a bool, nor a symbol to a string."""
    if isinstance(value, Described):
        return "described", _typed(value.descriptor), _typed(value.value)
    if isinstance(value, list):
        return type(value), [_typed(each) for each in value]
    if isinstance(value, dict):
        return dict, [(_typed(key), _typed(each)) for key, each in value.items()]
    return type(value), value


@GENEROUS
@given(VALUES)
def test_round_trip(value: Any) -> None:
    raw = encode(value)
    decoded, end = decode(raw)
    assert end == len(raw) == skip(raw, 0)
    assert _typed(decoded) == _typed(value)
    assert encode(decoded) == raw


@GENEROUS
@given(VALUES, st.data())
def test_truncated_values_raise(value: Any, data: st.DataObject) -> None:
    raw = encode(value)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(DecodeError):
        decode(raw[:cut])


@GENEROUS
@given(VALUES.map(encode) | st.binary(max_size=200), st.sampled_from([0x12, *range(0x70, 0x78)]), st.data())
def test_mutated_messages_raise_decode_error_or_return_a_value(value: bytes, code: int, data: st.DataObject) -> None:
    raw = bytearray(b"\x00\x53" + bytes([code]) + value + build_events([b"x"], [{"a": 1}])[0].tail)
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    for function in (decode, parse_event, parse_batch, parse_sections, frames.decode_performative):
        with contextlib.suppress(DecodeError):
            function(bytes(raw))


HOSTILE = {
    "array of 2^32 nulls": b"\xf0" + struct.pack(">II", 5, 2**32 - 1) + b"\x40",
    "array of 2^32 empty lists": b"\xf0" + struct.pack(">II", 5, 2**32 - 1) + b"\x45",
    "list of 2^32": b"\xd0" + struct.pack(">II", 5, 2**32 - 1) + b"\x40",
    "map of 2^32": b"\xd1" + struct.pack(">II", 5, 2**32 - 2) + b"\x40",
    "odd map": b"\xc1\x02\x01\x40",
    "list for a key": b"\xc1\x04\x02\x45\x40\x40",
    "size beyond the end": b"\xd0" + struct.pack(">II", 2**32 - 1, 0),
    "size below the count": b"\xc0\x00\x00",
    "nested lists": b"\xc0\xff\x01" * 500,
    "nested descriptors": b"\x00" * 5000,
    "nested arrays": b"\xe0\xff\x01" * 500,
    "described array elements": b"\xe0\xff\x01" + b"\x00" * 254,
    "bad utf-8": b"\xa1\x02\xff\xfe",
    "bad symbol": b"\xa3\x01\xff",
    "surrogate": b"\x73\x00\x00\xd8\x00",
    "unknown type": b"\x10",
    "1 MB of nulls": b"\xd0" + struct.pack(">II", 1_000_004, 1_000_000) + b"\x40" * 1_000_000,
    "arrays of empties": b"\xf0" + struct.pack(">II", 40_000 * 4 + 5, 40_000) + b"\xe0" + b"\x02\xff\x40" * 40_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_values_raise_at_once(name: str) -> None:
    begun = time.monotonic()
    with pytest.raises(DecodeError):
        decode(HOSTILE[name])
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize(
    "kind", [int, codec.ULong, codec.UInt, codec.Int, codec.Timestamp, float, lambda n: uuid.UUID(int=n)]
)
def test_keys_of_a_map_that_a_sender_can_make_collide_are_few(kind: Callable[[int], Any]) -> None:
    assert len(decode(encode({kind(n << 10): None for n in range(256)}))[0]) == 256
    hostile = encode({kind(n << 10): None for n in range(257)})
    for value in (hostile, b"\x00\x53\x77" + hostile):
        with pytest.raises(DecodeError, match="more than 256 keys that are neither text nor binary"):
            decode(value)
    assert len(decode(encode({f"key {n}": None for n in range(10_000)}))[0]) == 10_000


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (codec.UByte(256), ValueError),
        (codec.UInt(-1), ValueError),
        (2**63, ValueError),
        (codec.Short(40_000), ValueError),
        (object(), TypeError),
        ({1}, TypeError),
        (Array([1, "a"]), TypeError),
    ],
)
def test_what_amqp_does_not_have_cannot_be_encoded(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        encode(value)


def test_sections_out_of_order_or_repeated_raise() -> None:
    data, properties = b"\x00\x53\x75\xa0\x01x", b"\x00\x53\x74\xc1\x01\x00"
    assert parse_event(properties + data + data).tail == properties + data + data
    for message in (data + properties, properties + properties, data + b"\x00\x53\x77\x40"):
        with pytest.raises(DecodeError):
            parse_event(message)


def test_unusual_descriptors_are_normalized() -> None:
    usual = b"\x00\x53\x74\xc1\x01\x00\x00\x53\x75\xa0\x01x"
    wide = b"\x00\x80" + struct.pack(">Q", 0x74) + b"\xc1\x01\x00\x00\x80" + struct.pack(">Q", 0x75) + b"\xa0\x01x"
    assert parse_event(wide).tail == parse_event(usual).tail == usual


@pytest.mark.parametrize(
    "body",
    [
        Described(ULong(0x12), ["name"]),
        Described(ULong(0x12), ["name", "handle", True]),
        Described(ULong(0x12), ["name", codec.Long(-1), True]),
        Described(ULong(0x18), [None, None]),
        Described(ULong(0x99), []),
        Described(Symbol("amqp:open:list"), []),
        [],
    ],
)
def test_frames_with_invalid_fields_raise(body: Any) -> None:
    with pytest.raises(DecodeError):
        frames.decode_performative(encode(body))


def test_transfer_headers_written_in_bulk_equal_encoded_frames() -> None:
    chunk = bytearray(2 * TRANSFER_HEADER_SIZE + 5)
    fill_transfer_headers(chunk, [0, TRANSFER_HEADER_SIZE + 3, len(chunk)], 7, 9, 2**32 - 2)
    for part, number in (
        (chunk[: TRANSFER_HEADER_SIZE + 3], 2**32 - 2),
        (chunk[TRANSFER_HEADER_SIZE + 3 :], 2**32 - 1),
    ):
        frame = frames.decode_frame(part, 1000)
        assert frame is not None
        assert (frame.size, frame.channel) == (len(part), 7)
        transfer, end = frames.decode_performative(frame.body)
        assert len(part) - len(frame.body) + end == TRANSFER_HEADER_SIZE
        rest = (True, False, None, None, False, False, False)
        assert transfer == frames.Transfer(9, number, b"\x00", 0, *rest)
