"""The AMQP 1.0 type system: Python values to bytes and back.

Where AMQP has several types for one Python type, subclasses distinguish them (`UInt`, `Symbol`, `Timestamp` …), so that
a decoded value is encoded with the same types again. A plain `int` is encoded as an AMQP long.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from .errors import DecodeError

MAX_DEPTH = 32  # no client nests deeper; Python's stack ends near 1,000
MAX_ITEMS = 100_000  # values in one decode call: about 0.1 s of work, and more than a 1 MB event of small maps has
MAX_ODD_KEYS = 256  # of a map, neither text nor binary: a sender can choose numbers so that each is compared with all
MAX_EMPTY_ITEMS = 256  # array elements of zero bytes cost the sender nothing, so their number needs a limit


class UByte(int):
    """0 … 2^8-1."""


class UShort(int):
    """0 … 2^16-1."""


class UInt(int):
    """0 … 2^32-1."""


class ULong(int):
    """0 … 2^64-1."""


class Byte(int):
    """A signed integer of 8 bits."""


class Short(int):
    """A signed integer of 16 bits."""


class Int(int):
    """A signed integer of 32 bits."""


class Long(int):
    """A signed integer of 64 bits."""


class Timestamp(int):
    """Milliseconds since 1970-01-01T00:00:00Z."""


class Float32(float):
    """A float of 32 bits; a plain `float` has 64."""


class Char(str):
    """One Unicode character."""


class Symbol(str):
    """An ASCII name from a fixed vocabulary."""


class Decimal(bytes):
    """A decimal of 4, 8 or 16 bytes, undecoded."""


class Array(list[Any]):
    """Elements of the same AMQP type."""


class Described(NamedTuple):
    """A value and the descriptor of its meaning."""

    descriptor: Any
    value: Any


def _fixed(format_: str) -> struct.Struct:
    return struct.Struct(">" + format_)


_U8, _U32, _U64, _I8, _I64 = _fixed("B"), _fixed("I"), _fixed("Q"), _fixed("b"), _fixed("q")

# Python type -> (constructor of the widest form, packer); small forms are chosen in encode()
_WIDE: dict[type, tuple[int, struct.Struct]] = {
    UByte: (0x50, _U8),
    UShort: (0x60, _fixed("H")),
    UInt: (0x70, _U32),
    ULong: (0x80, _U64),
    Byte: (0x51, _I8),
    Short: (0x61, _fixed("h")),
    Int: (0x71, _fixed("i")),
    Long: (0x81, _I64),
    int: (0x81, _I64),
    Timestamp: (0x83, _I64),
    Float32: (0x72, _fixed("f")),
    float: (0x82, _fixed("d")),
}
_SMALL_UNSIGNED = {UInt: (0x43, 0x52), ULong: (0x44, 0x53)}
_SMALL_SIGNED = {Int: 0x54, Long: 0x55, int: 0x55}
_DECIMALS = {4: 0x74, 8: 0x84, 16: 0x94}


def encode(value: Any) -> bytes:
    """One value as AMQP bytes, in the most compact form.

    Raises TypeError if AMQP has no such type, ValueError for a number out of its type's range.
    """
    kind = type(value)
    if value is None:
        return b"\x40"
    if kind is bool:
        return b"\x41" if value else b"\x42"
    if kind in _SMALL_UNSIGNED and value < 256:
        zero, small = _SMALL_UNSIGNED[kind]
        return _U8.pack(zero) if value == 0 else _packed(small, _U8, value)
    if kind in _SMALL_SIGNED and -128 <= value < 128:
        return _packed(_SMALL_SIGNED[kind], _I8, value)
    if kind in _WIDE:
        return _packed(*_WIDE[kind], value)
    if kind is str or kind is Symbol or kind is bytes:
        raw, small = _text(value)
        return bytes((small, len(raw))) + raw if len(raw) < 256 else bytes((small + 0x10,)) + _U32.pack(len(raw)) + raw
    if isinstance(value, list) and kind is not Array:
        return _compound(0xC0, len(value), b"".join(map(encode, value)))
    if isinstance(value, dict):
        return _compound(0xC1, 2 * len(value), b"".join(encode(k) + encode(v) for k, v in value.items()))
    if kind is Described:
        return b"\x00" + encode(value.descriptor) + encode(value.value)
    constructor, payload = _wide_form(value)
    return constructor + payload


def _packed(code: int, packer: struct.Struct, value: Any) -> bytes:
    try:
        return _U8.pack(code) + packer.pack(value)
    except (struct.error, OverflowError):
        raise ValueError(f"{value!r} is out of range for AMQP type {type(value).__name__}") from None


def _text(value: Any) -> tuple[bytes, int]:
    if isinstance(value, Symbol):
        return value.encode("ascii"), 0xA3
    return (value, 0xA0) if isinstance(value, bytes) else (value.encode(), 0xA1)


def _compound(small: int, count: int, body: bytes) -> bytes:
    if len(body) < 255 and count < 256:
        return bytes((small, len(body) + 1, count)) + body
    return bytes((small + 0x10,)) + struct.pack(">II", len(body) + 4, count) + body


def _wide_form(value: Any) -> tuple[bytes, bytes]:
    """Constructor and payload in the widest form, in which all elements of an array share the constructor."""
    kind = type(value)
    if value is None:
        return b"\x40", b""
    if kind is bool:
        return b"\x56", b"\x01" if value else b"\x00"
    if kind in _WIDE:
        wide = _packed(*_WIDE[kind], value)
        return wide[:1], wide[1:]
    if kind is str or kind is Symbol or kind is bytes:
        raw, small = _text(value)
        return bytes((small + 0x10,)), _U32.pack(len(raw)) + raw
    if kind is Char:
        return b"\x73", value.encode("utf-32-be")
    if kind is uuid.UUID:
        return b"\x98", value.bytes
    if kind is Decimal:
        return bytes((_DECIMALS[len(value)],)), bytes(value)
    if kind is Described:
        constructor, payload = _wide_form(value.value)
        return b"\x00" + encode(value.descriptor) + constructor, payload
    if kind is Array:
        return b"\xf0", _array(value)
    if isinstance(value, list):
        body = b"".join(map(encode, value))
        return b"\xd0", struct.pack(">II", len(body) + 4, len(value)) + body
    if isinstance(value, dict):
        body = b"".join(encode(k) + encode(v) for k, v in value.items())
        return b"\xd1", struct.pack(">II", len(body) + 4, 2 * len(value)) + body
    raise TypeError(f"AMQP has no type for {kind.__name__}")


def _array(values: Array) -> bytes:
    forms = [_wide_form(value) for value in values] or [(b"\x40", b"")]
    if len({constructor for constructor, _ in forms}) != 1:
        raise TypeError("the elements of an AMQP array must have one type")
    body = forms[0][0] + b"".join(payload for _, payload in forms)
    return struct.pack(">II", len(body) + 4, len(values)) + body


_EMPTY: dict[int, Callable[[], Any]] = {
    0x40: lambda: None,
    0x41: lambda: True,
    0x42: lambda: False,
    0x43: lambda: UInt(0),
    0x44: lambda: ULong(0),
    0x45: list,
}
_NUMBERS: dict[int, tuple[struct.Struct, Callable[[Any], Any]]] = {
    code: (packer, kind) for kind, (code, packer) in _WIDE.items() if kind is not int
}
_NUMBERS |= {0x52: (_U8, UInt), 0x53: (_U8, ULong), 0x54: (_I8, Int), 0x55: (_I8, Long), 0x56: (_U8, bool)}
_TEXTS: dict[int, Callable[[bytes], Any]] = {
    0xA0: bytes,
    0xA1: lambda raw: raw.decode("utf-8"),
    0xA3: lambda raw: Symbol(raw.decode("ascii")),
}
_TEXTS |= {code + 0x10: decoder for code, decoder in _TEXTS.items()}
_WIDTHS = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_SIZE_FIELD = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}


def skip(data: bytes, pos: int) -> int:
    """The end of the value at `pos`, which is not decoded. Raises DecodeError if it is truncated."""
    for _ in range(MAX_DEPTH):
        if pos >= len(data):
            raise DecodeError("a value is missing")
        code = data[pos]
        if code:
            end = _end_of(data, pos + 1, code)
            if end > len(data):
                raise DecodeError(f"a value of type 0x{code:02x} is truncated")
            return end
        pos = skip_descriptor(data, pos)
    raise DecodeError(f"values are nested more than {MAX_DEPTH} deep")


def skip_descriptor(data: bytes, pos: int) -> int:
    """The start of the value whose descriptor starts at `pos`. Raises DecodeError."""
    if data[pos + 1 : pos + 2] == b"\x00":
        raise DecodeError("a descriptor is itself described")
    return skip(data, pos + 1)


def _end_of(data: bytes, pos: int, code: int) -> int:
    width = _WIDTHS.get(code >> 4)
    if width is not None:
        return pos + width
    field = _SIZE_FIELD.get(code >> 4)
    if field is None:
        raise DecodeError(f"unknown type 0x{code:02x}")
    return pos + field + int.from_bytes(data[pos : pos + field], "big")


def decode(data: bytes, pos: int = 0) -> tuple[Any, int]:
    """The value at `pos` and its end. Raises DecodeError if it is malformed or exceeds a limit."""
    decoder = _Decoder(data)
    try:
        return decoder.value(pos, len(data), 0)
    except (IndexError, struct.error):
        raise DecodeError("a value is truncated") from None
    except UnicodeDecodeError as error:
        raise DecodeError(f"a text is not valid {error.encoding}") from None


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._items_left = MAX_ITEMS

    def value(self, pos: int, limit: int, depth: int) -> tuple[Any, int]:
        self._items_left -= 1
        if self._items_left < 0:
            raise DecodeError(f"a value contains more than {MAX_ITEMS} values")
        if depth > MAX_DEPTH:
            raise DecodeError(f"values are nested more than {MAX_DEPTH} deep")
        if pos >= limit:
            raise DecodeError("a value is missing")
        code = self._data[pos]
        if code:
            return self._typed(code, pos + 1, limit, depth)
        descriptor, pos = self.value(pos + 1, limit, depth + 1)
        value, pos = self.value(pos, limit, depth + 1)
        return Described(descriptor, value), pos

    def _typed(self, code: int, pos: int, limit: int, depth: int) -> tuple[Any, int]:
        if code in _EMPTY:
            return _EMPTY[code](), pos
        data = self._data
        end = _end_of(data, pos, code)
        if end > limit:
            raise DecodeError(f"a value of type 0x{code:02x} is truncated")
        if code in _NUMBERS:
            packer, kind = _NUMBERS[code]
            return kind(packer.unpack_from(data, pos)[0]), end
        if code in _TEXTS:
            return _TEXTS[code](bytes(data[pos + _SIZE_FIELD[code >> 4] : end])), end
        if code in (0xC0, 0xD0):
            return self._sequence(pos, end, code, depth), end
        if code in (0xC1, 0xD1):
            return self._map(pos, end, code, depth), end
        if code in (0xE0, 0xF0):
            return self._array(pos, end, code, depth), end
        if code == 0x73:
            return Char(bytes(data[pos:end]).decode("utf-32-be")), end
        if code == 0x98:
            return uuid.UUID(bytes=bytes(data[pos:end])), end
        if code in (0x74, 0x84, 0x94):
            return Decimal(data[pos:end]), end
        raise DecodeError(f"unknown type 0x{code:02x}")

    def _count(self, pos: int, end: int, code: int) -> tuple[int, int]:
        """The number of elements, and the start of the first."""
        field = _SIZE_FIELD[code >> 4]
        start = pos + 2 * field
        if start > end:
            raise DecodeError(f"a value of type 0x{code:02x} is too short for its count")
        return int.from_bytes(self._data[pos + field : start], "big"), start

    def _sequence(self, pos: int, end: int, code: int, depth: int) -> list[Any]:
        count, pos = self._count(pos, end, code)
        if count > end - pos:
            raise DecodeError(f"{count} elements in {end - pos} bytes")
        values = []
        for _ in range(count):
            value, pos = self.value(pos, end, depth + 1)
            values.append(value)
        if pos != end:
            raise DecodeError("bytes are left after the last element")
        return values

    def _map(self, pos: int, end: int, code: int, depth: int) -> dict[Any, Any]:
        flat = self._sequence(pos, end, code, depth)
        if len(flat) % 2:
            raise DecodeError("a map has a key without a value")
        if sum(not isinstance(key, (str, bytes)) for key in flat[::2]) > MAX_ODD_KEYS:
            raise DecodeError(f"a map has more than {MAX_ODD_KEYS} keys that are neither text nor binary")
        try:
            return dict(zip(flat[::2], flat[1::2], strict=True))
        except TypeError:
            raise DecodeError("a key of a map is a collection") from None

    def _array(self, pos: int, end: int, code: int, depth: int) -> Array:
        count, pos = self._count(pos, end, code)
        values = Array()
        if count == 0:
            return values
        descriptors: list[Any] = []
        while self._data[pos] == 0 and len(descriptors) < MAX_DEPTH:
            descriptor, pos = self.value(pos + 1, end, depth + 1)
            descriptors.append(descriptor)
        element, pos = self._data[pos], pos + 1
        if count > max(end - pos, 0) and (element >> 4 != 0x4 or count > MAX_EMPTY_ITEMS):
            raise DecodeError(f"{count} elements in {max(end - pos, 0)} bytes")
        self._items_left -= count
        if self._items_left < 0 or depth >= MAX_DEPTH:
            raise DecodeError("an array is too large or nested too deep")
        for _ in range(count):
            value, pos = self._typed(element, pos, end, depth + 1)
            for descriptor in reversed(descriptors):
                value = Described(descriptor, value)
            values.append(value)
        if pos != end:
            raise DecodeError("bytes are left after the last element")
        return values
