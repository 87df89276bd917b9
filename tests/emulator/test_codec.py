"""The codec: values survive encoding and decoding, and bytes that are not AMQP raise only DecodeError."""

from __future__ import annotations

import struct
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.emulator.amqp import codec, frames
from spark_ehbalance.emulator.amqp.codec import Array, Described, Symbol, decode, encode, skip
from spark_ehbalance.emulator.amqp.errors import DecodeError
from spark_ehbalance.emulator.amqp.frames import TRANSFER_HEADER_SIZE, fill_transfer_headers
from spark_ehbalance.emulator.message import parse_event

GENEROUS = settings(max_examples=60, deadline=timedelta(seconds=2))


def _integers(kind: type, bits: int, signed: bool) -> st.SearchStrategy[Any]:
    low = -(2 ** (bits - 1)) if signed else 0
    return st.integers(low, low + 2**bits - 1).map(kind)


UNSIGNED = {codec.UByte: 8, codec.UShort: 16, codec.UInt: 32, codec.ULong: 64}
SIGNED = {codec.Int: 32, int: 64, codec.Timestamp: 64}
SYMBOLS = st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    *(_integers(kind, bits, False) for kind, bits in UNSIGNED.items()),
    *(_integers(kind, bits, True) for kind, bits in SIGNED.items()),
    st.floats(allow_nan=False),
    st.uuids(),
    st.binary(max_size=300),
    st.text(max_size=300),
    SYMBOLS,
)
VALUES = st.recursive(
    SCALARS | st.lists(SYMBOLS, max_size=5).map(Array) | st.lists(st.text(max_size=200), max_size=5).map(Array),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(SYMBOLS, inner, max_size=4),
        st.builds(Described, SYMBOLS, inner),
    ),
    max_leaves=10,
)


def _typed(value: Any) -> Any:
    """The value with its types, so that an int is not equal to a bool, nor a symbol to a string."""
    if isinstance(value, Described):
        return "described", _typed(value.descriptor), _typed(value.value)
    if isinstance(value, list):
        return type(value), [_typed(item) for item in value]
    if isinstance(value, dict):
        return dict, [(_typed(key), _typed(item)) for key, item in value.items()]
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


@pytest.mark.parametrize(
    "raw",
    [
        b"\xf0" + struct.pack(">II", 5, 2**32 - 1) + b"\x40",  # an array of 2^32 nulls
        b"\xd0" + struct.pack(">II", 5, 2**32 - 1) + b"\x40",
        b"\xc1\x02\x01\x40",  # a key without a value
        b"\xc1\x04\x02\x45\x40\x40",  # a list for a key
        b"\xc0\x00\x00",
        b"\x00" * 5000,
        b"\xa1\x02\xff\xfe",
        b"\x10",
    ],
)
def test_invalid_values_raise(raw: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(raw)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (codec.UByte(256), ValueError),
        (codec.UInt(-1), ValueError),
        (2**63, ValueError),
        (object(), TypeError),
        ({1}, TypeError),
        (Array([1, "a"]), TypeError),
    ],
)
def test_values_without_an_amqp_type_cannot_be_encoded(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        encode(value)


def test_unusual_descriptors_are_normalized() -> None:
    usual = b"\x00\x53\x74\xc1\x01\x00\x00\x53\x75\xa0\x01x"
    wide = b"\x00\x80" + struct.pack(">Q", 0x74) + b"\xc1\x01\x00\x00\x80" + struct.pack(">Q", 0x75) + b"\xa0\x01x"
    assert parse_event(wide).tail == parse_event(usual).tail == usual


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
        rest = (True, False, None, None, False, False, True)
        assert transfer == frames.Transfer(9, number, b"", 0, *rest)
