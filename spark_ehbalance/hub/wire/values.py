"""AMQP 1.0 values from bytes.

They come out as the client's own decoder gives them, so that rows are the same by either way: text, symbols and binary
all as `bytes`, times as milliseconds, a described value without its descriptor. What contradicts itself is read as the
client reads it: a compound value ends after as many elements as it counts, whatever its size says, and a text that is
cut off is what there is of it. Types that the client cannot decode (char, the decimals) come out too.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

#: Elements without bytes of their own cost the sender nothing, so that their number must be bounded.
MAX_EMPTY_ITEMS = 16

_Decoder = Callable[[bytes, int], tuple[Any, int]]

#: What the client makes of these described types: a mapping from their name to their value.
_OUTCOMES = {0x23: "received", 0x24: "accepted", 0x25: "rejected", 0x26: "released", 0x27: "modified"}


class MalformedError(Exception):
    """What the peer has sent is no AMQP, or more than a peer may send."""


def decode(data: bytes, pos: int) -> tuple[Any, int]:
    """The value at `pos` and where it ends, or would end if it were not cut off.

    Raises one of `MALFORMED` for what is no value.
    """
    return DECODERS[data[pos]](data, pos + 1)


#: What `decode` raises. Whoever calls it turns these into a `MalformedError` once, instead of at every value.
MALFORMED = (IndexError, struct.error, TypeError, ValueError, ArithmeticError, RecursionError)


def _empty(value: Any) -> _Decoder:
    return lambda data, pos: (value, pos)


def _number(form: str) -> _Decoder:
    unpack_from, size = struct.Struct(">" + form).unpack_from, struct.calcsize(">" + form)
    return lambda data, pos: (unpack_from(data, pos)[0], pos + size)


def _small(data: bytes, pos: int) -> tuple[int, int]:
    return data[pos], pos + 1


def _boolean(data: bytes, pos: int) -> tuple[bool, int]:
    return data[pos] == 1, pos + 1


def _bytes8(data: bytes, pos: int) -> tuple[bytes, int]:
    start = pos + 1
    end = start + data[pos]
    return data[start:end], end


def _bytes32(data: bytes, pos: int) -> tuple[bytes, int]:
    start = pos + 4
    end = start + _UINT(data, pos)[0]
    return data[start:end], end


def _fixed(size: int, made: Callable[[bytes], Any]) -> _Decoder:
    def decoder(data: bytes, pos: int) -> tuple[Any, int]:
        end = pos + size
        if end > len(data):
            raise ValueError("a value is cut off")
        return made(data[pos:end]), end

    return decoder


def _char(raw: bytes) -> bytes:
    return raw.decode("utf-32-be").encode()


def _decimal(bits: int, digits: int, exponent_bits: int, bias: int) -> _Decoder:
    """IEEE 754-2008 with a binary integer as significand; one of more than the format's digits counts as 0."""

    def made(raw: bytes) -> Decimal:
        number = int.from_bytes(raw, "big")
        sign, first = number >> (bits - 1), (number >> (bits - 6)) & 0x1F
        if first >= 0x1E:
            return Decimal("NaN") if first == 0x1F else Decimal("-Infinity" if sign else "Infinity")
        # where the exponent begins with 11 it comes two bits later, and the significand has 100 before what is written
        late = first >> 3 == 3
        written = bits - 1 - exponent_bits - 2 * late
        significand = (4 << written if late else 0) | number & ((1 << written) - 1)
        if significand >= 10**digits:
            significand = 0
        exponent = (number >> written) & ((1 << exponent_bits) - 1)
        return Decimal((sign, tuple(map(int, str(significand))), exponent - bias))

    return _fixed(bits // 8, made)


def _compound(form: str) -> tuple[Callable[[bytes, int], tuple[int, int]], int]:
    """For a compound value's header: what gives its size and its count, and the header's own size."""
    header = struct.Struct(">" + form)
    return header.unpack_from, header.size


def _list(form: str) -> _Decoder:
    (header, size), decoders = _compound(form), DECODERS

    def decoder(data: bytes, pos: int) -> tuple[list[Any], int]:
        _, count = header(data, pos)
        pos += size
        values = []
        for _ in range(count):
            value, pos = decoders[data[pos]](data, pos + 1)
            values.append(value)
        return values, pos

    return decoder


def _map(form: str) -> _Decoder:
    (header, size), decoders = _compound(form), DECODERS

    def decoder(data: bytes, pos: int) -> tuple[dict[Any, Any], int]:
        _, count = header(data, pos)
        pos += size
        values = {}
        for _ in range(count // 2):
            code = data[pos]
            if code == 0xA3 or code == 0xA1:  # without a call, as nearly all keys are, and many values
                at = pos + 2
                pos = at + data[pos + 1]
                key: Any = data[at:pos]
            else:
                key, pos = decoders[code](data, pos + 1)
            code = data[pos]
            if code == 0x81 or code == 0x83:
                values[key] = _LONG(data, pos + 1)[0]
                pos += 9
            elif code == 0xA1:
                at = pos + 2
                pos = at + data[pos + 1]
                values[key] = data[at:pos]
            else:
                values[key], pos = decoders[code](data, pos + 1)
        return values, pos

    return decoder


def _array(form: str) -> _Decoder:
    header, size = _compound(form)

    def decoder(data: bytes, pos: int) -> tuple[list[Any], int]:
        length, count = header(data, pos)
        end = pos + size // 2 + length
        pos += size
        if not count:
            return [], end
        described = []
        while data[pos] == 0:
            descriptor, pos = decode(data, pos + 1)
            described.append(descriptor)
        code = data[pos]
        room = min(end, len(data)) - pos + MAX_EMPTY_ITEMS
        if code >> 4 == 4 and count > room:
            raise ValueError(f"an array of {count} elements in {room - MAX_EMPTY_ITEMS} bytes")
        element, pos, values = DECODERS[code], pos + 1, []
        for _ in range(count):
            value, pos = element(data, pos)
            for descriptor in reversed(described):
                value = _undescribed(descriptor, value)
            values.append(value)
        return values, pos

    return decoder


def _described(data: bytes, pos: int) -> tuple[Any, int]:
    descriptor, pos = decode(data, pos)
    value, pos = decode(data, pos)
    return _undescribed(descriptor, value), pos


def _undescribed(descriptor: Any, value: Any) -> Any:
    name = _OUTCOMES.get(descriptor)
    return value if name is None else {name: value}


def _unknown(data: bytes, pos: int) -> tuple[Any, int]:
    raise ValueError(f"unknown type 0x{data[pos - 1]:02x}")


_LONG = struct.Struct(">q").unpack_from
_UINT = struct.Struct(">I").unpack_from
#: By the byte that a value begins with: takes the bytes and the place after it, as `decode` the place of it.
DECODERS: list[_Decoder] = [_unknown] * 256
for _code, _decoder in {
    0x00: _described,
    0x40: _empty(None),
    0x41: _empty(True),
    0x42: _empty(False),
    0x43: _empty(0),
    0x44: _empty(0),
    0x45: lambda data, pos: ([], pos),
    0x50: _small,
    0x51: _number("b"),
    0x52: _small,
    0x53: _small,
    0x54: _number("b"),
    0x55: _number("b"),
    0x56: _boolean,
    0x60: _number("H"),
    0x61: _number("h"),
    0x70: _number("I"),
    0x71: _number("i"),
    0x72: _number("f"),
    0x73: _fixed(4, _char),
    0x74: _decimal(32, 7, 8, 101),
    0x80: _number("Q"),
    0x82: _number("d"),
    0x84: _decimal(64, 16, 10, 398),
    0x94: _decimal(128, 34, 14, 6176),
    0x98: _fixed(16, lambda raw: uuid.UUID(bytes=raw)),
    **dict.fromkeys((0x81, 0x83), _number("q")),
    **dict.fromkeys((0xA0, 0xA1, 0xA3), _bytes8),
    **dict.fromkeys((0xB0, 0xB1, 0xB3), _bytes32),
    0xC0: _list("BB"),
    0xC1: _map("BB"),
    0xD0: _list("II"),
    0xD1: _map("II"),
    0xE0: _array("BB"),
    0xF0: _array("II"),
}.items():
    DECODERS[_code] = _decoder
