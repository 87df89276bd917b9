"""Decodes AMQP 1.0 values.

The results equal those of the client's decoder: text and symbols become `bytes`, times are milliseconds, and a
described value loses its descriptor. The differences: binary becomes `Binary`, a subclass of `bytes`, and .NET's times
become text in ISO 8601. Contradictory input is decoded as the client decodes it: a compound value ends after its number
of elements, whatever its size field contains, and truncated text is shorter. Types that the client does not support
(char, decimals) are decoded as well.

The work is bounded by the number of bytes: nothing is recursive, each element takes at least one byte, an `ArrayBudget`
limits elements that take none, and no sender can choose colliding keys of a large map.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from spark_ehbalance.eventhub.rows import Binary, large_map_key

#: Maximum nesting depth: no client nests deeper, and the JSON encoder is recursive.
MAX_DEPTH = 64

_Decoder = Callable[[bytes, int], tuple[Any, int]]

#: Converts a list of elements into a compound value; None if the list itself is the value.
_Maker = Callable[[list[Any]], Any] | None

#: In maps with more keys than this, every key becomes a `rows.Key`, because a sender could choose keys that all
#: collide: 82,000 strings (0.9 MB) took 5.5 s, and colliding numbers are even easier to find. The same bytes in maps of
#: 64 keys take 0.1 s, but 4.8 s if the keys have types that are slow to compare. Therefore such keys become a
#: `rows.Key` in small maps too.
_FEW_KEYS = 64
_FAST_KEYS = frozenset((bytes, Binary, int, bool, float, type(None)))


class MalformedError(Exception):
    """The peer sent bytes that are not AMQP, or more than allowed."""


class ArrayBudget:
    """Limits the number of array elements that take no bytes, because they cost the sender nothing. On the slow path,
    each message has a budget; elsewhere, no such elements are allowed."""

    __slots__ = ("_left",)

    def __init__(self, items: int) -> None:
        self._left = items

    def take(self, items: int) -> None:
        """Take `items` from the budget, which all arrays of the message share. Raises ValueError if it is exceeded."""
        self._left -= items
        if self._left < 0:
            raise ValueError(f"an array of {items} zero-byte elements, more than allowed")


def decode(data: bytes, pos: int, budget: ArrayBudget | None = None) -> tuple[Any, int]:
    """The value at `pos`, and the position after it, which can be beyond the end of `data` if the value is truncated.

    Without a `budget`, no array may have elements that take no bytes. Raises one of `MALFORMED`.
    """
    code = data[pos]
    scalar = SCALARS[code]
    if scalar is not None:
        return scalar(data, pos + 1)
    budget = budget or ArrayBudget(0)
    outer: list[tuple[list[Any], int, int, _Maker]] = []
    items: list[Any] = []
    left, element, maker, pos = _open(code, data, pos + 1, budget)
    while True:
        while left:
            left -= 1
            code = element
            if code < 0:
                code = data[pos]
                pos += 1
            if (
                code == 0xA1 or code == 0xA3
            ):  # handled without a call, because nearly all keys and many values are short texts
                at = pos + 1
                pos = at + data[pos]
                items.append(data[at:pos])
            elif code == 0x81 or code == 0x83:
                items.append(_LONG(data, pos)[0])
                pos += 8
            elif (scalar := SCALARS[code]) is not None:
                value, pos = scalar(data, pos)
                items.append(value)
            else:
                if len(outer) == MAX_DEPTH:
                    raise ValueError(f"values nested more than {MAX_DEPTH} deep")
                outer.append((items, left, element, maker))
                items = []
                left, element, maker, pos = _open(code, data, pos, budget)
        value = items if maker is None else maker(items)
        if not outer:
            return value, pos
        items, left, element, maker = outer.pop()
        items.append(value)


def end_of(data: bytes, pos: int) -> int:
    """The position after the value at `pos`, computed from its sizes, even if its type is unknown. Raises one of
    `MALFORMED`."""
    values = 1
    while values:
        values -= 1
        kind, pos = data[pos] >> 4, pos + 1
        if kind < 4:
            if data[pos - 1]:
                raise ValueError(f"unknown type 0x{data[pos - 1]:02x}")
            values += 2  # a descriptor and the described value
        elif kind < 10:
            pos += (0, 1, 2, 4, 8, 16)[kind - 4]
        else:
            pos += 1 + data[pos] if kind % 2 == 0 else 4 + _UINT(data, pos)[0]
    if pos > len(data):
        raise ValueError("a value is truncated")
    return pos


#: The errors that `decode` can raise. Callers convert an error to a `MalformedError` once, because handling errors for
#: each value would cost more.
MALFORMED = (IndexError, struct.error, TypeError, ValueError, ArithmeticError, RecursionError)


def _empty(value: Any) -> _Decoder:
    return lambda data, pos: (value, pos)


def _packed(form: str) -> _Decoder:
    unpack_from, size = struct.Struct(">" + form).unpack_from, struct.calcsize(">" + form)
    return lambda data, pos: (unpack_from(data, pos)[0], pos + size)


def _signed(data: bytes, pos: int) -> tuple[int, int]:
    return _SIGNED[data[pos]], pos + 1


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


def _binary(decoder: _Decoder) -> _Decoder:
    def decoded(data: bytes, pos: int) -> tuple[Binary, int]:
        raw, end = decoder(data, pos)
        return (Binary(raw) if raw else _NO_BYTES), end

    return decoded


def _fixed(size: int, convert: Callable[[bytes], Any]) -> _Decoder:
    def decoder(data: bytes, pos: int) -> tuple[Any, int]:
        end = pos + size
        if end > len(data):
            raise ValueError("a value is truncated")
        return convert(data[pos:end]), end

    return decoder


def _char(raw: bytes) -> bytes:
    """The UTF-8 of a character; U+FFFD for invalid codes, including half a surrogate pair, which a `char` in Java can
    be."""
    return raw.decode("utf-32-be", "replace").encode()


def _decimal(bits: int, digits: int, exponent_bits: int, bias: int) -> _Decoder:
    """A decoder of IEEE 754-2008 decimals with a binary significand, which counts as 0 if it has more than `digits`
    digits."""

    def convert(raw: bytes) -> Decimal:
        encoded = int.from_bytes(raw, "big")
        sign, first = encoded >> (bits - 1), (encoded >> (bits - 6)) & 0x1F
        if first >= 0x1E:
            return Decimal("NaN") if first == 0x1F else Decimal("-Infinity" if sign else "Infinity")
        # If the first two bits are 11, the exponent begins two bits later, and the significand begins with an implicit
        # 100.
        is_shifted = first >> 3 == 3
        written = bits - 1 - exponent_bits - 2 * is_shifted
        significand = (4 << written if is_shifted else 0) | encoded & ((1 << written) - 1)
        if significand >= 10**digits:
            significand = 0
        exponent = (encoded >> written) & ((1 << exponent_bits) - 1)
        return Decimal((sign, tuple(map(int, str(significand))), exponent - bias))

    return _fixed(bits // 8, convert)


def _open(code: int, data: bytes, pos: int, budget: ArrayBudget) -> tuple[int, int, _Maker, int]:
    """The header at `pos` of a compound value of type `code`: the number of elements, their common type code (-1 if
    each has its own), the maker, and their position."""
    if not code:
        return 2, -1, _undescribed, pos
    width = 4 if code & 0x10 else 1
    size, count = _UINTS(data, pos) if width == 4 else (data[pos], data[pos + 1])
    if code & 0xEF == 0xE0:
        return _array(data, pos + 2 * width, count, budget) if count else (0, -1, None, pos + width + size)
    pos += 2 * width
    _check_count(count, data, pos)
    return (
        (count & -2, -1, _mapping, pos) if code & 1 else (count, -1, None, pos)
    )  # a last key without a value is ignored


def _array(data: bytes, pos: int, count: int, budget: ArrayBudget) -> tuple[int, int, _Maker, int]:
    while data[pos] == 0:
        descriptor = SCALARS[data[pos + 1]]
        if descriptor is None:
            raise ValueError("an array's descriptor is compound")
        _, pos = descriptor(data, pos + 2)
    code, pos = data[pos], pos + 1
    if code >> 4 == 4:
        budget.take(count)
    else:
        _check_count(count, data, pos)
    return count, code, None, pos


def _check_count(count: int, data: bytes, pos: int) -> None:
    if count > len(data) - pos:
        raise ValueError(f"{count} elements in {max(0, len(data) - pos)} bytes")


def _mapping(items: list[Any]) -> dict[Any, Any]:
    try:
        if len(items) > 2 * _FEW_KEYS or not _FAST_KEYS.issuperset(map(type, items[::2])):
            items[::2] = map(large_map_key, items[::2])
        pairs = iter(items)
        return dict(zip(pairs, pairs, strict=False))
    except TypeError:
        raise ValueError("a map's key is a list or a map") from None


def _undescribed(items: list[Any]) -> Any:
    descriptor, value = items
    if isinstance(descriptor, list | dict):
        raise ValueError("a descriptor is a list or a map")
    iso = _DOTNET_TIMES.get(descriptor)
    return value if iso is None or type(value) is not int else iso(value)


def _iso_time(ticks: int) -> int | bytes:
    """A time in UTC from its ticks since year 1; the ticks if they are after year 9999."""
    seconds, rest = divmod(ticks, _TICKS)
    try:
        return f"{(datetime.min + timedelta(seconds=seconds)).isoformat()}{_fraction(rest)}Z".encode()
    except OverflowError:
        return ticks


def _iso_duration(ticks: int) -> bytes:
    seconds, rest = divmod(abs(ticks), _TICKS)
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    clock = "".join(f"{number}{unit}" for number, unit in ((hours, "H"), (minutes, "M")) if number)
    if (remainder := seconds % 60) or rest or not ticks:
        clock += f"{remainder}{_fraction(rest)}S"
    return f"{'-' * (ticks < 0)}P{f'{days}D' * bool(days)}{f'T{clock}' * bool(clock)}".encode()


def _fraction(ticks: int) -> str:
    return f".{ticks:07}".rstrip("0") if ticks else ""


#: Ticks of .NET per second.
_TICKS = 10_000_000

#: Descriptor of a .NET type that AMQP lacks → conversion to ISO 8601.
_DOTNET_TIMES: dict[Any, Callable[[int], Any]] = {
    b"com.microsoft:datetime-offset": _iso_time,
    b"com.microsoft:timespan": _iso_duration,
}


def _unknown(data: bytes, pos: int) -> tuple[Any, int]:
    raise ValueError(f"unknown type 0x{data[pos - 1]:02x}")


#: Shared objects, because a message may contain one per byte.
_SIGNED = (*range(128), *range(-128, 0))
_NO_BYTES = Binary()
_LONG = struct.Struct(">q").unpack_from
_UINT = struct.Struct(">I").unpack_from
_UINTS = struct.Struct(">II").unpack_from
#: Decoders of text, symbols and binary by type code. They return the bytes.
TEXTS: dict[int, Callable[[bytes, int], tuple[bytes, int]]] = {
    **dict.fromkeys((0xA0, 0xA1, 0xA3), _bytes8),
    **dict.fromkeys((0xB0, 0xB1, 0xB3), _bytes32),
}
#: Decoders by type code, called with the bytes and the position after the code. None means a compound type.
SCALARS: list[_Decoder | None] = [_unknown] * 256
for _code, _decoder in {
    0x40: _empty(None),
    0x41: _empty(True),
    0x42: _empty(False),
    0x43: _empty(0),
    0x44: _empty(0),
    0x45: _empty([]),  # shared, because it is never changed
    0x50: _small,
    0x51: _signed,
    0x52: _small,
    0x53: _small,
    0x54: _signed,
    0x55: _signed,
    0x56: _boolean,
    0x60: _packed("H"),
    0x61: _packed("h"),
    0x70: _packed("I"),
    0x71: _packed("i"),
    0x72: _packed("f"),
    0x73: _fixed(4, _char),
    0x74: _decimal(32, 7, 8, 101),
    0x80: _packed("Q"),
    0x82: _packed("d"),
    0x84: _decimal(64, 16, 10, 398),
    0x94: _decimal(128, 34, 14, 6176),
    0x98: _fixed(16, lambda raw: uuid.UUID(bytes=raw)),
    **dict.fromkeys((0x81, 0x83), _packed("q")),
    **TEXTS,
    0xA0: _binary(_bytes8),
    0xB0: _binary(_bytes32),
}.items():
    SCALARS[_code] = _decoder
for _code in (0x00, 0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0):
    SCALARS[_code] = None
